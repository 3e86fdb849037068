#include "attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "decode.h"
#include "prefill.h"
#include "processor.h"

// Both ways keep a running maximum and a running sum (Milakov and Gimelshein, arXiv 1805.02867), so that scores
// exist for one block of keys at a time, which stays in the nearest cache (Dao et al., arXiv 2205.14135).
//
// One token is bound by reading the cache: a thread reads long stretches of it, once for all queries of a head. Few
// heads are split into parts, which are joined.

namespace rkk {
namespace {

constexpr int kKeysOfPart = 128;  // fewer are not worth another thread

// Memory for the (kQueries, D) floats of a part, where head_dim is a multiple of 8, is so many of these.
struct alignas(kApart) Line {
  float floats[kApart / sizeof(float)];
};

template <typename Element>
using AttendKeys = decltype(&attend_keys<kFewestLanes, Element>);

// The inner loops for so many lanes, or for the fewest where head_dim is not a multiple of them.
template <typename Element>
AttendKeys<Element> loops(int head_dim, int lanes) {
#if defined(__x86_64__)
  if (lanes == 16 && head_dim % 16 == 0) return attend_keys<16, Element>;
#endif
  (void)head_dim, (void)lanes;
  return attend_keys<kFewestLanes, Element>;
}

template <typename Element>
void attend_one(const Attention<Element>& a, Threads& threads) {
  const int queries = a.heads / a.kv_heads, groups = (queries + kQueries - 1) / kQueries;
  const int seen = a.window > 0 ? std::min(a.window, a.length) : a.length;
  const ptrdiff_t first = static_cast<ptrdiff_t>(a.length - seen) * a.head_dim;
  const int wanted = (2 * threads.count() + a.kv_heads - 1) / a.kv_heads;
  const int parts = threads.count() == 1 ? 1 : std::clamp(seen / kKeysOfPart, 1, wanted);
  const int step = (seen + parts - 1) / parts;
  const AttendKeys<Element> attend_stretch = loops<Element>(a.head_dim, a.lanes);
  std::vector<float> q(a.q, a.q + a.heads * a.head_dim);
  for (float& value : q) value *= a.scale;
  std::vector<Part> done(static_cast<size_t>(a.kv_heads) * parts * groups);
  const size_t lines = kQueries * a.head_dim * sizeof(float) / sizeof(Line);
  std::vector<Line> mixed(done.size() * lines);
  for (size_t i = 0; i < done.size(); ++i) done[i].mixed = mixed[i * lines].floats;
  threads.run(a.kv_heads * parts, [&](int task, int) {
    const int head = task / parts, start = task % parts * step, count = std::min(step, seen - start);
    const ptrdiff_t at = head * a.head_stride + first + static_cast<ptrdiff_t>(start) * a.head_dim;
    attend_stretch(a, q.data() + head * queries * a.head_dim, queries, a.keys + at, a.values + at, count,
                   &done[static_cast<size_t>(task) * groups]);
  });
  for (int head = 0; head < a.heads; ++head) {
    const int group = head % queries / kQueries, g = head % queries % kQueries;
    const Part* mine = &done[static_cast<size_t>(head / queries) * parts * groups + group];
    float maximum = -std::numeric_limits<float>::infinity(), total = 0;
    for (int part = 0; part < parts; ++part) maximum = std::max(maximum, mine[part * groups].maximum[g]);
    float* out = a.out + head * a.head_dim;
    std::fill(out, out + a.head_dim, 0.0f);
    for (int part = 0; part < parts; ++part) {
      const Part& one = mine[part * groups];
      const float share = std::exp(one.maximum[g] - maximum);
      total += share * one.total[g];
      for (int d = 0; d < a.head_dim; ++d) out[d] += share * one.mixed[g * a.head_dim + d];
    }
    for (int d = 0; d < a.head_dim; ++d) out[d] /= total;
  }
}

}  // namespace

template <typename Element>
void attend(const Attention<Element>& a, Threads& threads) {
  if (a.tokens == 1)
    attend_one(a, threads);
  else
    attend_many(a, threads);
}

template void attend(const Attention<float>&, Threads&);
template void attend(const Attention<Half>&, Threads&);

}  // namespace rkk
