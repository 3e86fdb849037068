// What the processes of one board share: the NPU, on which one run may go on at a time, and the NPU memory of each IOMMU
// domain. Kept as files in the directory that RKLLM_STANDIN_BOARD names; without it every process is alone on its board.
#pragma once
#include <string>

namespace standin {

// NPU memory of one handle, given back by the destructor (or by the process's death).
class NpuMemory {
 public:
  NpuMemory() = default;
  ~NpuMemory();
  NpuMemory(const NpuMemory&) = delete;
  NpuMemory& operator=(const NpuMemory&) = delete;

  // False when the domain has not so much left.
  bool take(int domain, double mb, double domain_mb);

 private:
  std::string record_;
};

// The turn on the NPU of one run.
class NpuTurn {
 public:
  NpuTurn();
  ~NpuTurn();
  NpuTurn(const NpuTurn&) = delete;
  NpuTurn& operator=(const NpuTurn&) = delete;

  bool granted() const { return granted_; }

 private:
  int file_ = -1;
  bool granted_ = true;
};

}  // namespace standin
