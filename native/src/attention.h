// Causal attention with grouped queries, in float32, over a cache of floats or halves.
//
// Axes: T queries, S keys, H query heads, K key/value heads, G = H / K queries a key head, D head_dim.
#pragma once

#include <cstddef>

#include "half.h"
#include "threads.h"

namespace rkk {

template <typename Element>
struct Attention {
  const float* q;         // (T, H, D), the rows `q_stride` apart, heads D apart
  const Element* keys;    // (K, S, D): heads `head_stride` apart, rows D apart
  const Element* values;  // as keys
  float* out;             // (T, H, D), contiguous
  ptrdiff_t q_stride;     // in elements
  ptrdiff_t head_stride;  // in elements
  int tokens, heads, kv_heads, head_dim, length;
  int window;     // how many of the latest keys a query sees, its own included; 0: all
  float scale;    // factor of q . k
  float softcap;  // c in c * tanh(score / c); 0: none
  int lanes;      // of the vectors for one token, where they fill head_dim: processor_lanes or kFewestLanes
};

// The queries stand at the last T of the S positions. head_dim must be a multiple of 8, at most 512.
template <typename Element>
void attend(const Attention<Element>& a, Threads& threads);

}  // namespace rkk
