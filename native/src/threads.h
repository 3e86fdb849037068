// A few threads that share out numbered tasks. Made once; idle threads sleep, since others (onnxruntime's, the
// NPU driver's) want the cores between two calls.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace rkk {

class Threads {
 public:
  // count: how many threads work, the caller included; at least 1.
  explicit Threads(int count);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int count() const { return static_cast<int>(helpers_.size()) + 1; }

  // Call task(i, thread) once for each i below `tasks`, thread being below count(); return when all are done.
  // From one thread at a time. Tasks may not throw.
  void run(int tasks, const std::function<void(int, int)>& task);

 private:
  void help(int thread);
  void work(int thread);

  const std::function<void(int, int)>* task_ = nullptr;
  int tasks_ = 0;
  std::atomic<int> next_{0};
  std::atomic<uint32_t> round_{0};
  std::atomic<int> busy_{0};
  std::atomic<bool> ending_{false};
  std::vector<std::thread> helpers_;
};

}  // namespace rkk
