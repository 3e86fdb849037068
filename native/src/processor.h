// Whether this processor has what the kernels were compiled for.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace rkk {

// AVX2, FMA and F16C, and a system that keeps their registers. Asked of the processor itself (Intel's manual,
// volume 2, CPUID): zig's runtime library answers __builtin_cpu_supports with no whatever is there.
inline bool processor_suffices() {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
  constexpr unsigned kFma = 1u << 12, kSaves = 1u << 27, kAvx = 1u << 28, kF16c = 1u << 29;
  constexpr unsigned kNeeded = kFma | kSaves | kAvx | kF16c;
  if ((c & kNeeded) != kNeeded) return false;
  unsigned low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned kRegisters = 6;  // those of SSE and of AVX
  if ((low & kRegisters) != kRegisters) return false;
  constexpr unsigned kAvx2 = 1u << 5;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & kAvx2);
#else
  return true;
#endif
}

}  // namespace rkk
