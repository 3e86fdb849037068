#include "threads.h"

#include <unistd.h>

#include <chrono>

namespace rkk {
namespace {

// How long a helper looks for the next round: what lies between two rounds of one token, mostly.
constexpr std::chrono::microseconds kLook{100};
constexpr int kPauses = 16;  // between two looks at the clock

constexpr uint64_t kOpen = uint64_t{1} << 31;
constexpr uint64_t kHelpers = kOpen - 1;
constexpr int kRound = 32;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("yield");
#endif
}

}  // namespace

Threads::Threads(int count) : process_(getpid()) {
  try {
    for (int thread = 1; thread < count; ++thread) helpers_.emplace_back([this, thread] { help(thread); });
  } catch (...) {  // no more to be had: those that run must end first
    end();
    throw;
  }
}

Threads::~Threads() {
  if (getpid() != process_) {  // a fork has none of them, and to join or detach such a thread ends the process
    new std::vector<std::thread>(std::move(helpers_));
    return;
  }
  end();
}

void Threads::end() {
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
  const uint32_t round = round_.load(std::memory_order_relaxed) + 1;
  state_.store((static_cast<uint64_t>(round) << kRound) | kOpen, std::memory_order_release);
  round_.store(round, std::memory_order_release);
  round_.notify_all();
  work(0);
  uint64_t state = state_.fetch_and(~kOpen, std::memory_order_acq_rel);
  while (state & kHelpers) {  // each has a task in hand, the last of the round
    pause();
    state = state_.load(std::memory_order_acquire);
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
    auto until = std::chrono::steady_clock::now() + kLook;
    while (round_.load(std::memory_order_acquire) == seen) {
      for (int i = 0; i < kPauses; ++i) pause();
      if (std::chrono::steady_clock::now() < until) continue;
      round_.wait(seen, std::memory_order_acquire);
      break;
    }
    seen = round_.load(std::memory_order_acquire);
    if (ending_.load()) return;
    uint64_t state = state_.load(std::memory_order_acquire);
    while ((state & kOpen) != 0 &&
           !state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
    }
    if ((state & kOpen) == 0) continue;  // it came too late
    work(thread);
    state_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

}  // namespace rkk
