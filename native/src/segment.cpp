#include "segment.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "rows.h"
#include "simd.h"

namespace rkk {

// A vector rounded to 8 bits in blocks, in the forms the products read. Blocks are those of the values; of 4-bit
// products the even elements of a block come first, as they lie in the lower halves of the bytes.
struct Segment::Rounded {
  std::vector<int8_t> plain;    // (blocks, 32)
  std::vector<int8_t> parted;   // (blocks, 32), even elements first
  std::vector<float> scales;    // (blocks)
  std::vector<float> sums;      // (blocks), of the vector itself

  explicit Rounded(int size)
      : plain(size), parted(size), scales(size / kBlock), sums(size / kBlock) {}

  void round(const float* x, int size) {
    for (int block = 0; block < size / kBlock; ++block, x += kBlock) {
      Floats sizes{}, total{};
      for (int i = 0; i < kBlock; i += kLanes) {
        const Floats v = load(x + i);
        sizes = larger(sizes, larger(v, -v));
        total += v;
      }
      const float highest = largest(sizes);
      const float inverse = highest > 0 ? 127.0f / highest : 0.0f;
      sums[block] = sum(total);
      // The comparisons above lose a NaN, and rounding makes a number of it: only the sum still tells.
      scales[block] = std::isfinite(sums[block]) ? highest / 127.0f : std::numeric_limits<float>::quiet_NaN();
      const Floats magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
      int32_t whole[kBlock];
      for (int i = 0; i < kBlock; i += kLanes) {
        const Ints value = (Ints)(load(x + i) * all(inverse) + magic) - (Ints)magic;
        std::memcpy(whole + i, &value, sizeof value);
      }
      int8_t* to = plain.data() + block * kBlock;
      int8_t* apart = parted.data() + block * kBlock;
      for (int i = 0; i < kBlock; ++i) to[i] = static_cast<int8_t>(whole[i]);
      for (int i = 0; i < kBlock / 2; ++i) {
        apart[i] = static_cast<int8_t>(whole[2 * i]);
        apart[i + kBlock / 2] = static_cast<int8_t>(whole[2 * i + 1]);
      }
    }
  }
};

namespace {

constexpr int kParts = 2;     // of a product, for each thread: few, since a long run of memory is read faster
constexpr int kTogether = 4;  // rows at once
constexpr int kAhead = 8;  // rows to fetch beforehand

// The integer product of a block of one row, in lanes that add up to it.
#if RKK_LANES == 8

using Whole = __m256i;

struct Input4 {
  __m256i x, shift;  // shift: 8 times the sums of x, in the lanes of the product
  explicit Input4(const int8_t* from) {
    x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    shift = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(8), x), _mm256_set1_epi16(1));
  }
  Floats times(const uint8_t* values) const {
    const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
    const __m256i spread = _mm256_set_m128i(_mm_srli_epi16(both, 4), both);
    const __m256i w = _mm256_and_si256(spread, _mm256_set1_epi8(15));
    const __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1));
    return (Floats)_mm256_cvtepi32_ps(_mm256_sub_epi32(sums, shift));
  }
};

struct Input8 {
  __m256i low, high;
  explicit Input8(const int8_t* from) {
    low = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    high = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16)));
  }
  Floats times(const uint8_t* values) const {
    const __m128i turn = _mm_set1_epi8(static_cast<char>(128));
    const auto half = [&](int at) {
      const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values + at));
      return _mm256_cvtepi8_epi16(_mm_xor_si128(raw, turn));
    };
    const __m256i sums = _mm256_add_epi32(_mm256_madd_epi16(half(0), low), _mm256_madd_epi16(half(16), high));
    return (Floats)_mm256_cvtepi32_ps(sums);
  }
};

#else

