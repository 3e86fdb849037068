// A few threads that share out numbered tasks. Made once. A helper that finds nothing to do looks for it a little
// while and then sleeps, since others (onnxruntime's threads, the NPU driver's) want the cores, too.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace rkk {

class Threads {
 public:
  // count: how many threads work, the caller included; at least 1. Throws where not all can be had.
  explicit Threads(int count);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int count() const { return static_cast<int>(helpers_.size()) + 1; }

  // Call task(i, thread) once for each i below `tasks`, thread being below count(); return when all are done. Does
  // not wait for helpers that come too late to find a task. From one thread at a time. Tasks may not throw.
  void run(int tasks, const std::function<void(int, int)>& task);

 private:
  void end();
  void help(int thread);
  void work(int thread);

  // What changes with every task has a cache line of its own.
  alignas(64) std::atomic<int> next_{0};
  // The number of the round, one bit that says that it is open to helpers, and how many take part.
  alignas(64) std::atomic<uint64_t> state_{0};
  // The number of the round again, to sleep on: a futex has 32 bits.
  alignas(64) std::atomic<uint32_t> round_{0};
  std::atomic<bool> ending_{false};
  alignas(64) const std::function<void(int, int)>* task_ = nullptr;
  int tasks_ = 0;
  std::vector<std::thread> helpers_;
  const int process_;  // that the helpers are in
};

}  // namespace rkk
