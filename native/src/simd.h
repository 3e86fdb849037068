// Vectors of floats: 8 lanes with AVX2, 4 with NEON, 16 with AVX-512 in files that ask for it by RKK_WIDE. Compilers'
// vector types carry the arithmetic; only what they lack (horizontal sums, half precision) is said in intrinsics.
#pragma once

#include <cstdint>
#include <cstring>

#include "half.h"

#if defined(RKK_WIDE)
#include <immintrin.h>
#define RKK_LANES 16
#define RKK_VECTORS avx512
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define RKK_LANES 8
#define RKK_VECTORS avx2
#elif defined(__aarch64__)
#include <arm_neon.h>
#define RKK_LANES 4
#define RKK_VECTORS neon
#else
#error "these kernels need AVX2 with FMA and F16C, or aarch64"
#endif

// Files for different vectors become one library: what is inline here must not have one name in all.
namespace rkk {
inline namespace RKK_VECTORS {

constexpr int kLanes = RKK_LANES;
typedef float Floats __attribute__((vector_size(4 * RKK_LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * RKK_LANES)));

inline Floats all(float value) {
  return value - Floats{};
}

inline Floats load(const float* from) {
  Floats result;
  std::memcpy(&result, from, sizeof result);
  return result;
}

inline void store(float* to, Floats value) {
  std::memcpy(to, &value, sizeof value);
}

#if RKK_LANES == 16
inline __m256 halves_added(Floats value) {
  return _mm256_add_ps(_mm512_castps512_ps256((__m512)value), _mm512_extractf32x8_ps((__m512)value, 1));
}
#endif

inline float sum(Floats value) {
#if RKK_LANES == 16
  return _mm512_reduce_add_ps((__m512)value);
#elif RKK_LANES == 8
  __m128 half = _mm_add_ps(_mm256_castps256_ps128((__m256)value), _mm256_extractf128_ps((__m256)value, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
#else
  return vaddvq_f32((float32x4_t)value);
#endif
}

// Write the sums of four vectors to four floats: with fewer steps than four times `sum`.
inline void sum_each(Floats a, Floats b, Floats c, Floats d, float* to) {
#if RKK_LANES == 16
  const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(halves_added(a), halves_added(b)),
                                      _mm256_hadd_ps(halves_added(c), halves_added(d)));
  _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
#elif RKK_LANES == 8
  const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps((__m256)a, (__m256)b), _mm256_hadd_ps((__m256)c, (__m256)d));
  _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
#else
  vst1q_f32(to, vpaddq_f32(vpaddq_f32((float32x4_t)a, (float32x4_t)b), vpaddq_f32((float32x4_t)c, (float32x4_t)d)));
#endif
}

inline Floats load(const Half* from) {
#if RKK_LANES == 16
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif RKK_LANES == 8
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  return (Floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&from->bits)));
#endif
}

// Rounds to nearest, ties to even; what is beyond the range of a half becomes infinity, as in IEEE 754.
inline void store(Half* to, Floats value) {
#if RKK_LANES == 16
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif RKK_LANES == 8
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  vst1_u16(&to->bits, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)value)));
#endif
}

inline Floats select(Ints mask, Floats yes, Floats no) {
  return (Floats)(((Ints)yes & mask) | ((Ints)no & ~mask));
}

inline Floats larger(Floats a, Floats b) {
  return select(a > b, a, b);
}

// A vector as rows of four lanes: the largest, or the sum, of each column of them, in every row.
inline Floats largest_of_rows(Floats value) {
#if RKK_LANES == 16
  value = larger(value, (Floats)_mm512_shuffle_f32x4((__m512)value, (__m512)value, 0b01001110));
  return larger(value, (Floats)_mm512_shuffle_f32x4((__m512)value, (__m512)value, 0b10110001));
#elif RKK_LANES == 8
  return larger(value, (Floats)_mm256_permute2f128_ps((__m256)value, (__m256)value, 1));
#else
  return value;
#endif
}

inline Floats sum_of_rows(Floats value) {
#if RKK_LANES == 16
  value += (Floats)_mm512_shuffle_f32x4((__m512)value, (__m512)value, 0b01001110);
  return value + (Floats)_mm512_shuffle_f32x4((__m512)value, (__m512)value, 0b10110001);
#elif RKK_LANES == 8
  return value + (Floats)_mm256_permute2f128_ps((__m256)value, (__m256)value, 1);
#else
  return value;
#endif
}

inline float largest(Floats value) {
  float lanes[kLanes];
  store(lanes, value);
  float result = lanes[0];
  for (int i = 1; i < kLanes; ++i) result = lanes[i] > result ? lanes[i] : result;
  return result;
}

// e^x to two units in the last place for x <= 88, 0 below -87 (where a float's e^x leaves the normal range). NaN stays
// NaN, whatever its other bits are.
// x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 is in two parts so that r is exact (Cody and Waite); the polynomial
// is the Taylor series of e^r to the 7th power, whose rest is below 2^-25 there.
inline Floats exp(Floats x) {
  const Floats lowest = all(-87.0f);
  const Ints tiny = x < lowest;
  x = select(tiny, lowest, x);
  const Floats magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const Floats shifted = x * all(1.44269504088896341f) + magic;
  const Floats n = shifted - magic;
  Floats r = x - n * all(0.693359375f);
  r = r + n * all(2.12194440e-4f);
  Floats p = all(1.0f / 5040);
  p = p * r + all(1.0f / 720);
  p = p * r + all(1.0f / 120);
  p = p * r + all(1.0f / 24);
  p = p * r + all(1.0f / 6);
  p = p * r + all(0.5f);
  p = p * r + all(1.0f);
  p = p * r + all(1.0f);
  const Ints exponent = ((Ints)shifted << 23);
  return select(x == x, select(tiny, Floats{}, (Floats)((Ints)p + exponent)), x);
}

inline Floats sigmoid(Floats x) {
  const Floats e = exp(select(x < Floats{}, x, -x));  // of -|x|, which cannot overflow
  const Floats one = all(1.0f);
  return select(x < Floats{}, e / (one + e), one / (one + e));
}

}  // namespace RKK_VECTORS
}  // namespace rkk