struct Input4 {
  int8x16_t even, odd;
  explicit Input4(const int8_t* from) : even(vld1q_s8(from)), odd(vld1q_s8(from + 16)) {}
  Floats times(const uint8_t* values) const {
    const uint8x16_t both = vld1q_u8(values);
    const int8x16_t eight = vdupq_n_s8(8);
    const int8x16_t low = vsubq_s8(vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15))), eight);
    const int8x16_t high = vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8(both, 4)), eight);
    int16x8_t sums = vmull_s8(vget_low_s8(low), vget_low_s8(even));  // four products of at most 8 * 127 each
    sums = vmlal_s8(sums, vget_high_s8(low), vget_high_s8(even));
    sums = vmlal_s8(sums, vget_low_s8(high), vget_low_s8(odd));
    sums = vmlal_s8(sums, vget_high_s8(high), vget_high_s8(odd));
    return (Floats)vcvtq_f32_s32(vpaddlq_s16(sums));
  }
};

struct Input8 {
  int8x16_t low, high;
  explicit Input8(const int8_t* from) : low(vld1q_s8(from)), high(vld1q_s8(from + 16)) {}
  Floats times(const uint8_t* values) const {
    const auto part = [](const uint8_t* from, int8x16_t x) {
      const int8x16_t w = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(from), vdupq_n_u8(128)));
      const int32x4_t first = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)));
      return vpadalq_s16(first, vmull_s8(vget_high_s8(w), vget_high_s8(x)));
    };
    return (Floats)vcvtq_f32_s32(vaddq_s32(part(values, low), part(values + 16, high)));
  }
};

#endif

// Rows `first` to `first + Rows` of a product in few bits: each block of the input is read once for all of them.
template <int Rows, typename Input>
void few_bits(const Matrix& m, int first, const int8_t* x, const float* scales, const float* sums, float* out) {
  const int blocks = m.inputs / kBlock, bytes = 4 * m.bits;
  const ptrdiff_t row_bytes = static_cast<ptrdiff_t>(blocks) * bytes;
  const auto* values = static_cast<const uint8_t*>(m.values) + first * row_bytes;
  const float* weights = m.scales + static_cast<ptrdiff_t>(first) * blocks;
  Floats totals[Rows] = {};
  for (int block = 0; block < blocks; ++block) {
    // The rows ahead, in their own order: the processor does not see through several rows read at once.
    const uint8_t* ahead = values + kAhead * row_bytes + static_cast<ptrdiff_t>(block) * Rows * bytes;
    for (int line = 0; line < Rows * bytes; line += 64) __builtin_prefetch(ahead + line);
    const Input input(x + block * kBlock);
    for (int r = 0; r < Rows; ++r) {
      const Floats whole = input.times(values + r * row_bytes + static_cast<ptrdiff_t>(block) * bytes);
      totals[r] += whole * all(weights[static_cast<ptrdiff_t>(r) * blocks + block] * scales[block]);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    float rest = 0;
    if (m.offsets != nullptr) {
      const float* offsets = m.offsets + static_cast<ptrdiff_t>(first + r) * blocks;
      int block = 0;
      for (; block + kLanes <= blocks; block += kLanes) totals[r] += load(offsets + block) * load(sums + block);
      for (; block < blocks; ++block) rest += offsets[block] * sums[block];
    }
    out[first + r] = sum(totals[r]) + rest;
  }
}

template <typename Input>
void few_bits(const Matrix& m, int first, int end, const int8_t* x, const float* scales, const float* sums,
              float* out) {
  for (; first + kTogether <= end; first += kTogether)
    few_bits<kTogether, Input>(m, first, x, scales, sums, out);
  for (; first < end; ++first) few_bits<1, Input>(m, first, x, scales, sums, out);
}

void in_floats(const Matrix& m, int first, int end, const float* x, float* out) {
  for (; first < end; ++first) {
    const float* row = static_cast<const float*>(m.values) + static_cast<ptrdiff_t>(first) * m.inputs;
    Floats totals{};
    int i = 0;
    for (; i + kLanes <= m.inputs; i += kLanes) totals += load(row + i) * load(x + i);
    float total = sum(totals);
    for (; i < m.inputs; ++i) total += row[i] * x[i];
    out[first] = total;
  }
}

void activate(const Step& step) {
  const float kSlope = std::sqrt(2.0f / 3.14159265358979f);
  for (int i = 0; i < step.size; i += kLanes) {
    const int here = std::min(kLanes, step.size - i);
    float room[kLanes] = {};
    std::copy(step.x + i, step.x + i + here, room);
    const Floats x = load(room);
    if (step.what == Operator::kSilu) {
      store(room, x * sigmoid(x));
    } else {  // tanh(a) = 2 sigmoid(2 a) - 1, so that 0.5 (1 + tanh(a)) = sigmoid(2 a)
      const Floats inner = (x + x * x * x * all(0.044715f)) * all(2.0f * kSlope);
      store(room, x * sigmoid(inner));
    }
    std::copy(room, room + here, step.out + i);
  }
}

void convolve(const Step& step) {
  const float* last = step.kernel + static_cast<ptrdiff_t>(step.taps - 1) * step.size;
  for (int i = 0; i < step.size; ++i) {
    float total = 0;
    for (int tap = 0; tap + 1 < step.taps; ++tap) {
      const ptrdiff_t at = static_cast<ptrdiff_t>(tap) * step.size + i;
      total += step.y[at] * step.kernel[at];
    }
    step.out[i] = total + step.x[i] * last[i];
  }
}

void compute(const Step& step) {
  switch (step.what) {
    case Operator::kNorm:
      std::copy(step.x, step.x + step.size, step.out);
      rms_norm(step.out, 1, step.size, step.y, step.eps);
      break;
    case Operator::kAdd:
      for (int i = 0; i < step.size; ++i) step.out[i] = step.x[i] + step.y[i];
      break;
    case Operator::kMultiply:
      for (int i = 0; i < step.size; ++i) step.out[i] = step.x[i] * step.y[i];
      break;
    case Operator::kConv:
      convolve(step);
      break;
    default:
      activate(step);
  }
}

}  // namespace

