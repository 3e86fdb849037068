#include "vocabulary.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "simd.h"

namespace rkk {
namespace {

typedef double Doubles __attribute__((vector_size(8 * (RKK_LANES / 2))));
typedef int64_t Longs __attribute__((vector_size(8 * (RKK_LANES / 2))));
constexpr int kDoubles = RKK_LANES / 2;

// e^x in double for x <= 0, as exp in simd.h is in float: ln 2 in two parts, the Taylor series to the 13th power
// (its rest is below 2^-56 for |r| <= ln 2 / 2), 0 where e^x leaves the normal range.
inline Doubles exp_negative(Doubles x) {
  const Doubles zero{};
  const Longs tiny = x < zero - 708.0;
  x = (Doubles)(((Longs)x & ~tiny) | ((Longs)(zero - 708.0) & tiny));
  const Doubles magic = zero + 6755399441055744.0;  // 1.5 * 2^52
  const Doubles shifted = x * 1.44269504088896340736 + magic;
  const Doubles n = shifted - magic;
  Doubles r = x - n * 0.693147180369123816490;
  r = r - n * 1.90821492927058770002e-10;
  Doubles p = zero + 1.0 / 6227020800;
  for (const double factor : {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320,
                              1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0})
    p = p * r + factor;
  return (Doubles)(((Longs)p + ((Longs)shifted << 52)) & ~tiny);
}

// e^((logits[i] - top) / temperature) for kDoubles logits
inline Doubles weight(const float* logits, double top, double temperature) {
  Doubles x;
  for (int lane = 0; lane < kDoubles; ++lane) x[lane] = logits[lane];
  return exp_negative((x - top) / temperature);
}

constexpr int kGlance = 64;  // values looked at together

template <typename Value>
bool any_above(const Value* values, Value bar) {
  int found = 0;
  for (int i = 0; i < kGlance; ++i) found |= values[i] > bar;
  return found != 0;
}

}  // namespace

void weigh_logits(const float* logits, double* weights, ptrdiff_t count, double temperature) {
  float top = logits[0];
  for (ptrdiff_t i = 1; i < count; ++i) top = std::max(top, logits[i]);
  ptrdiff_t i = 0;
  for (; i + kDoubles <= count; i += kDoubles) {
    const Doubles here = weight(logits + i, top, temperature);
    std::memcpy(weights + i, &here, sizeof here);
  }
  if (i < count) {
    float rest[kDoubles];
    std::fill(rest, rest + kDoubles, top);
    std::copy(logits + i, logits + count, rest);
    const Doubles here = weight(rest, top, temperature);
    for (int lane = 0; i + lane < count; ++lane) weights[i + lane] = here[lane];
  }
}

template <typename Value>
void find_largest(const Value* values, ptrdiff_t count, ptrdiff_t wanted, int64_t* indices) {
  if (wanted <= 0) return;
  const auto before = [values](int64_t a, int64_t b) {
    return values[a] > values[b] || (values[a] == values[b] && a < b);
  };
  // Candidates are gathered up to a few times what is wanted, then cut back; the worst that is kept is the bar
  // which the rest of the vocabulary mostly fails. An equal value with a higher index loses, so > is enough.
  const size_t room = static_cast<size_t>(std::max<ptrdiff_t>(4 * wanted, 256));
  std::vector<int64_t> kept;
  kept.reserve(room);
  bool cut = false;
  Value bar{};
  for (ptrdiff_t i = 0; i < count; ++i) {
    while (cut && i + kGlance <= count && !any_above(values + i, bar)) i += kGlance;
    if (i == count) break;
    if (cut && !(values[i] > bar)) continue;
    kept.push_back(i);
    if (kept.size() == room) {
      std::nth_element(kept.begin(), kept.begin() + (wanted - 1), kept.end(), before);
      kept.resize(wanted);
      bar = values[kept[wanted - 1]];
      cut = true;
    }
  }
  std::partial_sort(kept.begin(), kept.begin() + wanted, kept.end(), before);
  std::copy(kept.begin(), kept.begin() + wanted, indices);
}

template void find_largest(const float*, ptrdiff_t, ptrdiff_t, int64_t*);
template void find_largest(const double*, ptrdiff_t, ptrdiff_t, int64_t*);

}  // namespace rkk
