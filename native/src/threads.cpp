#include "threads.h"

namespace rkk {
namespace {

constexpr int kSpins = 2000;  // some 20 us: about what waking a sleeping thread costs

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("yield");
#endif
}

}  // namespace

Threads::Threads(int count) {
  for (int thread = 1; thread < count; ++thread) helpers_.emplace_back([this, thread] { help(thread); });
}

Threads::~Threads() {
  ending_.store(true);
  round_.fetch_add(1);
  round_.notify_all();
  for (auto& helper : helpers_) helper.join();
}

void Threads::run(int tasks, const std::function<void(int, int)>& task) {
  if (helpers_.empty() || tasks < 2) {
    for (int i = 0; i < tasks; ++i) task(i, 0);
    return;
  }
  task_ = &task;
  tasks_ = tasks;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(helpers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  work(0);
  for (int spin = 0; busy_.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < kSpins) {
      pause();
      continue;
    }
    const int left = busy_.load(std::memory_order_acquire);
    if (left != 0) busy_.wait(left, std::memory_order_acquire);
  }
}

void Threads::work(int thread) {
  for (;;) {
    const int i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= tasks_) return;
    (*task_)(i, thread);
  }
}

void Threads::help(int thread) {
  uint32_t seen = 0;
  for (;;) {
    for (int spin = 0; round_.load(std::memory_order_acquire) == seen && spin < kSpins; ++spin) pause();
    round_.wait(seen, std::memory_order_acquire);
    ++seen;  // every helper takes part in every round: run() does not return before all have left it
    if (ending_.load()) return;
    work(thread);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_all();
  }
}

}  // namespace rkk
