// What of the vectors that the kernels are compiled for this processor has.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace rkk {

#if defined(__x86_64__)
// Whether the system keeps such registers for each thread. Only where CPUID says that it keeps any.
inline bool system_keeps(unsigned registers) {
  unsigned low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & registers) == registers;
}
#endif

// AVX2, FMA and F16C, and a system that keeps their registers. Asked of the processor itself (Intel's manual,
// volume 2, CPUID): zig's runtime library answers __builtin_cpu_supports with no whatever is there.
inline bool processor_suffices() {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
  constexpr unsigned kFma = 1u << 12, kSaves = 1u << 27, kAvx = 1u << 28, kF16c = 1u << 29;
  constexpr unsigned kNeeded = kFma | kSaves | kAvx | kF16c;
  if ((c & kNeeded) != kNeeded) return false;
  constexpr unsigned kRegisters = 6;  // those of SSE and of AVX
  if (!system_keeps(kRegisters)) return false;
  constexpr unsigned kAvx2 = 1u << 5;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & kAvx2);
#else
  return true;
#endif
}

#if defined(__x86_64__)
constexpr int kFewestLanes = 8;
#else
constexpr int kFewestLanes = 4;
#endif

// How many floats the widest vectors hold that this processor has; only where it suffices. Slow: virtual machines look
// each time.
inline int processor_lanes() {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  constexpr unsigned kRegisters = 0xe6;  // SSE's, AVX's, and AVX-512's masks, wider halves and further registers
  constexpr unsigned kAvx512 = 1u << 16 | 1u << 17;  // F and DQ
  const bool wide = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & kAvx512) == kAvx512 && system_keeps(kRegisters);
  return wide ? 16 : kFewestLanes;
#else
  return kFewestLanes;
#endif
}

}  // namespace rkk
