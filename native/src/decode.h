// Attention of one token over a stretch of keys: the inner loops, for each width of vectors that a processor may have.
#pragma once

#include <cstddef>

#include "attention.h"

namespace rkk {

constexpr int kQueries = 4;   // queries that read a key together: more would not fit into registers
constexpr int kMaxLanes = 16;
constexpr int kApart = 128;   // what threads write lies so far apart: lines of memory are fetched in pairs

// What a stretch of keys gives for queries that read it together; stretches are joined by their maxima. Two threads
// that wrote to one line of memory with every block would lose a quarter of their time to it.
struct alignas(kApart) Part {
  float maximum[kMaxLanes];  // of query i in lane i; again and again in the lanes from kQueries on
  float total[kMaxLanes];
  float* mixed;              // (kQueries, D), of zeros at first
};

// Take `count` keys and values of one head into a part for each kQueries of its `queries` queries. q: (queries, D),
// scaled. Lanes: of what this is compiled for; head_dim must be a multiple of it, or of 8 if it is less.
template <int Lanes, typename Element>
void attend_keys(const Attention<Element>& a, const float* q, int queries, const Element* keys, const Element* values,
                 int count, Part* parts);

}  // namespace rkk
