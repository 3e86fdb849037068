// What choosing a token does to all logits of a large vocabulary.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rkk {

// weights[i] = e^((logits[i] - largest logit) / temperature), in double.
void weigh_logits(const float* logits, double* weights, ptrdiff_t count, double temperature);

// Write the indices of the `wanted` largest values, largest first, the lower index first among equals.
// wanted <= count. No value may be NaN.
template <typename Value>
void find_largest(const Value* values, ptrdiff_t count, ptrdiff_t wanted, int64_t* indices);

}  // namespace rkk
