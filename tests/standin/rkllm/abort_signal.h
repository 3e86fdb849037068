// An abort on its way to the run: asked for from another thread, effective some time later, as on the NPU.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace standin {

class AbortSignal {
 public:
  void clear();
  void request(double after_ms);
  bool due() const;

  // Waits; returns at once when the abort is due. Returns whether it is.
  bool wait_us(double us);

 private:
  std::atomic<int64_t> at_ns_{0};  // 0: none
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace standin