Segment::Segment(std::vector<Step> steps) : steps_(std::move(steps)) {
  int largest = 0;
  for (const Step& step : steps_)
    if (step.what == Operator::kProduct && step.matrix.bits != 32) largest = std::max(largest, step.size);
  rounded_ = std::make_unique<Rounded>(largest);
}

Segment::~Segment() = default;

void Segment::run(Threads& threads) {
  for (size_t at = 0; at < steps_.size();) {
    const Step& first = steps_[at];
    if (first.what != Operator::kProduct) {
      compute(first);
      ++at;
      continue;
    }
    size_t end = at;  // products of the same input, none of which writes it
    const int parts = threads.count() == 1 ? 1 : kParts * threads.count();
    bool few = false;
    for (; end < steps_.size() && steps_[end].what == Operator::kProduct && steps_[end].x == first.x &&
           steps_[end].size == first.size;
         ++end)
      few = few || steps_[end].matrix.bits != 32;
    if (few) rounded_->round(first.x, first.size);
    threads.run(static_cast<int>(end - at) * parts, [&](int task, int) {
      const Step& step = steps_[at + task / parts];
      const int rows = ((step.matrix.outputs + parts - 1) / parts + kTogether - 1) / kTogether * kTogether;
      const int from = std::min(task % parts * rows, step.matrix.outputs);
      const int to = std::min(from + rows, step.matrix.outputs);
      const Rounded& x = *rounded_;
      if (step.matrix.bits == 4)
        few_bits<Input4>(step.matrix, from, to, x.parted.data(), x.scales.data(), x.sums.data(), step.out);
      else if (step.matrix.bits == 8)
        few_bits<Input8>(step.matrix, from, to, x.plain.data(), x.scales.data(), x.sums.data(), step.out);
      else
        in_floats(step.matrix, from, to, step.x, step.out);
    });
    at = end;
  }
}

}  // namespace rkk
