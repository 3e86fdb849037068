// What decode.h declares, for the vectors that the including file is compiled for. Nothing here may become a function
// that other files share by name, as the standard library's templates do: it might need a processor that is not there.
#pragma once

#include <float.h>
#include <math.h>

#include "decode.h"
#include "simd.h"

namespace rkk {
namespace {

// What comes next is fetched ahead, in the order of memory, which the processor does not find out by itself where rows
// are read side by side: keys while keys are read and values while values are, so that memory never rests. What is
// beyond the end of memory is not fetched, and does no harm.
constexpr int kKeys = 16;        // keys in a block: values are read by columns, which must not be long
constexpr int kAhead = 6656;     // bytes from the keys read to the keys fetched; 8192 would meet in the same lines
constexpr int kBlocksAhead = 2;  // from the values read to the values fetched
constexpr int kSecondCache = 2;  // where they are fetched to: the first is small
constexpr int kLine = 64;        // bytes of a line of the processor's caches
constexpr bool kManyRegisters = kLanes != 8;  // 32, not 16

// Scores, or weights, of one key for the queries that read it together.
typedef float Row[kQueries];

// scores[j][g] = q[g] . keys[j] for Queries queries and Keys keys; what stands for further queries has no meaning.
template <typename Element, int Queries, int Keys>
void few_products(const float* q, const Element* keys, int head_dim, Row* scores) {
  constexpr int kStep = kLanes * Keys * static_cast<int>(sizeof(Element));
  const char* ahead = reinterpret_cast<const char*>(keys) + kAhead;
  Floats sums[Queries][Keys] = {};
  for (int d = 0, read = 0; d < head_dim; d += kLanes, read += kStep) {
    if (read % kLine == 0)
      for (int line = read; line < read + kStep; line += kLine) __builtin_prefetch(ahead + line, 0, kSecondCache);
    Floats right[Keys];
    for (int j = 0; j < Keys; ++j) right[j] = load(keys + j * head_dim + d);
    for (int g = 0; g < Queries; ++g) {
      const Floats left = load(q + g * head_dim + d);
      for (int j = 0; j < Keys; ++j) sums[g][j] += left * right[j];
    }
  }
  constexpr int kLast = Queries - 1, kSecond = kLast < 1 ? kLast : 1, kThird = kLast < 2 ? kLast : 2;
  for (int j = 0; j < Keys; ++j) sum_each(sums[0][j], sums[kSecond][j], sums[kThird][j], sums[kLast][j], scores[j]);
}

template <typename Element, int Queries>
void dot_products(const float* q, const Element* keys, int count, int head_dim, Row* scores) {
  constexpr int kTogether = Queries > 2 && !kManyRegisters ? 2 : 4;
  int j = 0;
  for (; j + kTogether <= count; j += kTogether) {
    const Element* here = keys + static_cast<ptrdiff_t>(j) * head_dim;
    few_products<Element, Queries, kTogether>(q, here, head_dim, scores + j);
  }
  for (; j < count; ++j)
    few_products<Element, Queries, 1>(q, keys + static_cast<ptrdiff_t>(j) * head_dim, head_dim, scores + j);
}

// Turn scores into weights relative to the maximum so far, each query in a lane of its own (of every row in a vector);
// returns by what everything before has to be multiplied. There is room for as many rows as fill the last vector.
Floats weigh_rows(Row* rows, int count, Floats& maximum, Floats& total) {
  float* scores = rows[0];
  int size = count * kQueries;
  for (; size % kLanes != 0; ++size) scores[size] = -INFINITY;
  Floats highest = maximum;
  for (int i = 0; i < size; i += kLanes) highest = larger(highest, load(scores + i));
  highest = largest_of_rows(highest);
  const Floats before = exp(maximum - highest);
  Floats sums{};
  for (int i = 0; i < size; i += kLanes) {
    const Floats weights = exp(load(scores + i) - highest);
    store(scores + i, weights);
    sums += weights;
  }
  maximum = highest;
  total = total * before + sum_of_rows(sums);
  return before;
}

// mixed[g] = mixed[g] * before[g] + sum over j of weights[j][g] * values[j], for Vectors vectors of columns.
// As many bytes as are read here are fetched from `ahead` on.
template <typename Element, int Queries, int Vectors>
void add_columns(const Row* weights, const Element* values, const char* ahead, int count, int head_dim,
                 Floats before, float* mixed) {
  constexpr int kStep = Vectors * kLanes * static_cast<int>(sizeof(Element));
  Floats sums[Queries][Vectors];
  for (int g = 0; g < Queries; ++g)
    for (int v = 0; v < Vectors; ++v) sums[g][v] = load(mixed + g * head_dim + v * kLanes) * all(before[g]);
  for (int j = 0; j < count; ++j, values += head_dim) {
    if (j * kStep % kLine == 0)
      for (int line = 0; line < kStep; line += kLine) __builtin_prefetch(ahead + j * kStep + line, 0, kSecondCache);
    Floats right[Vectors];
    for (int v = 0; v < Vectors; ++v) right[v] = load(values + v * kLanes);
    for (int g = 0; g < Queries; ++g)
      for (int v = 0; v < Vectors; ++v) sums[g][v] += all(weights[j][g]) * right[v];
  }
  for (int g = 0; g < Queries; ++g)
    for (int v = 0; v < Vectors; ++v) store(mixed + g * head_dim + v * kLanes, sums[g][v]);
}

// Take a block of at most kKeys keys into a part.
template <typename Element, int Queries>
void attend_block(const Attention<Element>& a, const float* q, const Element* keys, const Element* values, int count,
                  Part& part) {
  Row scores[kKeys];
  dot_products<Element, Queries>(q, keys, count, a.head_dim, scores);
  if (a.softcap > 0)
    for (int j = 0; j < count; ++j)
      for (int g = 0; g < Queries; ++g) scores[j][g] = a.softcap * tanhf(scores[j][g] / a.softcap);
  Floats maximum = load(part.maximum), total = load(part.total);
  const Floats before = weigh_rows(scores, count, maximum, total);
  store(part.maximum, maximum);
  store(part.total, total);
  const auto* ahead = reinterpret_cast<const char*>(values + kBlocksAhead * kKeys * a.head_dim);
  constexpr int kWide = kManyRegisters ? 4 : 2;
  int d = 0;
  for (; d + kWide * kLanes <= a.head_dim; d += kWide * kLanes)
    add_columns<Element, Queries, kWide>(scores, values + d, ahead + d * count * sizeof(Element), count, a.head_dim,
                                         before, part.mixed + d);
  for (; d < a.head_dim; d += kLanes)
    add_columns<Element, Queries, 1>(scores, values + d, ahead + d * count * sizeof(Element), count, a.head_dim,
                                     before, part.mixed + d);
}

}  // namespace

template <int Lanes, typename Element>
void attend_keys(const Attention<Element>& a, const float* q, int queries, const Element* keys, const Element* values,
                 int count, Part* parts) {
  static_assert(Lanes == kLanes);
  for (int group = 0; group * kQueries < queries; ++group) {
    store(parts[group].maximum, all(-FLT_MAX));
    store(parts[group].total, Floats{});
  }
  for (int start = 0; start < count; start += kKeys) {
    const ptrdiff_t at = static_cast<ptrdiff_t>(start) * a.head_dim;
    const int here = count - start < kKeys ? count - start : kKeys;
    for (int group = 0; group * kQueries < queries; ++group) {
      const float* left = q + group * kQueries * a.head_dim;
      Part& part = parts[group];
      switch (queries - group * kQueries) {
        case 1: attend_block<Element, 1>(a, left, keys + at, values + at, here, part); break;
        case 2: attend_block<Element, 2>(a, left, keys + at, values + at, here, part); break;
        case 3: attend_block<Element, 3>(a, left, keys + at, values + at, here, part); break;
        default: attend_block<Element, kQueries>(a, left, keys + at, values + at, here, part); break;
      }
    }
  }
}

template void attend_keys<kLanes>(const Attention<float>&, const float*, int, const float*, const float*, int, Part*);
template void attend_keys<kLanes>(const Attention<Half>&, const float*, int, const Half*, const Half*, int, Part*);

}  // namespace rkk
