// Hands results to the caller's callback and spoils every pointer and number of theirs as soon as it returns, since they
// are valid only inside. While a callback runs, its thread may not call the API.
#pragma once
#include <string>
#include <vector>

#include "abi_common.h"

namespace standin {

class Delivery {
 public:
  Delivery(LLMResultCallback callback, void* userdata, size_t slots);
  ~Delivery();
  Delivery(const Delivery&) = delete;
  Delivery& operator=(const Delivery&) = delete;

  void token(size_t slot, int32_t id, const std::string& bytes);
  void token_without_text(size_t slot, int32_t id);
  void hidden(size_t slot, std::vector<float> rows, int width);
  void logits(size_t slot, std::vector<float> rows, int width);
  void perf(size_t slot, const RKLLMPerfStat& perf);

  // Returns what the callback returned.
  int send(LLMCallState state);

 private:
  struct Slot;

  void spoil();

  LLMResultCallback callback_;
  void* userdata_;
  std::vector<RKLLMResult> results_;
  std::vector<Slot> slots_;
};

// Whether this thread is inside a callback.
bool inside_callback();

}  // namespace standin
