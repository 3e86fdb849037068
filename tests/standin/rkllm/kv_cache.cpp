#include "kv_cache.h"

#include <algorithm>

namespace standin {

KvCache::Prefill KvCache::replace(const std::vector<int32_t>& prompt, bool reuse, bool after_edit) {
  const auto [cached, wanted] = std::mismatch(ids_.begin(), ids_.end(), prompt.begin(), prompt.end());
  (void)wanted;
  auto common = static_cast<size_t>(cached - ids_.begin());
  if (!reuse || (!after_edit && common < ids_.size())) common = 0;
  // The logits of the last token are needed, so that one is always computed.
  if (!prompt.empty()) common = std::min(common, prompt.size() - 1);
  ids_ = prompt;
  return {common, prompt.size() - common};
}

KvCache::Prefill KvCache::append(const std::vector<int32_t>& more) {
  ids_.insert(ids_.end(), more.begin(), more.end());
  return {0, more.size()};
}

void KvCache::truncate(size_t size) { ids_.resize(std::min(size, ids_.size())); }

void KvCache::erase(size_t begin, size_t end) {
  end = std::min(end, ids_.size());
  if (begin < end) ids_.erase(ids_.begin() + static_cast<long>(begin), ids_.begin() + static_cast<long>(end));
}

size_t KvCache::shift(size_t keep) {
  keep = std::min(keep, ids_.size());
  const size_t drop = std::max<size_t>(1, (ids_.size() - keep) / 2);
  if (keep == ids_.size()) keep = ids_.size() - drop;
  erase(keep, keep + drop);
  return drop;
}

}  // namespace standin
