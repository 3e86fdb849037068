// A segment for one token: steps over vectors, the matrices of its products in 4 or 8 bits or in floats.
//
// A product in few bits rounds its input to 8 bits, in blocks of 32 that share a scale, as onnxruntime's
// MatMulNBits and llama.cpp do. Products of one input that follow one another share this and a round of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "threads.h"

namespace rkk {

constexpr int kBlock = 32;  // inputs that share a scale

// (outputs, inputs). bits 4 or 8: values are bytes, (outputs, inputs / 32, 4 * bits), of 4 bits two in a byte, the
// first in the lower half; scales and offsets (outputs, inputs / 32), offsets may be null. A weight is
// scale * (value - 2^(bits - 1)) + offset. bits 32: values are floats. The memory is the caller's.
struct Matrix {
  int bits, outputs, inputs;
  const void* values;
  const float* scales;
  const float* offsets;
};

enum class Operator { kNorm, kProduct, kAdd, kMultiply, kSilu, kGelu, kConv };

// out = operator(x, y). x has `size` values and, but for a product, so has out. norm: y is the weight. conv: y is
// the state, (taps - 1, size), and kernel (taps, size). All memory is the caller's.
struct Step {
  Operator what;
  int size;
  const float* x;
  const float* y;
  float* out;
  float eps;
  int taps;
  const float* kernel;
  Matrix matrix;
};

class Segment {
 public:
  explicit Segment(std::vector<Step> steps);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // Compute all steps. From one thread at a time.
  void run(Threads& threads);

 private:
  struct Rounded;
  std::vector<Step> steps_;
  std::unique_ptr<Rounded> rounded_;
};

}  // namespace rkk
