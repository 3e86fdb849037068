// What the KV cache of one batch slot holds: the token ids, one per position (images and embeddings have negative ids of
// their own). It answers how much of a prompt is there already.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace standin {

class KvCache {
 public:
  struct Prefill {
    size_t reused;    // tokens of the prompt found in the cache
    size_t computed;  // tokens prefilled now, at least 1
  };

  // keep_history 0: the cache becomes the prompt; the longest common prefix is kept, or nothing where `reuse` is false, or
  // where `after_edit` is false and the prompt leaves the cached tokens before their end.
  Prefill replace(const std::vector<int32_t>& prompt, bool reuse, bool after_edit);

  // keep_history 1, or a run that goes on after a pause.
  Prefill append(const std::vector<int32_t>& more);

  void push(int32_t id) { ids_.push_back(id); }
  void clear() { ids_.clear(); }
  void truncate(size_t size);
  void erase(size_t begin, size_t end);

  // Keeps the first `keep` tokens and drops the older half of the rest. Returns how many went.
  size_t shift(size_t keep);

  size_t size() const { return ids_.size(); }
  const std::vector<int32_t>& ids() const { return ids_; }
  void assign(std::vector<int32_t> ids) { ids_ = std::move(ids); }

 private:
  std::vector<int32_t> ids_;
};

}  // namespace standin
