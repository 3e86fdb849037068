// One rkllm_run: prefill, then tokens (or hidden states, or logits) to the callback.
#pragma once
#include <atomic>
#include <string>
#include <vector>

#include "abort_signal.h"
#include "delivery.h"
#include "model.h"
#include "prompt.h"

namespace standin {

class Run {
 public:
  Run(Model& model, AbortSignal& abort, std::atomic<bool>& in_prefill, const RunRequest& request);

  // Reads the caller's input and checks it; the caller's pointers are not used afterwards. 0, or what rkllm_run returns.
  int prepare();

  // Blocks until the answer ends. What rkllm_run returns.
  int execute();

 private:
  enum class End { None, Eos, Limit, Abort, Pause, Error };
  struct Slot {
    AnswerStream answer;
    KvCache::Prefill prefill{0, 0};
    long generated = 0;
    bool ended = false;
    bool has_last = false;  // a token was shown and is not in the cache yet
    int32_t last = 0;
  };

  int refuse(const std::string& line);
  bool reuse_allowed(const Encoded& encoded) const;
  void make_room(size_t slot);
  bool fill_caches();
  bool save_prompt_cache();
  bool ask_for_embeddings();
  End prefill();
  End decode();
  End states();
  End step(size_t slot, LLMCallState& state);
  std::string clocked(const std::string& bytes) const;
  End show(size_t slot, const Event& event, LLMCallState& state);
  void feed_last(size_t slot);
  std::vector<float> rows(size_t slot, bool logits, int width) const;
  int32_t next_after(const Encoded& encoded) const;
  End answer_of_callback(int answer);
  int finish(End end);
  End aborted(End otherwise);
  Question question(size_t slot) const;

  Model& model_;
  AbortSignal& abort_;
  std::atomic<bool>& in_prefill_;
  RunRequest request_;
  bool resumes_ = false;
  long limit_ = 0;
  std::vector<Encoded> prompts_;
  std::vector<Slot> slots_;
  Delivery delivery_;
  bool error_shown_ = false;
  int64_t started_ns_ = 0, prefilled_ns_ = 0;
};

}  // namespace standin
