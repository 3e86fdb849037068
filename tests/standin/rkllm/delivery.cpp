#include "delivery.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace standin {
namespace {

thread_local bool t_inside = false;

constexpr unsigned char kSpoilt = 0xDD;  // begins no UTF-8 character that 0xDD could continue

// Counts for as long as the caller's callback runs.
class Inside {
 public:
  Inside() { t_inside = true; }
  ~Inside() { t_inside = false; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

}  // namespace

bool inside_callback() { return t_inside; }

struct Delivery::Slot {
  std::vector<char> text;
  std::vector<float> rows;
};

Delivery::Delivery(LLMResultCallback callback, void* userdata, size_t slots)
    : callback_(callback), userdata_(userdata), results_(slots), slots_(slots) {}

Delivery::~Delivery() = default;

void Delivery::token(size_t slot, int32_t id, const std::string& bytes) {
  std::vector<char>& text = slots_[slot].text;
  if (text.size() < bytes.size() + 1) text.resize(std::max<size_t>(64, bytes.size() + 1));
  std::memcpy(text.data(), bytes.c_str(), bytes.size() + 1);
  results_[slot].text = text.data();
  results_[slot].token_id = id;
}

void Delivery::token_without_text(size_t slot, int32_t id) {
  results_[slot].text = nullptr;
  results_[slot].token_id = id;
}

void Delivery::hidden(size_t slot, std::vector<float> rows, int width) {
  slots_[slot].rows = std::move(rows);
  results_[slot].last_hidden_layer = {slots_[slot].rows.data(), width, static_cast<int>(slots_[slot].rows.size()) / width};
}

void Delivery::logits(size_t slot, std::vector<float> rows, int width) {
  slots_[slot].rows = std::move(rows);
  results_[slot].logits = {slots_[slot].rows.data(), width,
                           static_cast<int>(slots_[slot].rows.size() / static_cast<size_t>(width))};
}

void Delivery::perf(size_t slot, const RKLLMPerfStat& perf) { results_[slot].perf = perf; }

int Delivery::send(LLMCallState state) {
  int answer = 0;
  {
    Inside inside;
    answer = callback_(results_.data(), userdata_, state);
  }
  spoil();
  if (answer == 2) {
    for (Slot& slot : slots_) std::vector<char>().swap(slot.text);
  }
  for (RKLLMResult& result : results_) result = RKLLMResult{};
  return answer;
}

void Delivery::spoil() {
  for (size_t i = 0; i < results_.size(); ++i) {
    Slot& slot = slots_[i];
    if (results_[i].text != nullptr && !slot.text.empty()) {
      // Long enough to be seen, and ended, so that a late reader gets garbage instead of a crash somewhere else.
      const size_t length = std::min(slot.text.size() - 1, std::max<size_t>(8, std::strlen(slot.text.data())));
      std::memset(slot.text.data(), kSpoilt, length);
      slot.text[length] = '\0';
    }
    if (!slot.rows.empty()) {
      std::memset(static_cast<void*>(slot.rows.data()), 0xFF, slot.rows.size() * sizeof(float));
      std::vector<float>().swap(slot.rows);
    }
  }
  std::memset(static_cast<void*>(results_.data()), kSpoilt, results_.size() * sizeof(RKLLMResult));
}

}  // namespace standin
