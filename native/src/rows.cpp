#include "rows.h"

#include <cmath>

namespace rkk {
namespace {

float sigmoid(float x) {
  float lanes[kLanes];
  store(lanes, rkk::sigmoid(all(x)));
  return lanes[0];
}

template <typename From, typename To>
void convert(const From* from, To* to, ptrdiff_t count) {
  ptrdiff_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
  if (i == count) return;
  From rest[kLanes] = {};
  To result[kLanes];
  std::memcpy(rest, from + i, (count - i) * sizeof(From));
  store(result, load(rest));
  std::memcpy(to + i, result, (count - i) * sizeof(To));
}

}  // namespace

void rms_norm(float* x, ptrdiff_t rows, int size, const float* weight, float eps) {
  for (ptrdiff_t row = 0; row < rows; ++row, x += size) {
    Floats squares{};
    int i = 0;
    for (; i + kLanes <= size; i += kLanes) squares += load(x + i) * load(x + i);
    float total = sum(squares);
    for (; i < size; ++i) total += x[i] * x[i];
    const float factor = 1.0f / std::sqrt(total / static_cast<float>(size) + eps);
    for (i = 0; i + kLanes <= size; i += kLanes) store(x + i, load(x + i) * all(factor) * load(weight + i));
    for (; i < size; ++i) x[i] = x[i] * factor * weight[i];
  }
}

void rotate(float* x, int tokens, int heads, int head_dim, const float* cos, const float* sin, int pairs,
            bool interleaved) {
  const int step = interleaved ? 2 : 1, apart = interleaved ? 1 : pairs;
  for (int token = 0; token < tokens; ++token, cos += pairs, sin += pairs) {
    for (int head = 0; head < heads; ++head, x += head_dim) {
      int i = 0;
      if (!interleaved)
        for (; i + kLanes <= pairs; i += kLanes) {
          const Floats a = load(x + i), b = load(x + i + pairs), c = load(cos + i), s = load(sin + i);
          store(x + i, a * c - b * s);
          store(x + i + pairs, b * c + a * s);
        }
      for (; i < pairs; ++i) {
        float& a = x[i * step];
        float& b = x[i * step + apart];
        const float turned = a * cos[i] - b * sin[i];
        b = b * cos[i] + a * sin[i];
        a = turned;
      }
    }
  }
}

void apply_gate(float* x, const float* gate, ptrdiff_t count, int each) {
  if (each == 1) {
    ptrdiff_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store(x + i, load(x + i) * sigmoid(load(gate + i)));
    for (; i < count; ++i) x[i] *= sigmoid(gate[i]);
    return;
  }
  for (ptrdiff_t row = 0; row < count; ++row, x += each) {
    const float factor = sigmoid(gate[row]);
    for (int i = 0; i < each; ++i) x[i] *= factor;
  }
}

template <typename Element>
void write_rows(const float* from, ptrdiff_t row_stride, ptrdiff_t head_stride, int rows, int heads, int size,
                Element* to, ptrdiff_t to_head_stride) {
  for (int head = 0; head < heads; ++head)
    for (int row = 0; row < rows; ++row)
      convert(from + row * row_stride + head * head_stride,
              to + head * to_head_stride + static_cast<ptrdiff_t>(row) * size, size);
}

template void write_rows(const float*, ptrdiff_t, ptrdiff_t, int, int, int, float*, ptrdiff_t);
template void write_rows(const float*, ptrdiff_t, ptrdiff_t, int, int, int, Half*, ptrdiff_t);

void to_half(const float* from, Half* to, ptrdiff_t count) {
  convert(from, to, count);
}

void from_half(const Half* from, float* to, ptrdiff_t count) {
  convert(from, to, count);
}

}  // namespace rkk
