// What is done to rows between the products: RMS norm, rotation, gates, half precision.
#pragma once

#include <cstddef>

#include "simd.h"

namespace rkk {

// Each of `rows` rows of `size` floats, in place: x / sqrt(mean(x^2) + eps) * weight.
void rms_norm(float* x, ptrdiff_t rows, int size, const float* weight, float eps);

// Rotate pairs of each (T, H, D) row in place. cos, sin: (T, pairs). Half: dimension i pairs with i + pairs;
// interleaved: 2 i with 2 i + 1. Dimensions from 2 * pairs on stay as they are.
void rotate(float* x, int tokens, int heads, int head_dim, const float* cos, const float* sin, int pairs,
            bool interleaved);

// x[i] *= sigmoid(gate[i / each]) for i below count * each.
void apply_gate(float* x, const float* gate, ptrdiff_t count, int each);

// Write T rows of K heads of floats into a cache: row t of head h from `from + t * row_stride + h * head_stride` to
// `to + h * to_head_stride + t * size`, each of `size` values.
template <typename Element>
void write_rows(const float* from, ptrdiff_t row_stride, ptrdiff_t head_stride, int rows, int heads, int size,
                Element* to, ptrdiff_t to_head_stride);

void to_half(const float* from, Half* to, ptrdiff_t count);
void from_half(const Half* from, float* to, ptrdiff_t count);

}  // namespace rkk
