#include "abort_signal.h"

#include "clock.h"

namespace standin {

void AbortSignal::clear() { at_ns_ = 0; }

void AbortSignal::request(double after_ms) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    at_ns_ = now_ns() + static_cast<int64_t>(after_ms * 1e6) + 1;
  }
  changed_.notify_all();
}

bool AbortSignal::due() const {
  const int64_t at = at_ns_.load(std::memory_order_relaxed);
  return at != 0 && now_ns() >= at;
}

bool AbortSignal::wait_us(double us) {
  if (us <= 0) return due();
  using Clock = std::chrono::steady_clock;
  const Clock::time_point until = Clock::now() + std::chrono::nanoseconds(static_cast<int64_t>(us * 1e3));
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    const int64_t at = at_ns_;
    const Clock::time_point abort_at{std::chrono::nanoseconds(at)};
    const Clock::time_point wake = at != 0 && abort_at < until ? abort_at : until;
    if (Clock::now() >= wake) return due();
    changed_.wait_until(lock, wake);
  }
}

}  // namespace standin
