#include "prefill.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "simd.h"

// Bound by arithmetic: a task is some rows of queries of one head, and both products are made of one small block
// product.

namespace rkk {
namespace {

constexpr int kBlock = 64;       // keys in a block
constexpr int kRows = 6;         // rows of a block product: 6 x 16 floats and their operands fill the registers
constexpr int kColumns = 16;
constexpr int kRowsOfTask = 96;  // packing a block of keys is shared by so many rows
constexpr float kNone = -std::numeric_limits<float>::infinity();

constexpr int kVectors = kColumns / kLanes;

float capped(float score, float cap) {
  return cap * std::tanh(score / cap);
}

// Turn scores of one query, some possibly -inf, into weights relative to the maximum so far; returns by what
// everything before has to be multiplied.
float weigh(float* scores, int count, float& maximum, float& total) {
  float highest = maximum;
  for (int i = 0; i < count; ++i) highest = std::max(highest, scores[i]);
  if (highest == kNone) {  // nothing to be seen yet
    std::fill(scores, scores + count, 0.0f);
    return 1.0f;
  }
  const float before = maximum == kNone ? 0.0f : std::exp(maximum - highest);
  maximum = highest;
  Floats sums{};
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Floats weights = exp(load(scores + i) - all(highest));
    store(scores + i, weights);
    sums += weights;
  }
  float rest = sum(sums);
  for (; i < count; ++i) {
    scores[i] = scores[i] == kNone ? 0.0f : std::exp(scores[i] - highest);
    rest += scores[i];
  }
  total = total * before + rest;
  return before;
}

// c (Rows x 16, rows ldc apart) = c * keep + a (Rows x depth, lda) . b (depth x 16, ldb); keep null: c = a . b
template <int Rows>
void block_product(const float* a, int lda, const float* b, int ldb, int depth, float* c, int ldc,
                   const float* keep) {
  Floats sums[Rows][kVectors];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < kVectors; ++v)
      sums[r][v] = keep == nullptr ? Floats{} : load(c + r * ldc + v * kLanes) * all(keep[r]);
  for (int k = 0; k < depth; ++k) {
    Floats right[kVectors];
    for (int v = 0; v < kVectors; ++v) right[v] = load(b + static_cast<ptrdiff_t>(k) * ldb + v * kLanes);
    for (int r = 0; r < Rows; ++r) {
      const Floats left = all(a[r * lda + k]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] += left * right[v];
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < kVectors; ++v) store(c + r * ldc + v * kLanes, sums[r][v]);
}

void product(int rows, const float* a, int lda, const float* b, int ldb, int depth, float* c, int ldc,
             int columns, const float* keep) {
  for (int r = 0; r < rows; r += kRows) {
    const float* kept = keep == nullptr ? nullptr : keep + r;
    for (int column = 0; column < columns; column += kColumns) {
      const float* left = a + static_cast<ptrdiff_t>(r) * lda;
      const float* right = b + (ldb == kColumns ? static_cast<ptrdiff_t>(column) * depth : column);
      float* result = c + static_cast<ptrdiff_t>(r) * ldc + column;
      switch (rows - r) {
        case 1: block_product<1>(left, lda, right, ldb, depth, result, ldc, kept); break;
        case 2: block_product<2>(left, lda, right, ldb, depth, result, ldc, kept); break;
        case 3: block_product<3>(left, lda, right, ldb, depth, result, ldc, kept); break;
        case 4: block_product<4>(left, lda, right, ldb, depth, result, ldc, kept); break;
        case 5: block_product<5>(left, lda, right, ldb, depth, result, ldc, kept); break;
        default: block_product<kRows>(left, lda, right, ldb, depth, result, ldc, kept); break;
      }
    }
  }
}

// Memory of one thread, for one block of keys. Columns are padded to whole block products.
struct Room {
  Room(int head_dim)
      : width((head_dim + kColumns - 1) / kColumns * kColumns),
        queries(static_cast<size_t>(kRowsOfTask) * head_dim),
        keys(static_cast<size_t>(kBlock) * head_dim),
        values(static_cast<size_t>(kBlock) * width),
        mixed(static_cast<size_t>(kRowsOfTask) * width) {}
  int width;
  std::vector<float> queries;  // (rows, D), scaled
  std::vector<float> keys;     // (kBlock / 16, D, 16): transposed in panels
  std::vector<float> values;   // (kBlock, width)
  std::vector<float> mixed;    // (rows, width)
  alignas(32) float scores[kRowsOfTask][kBlock];
  float maximum[kRowsOfTask], total[kRowsOfTask], before[kRowsOfTask];
};

template <typename Element>
float as_float(Element value);
template <>
float as_float(float value) {
  return value;
}
template <>
float as_float(Half value) {
#if RKK_LANES == 8
  return _cvtsh_ss(value.bits);
#else
  return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(value.bits))), 0);
#endif
}

template <typename Element>
void pack(const Element* keys, const Element* values, int count, int head_dim, Room& room) {
  std::fill(room.keys.begin(), room.keys.end(), 0.0f);
  for (int j = 0; j < count; ++j) {
    float* panel = room.keys.data() + static_cast<size_t>(j / kColumns) * head_dim * kColumns + j % kColumns;
    for (int d = 0; d < head_dim; ++d) panel[d * kColumns] = as_float(keys[static_cast<ptrdiff_t>(j) * head_dim + d]);
    float* value = room.values.data() + static_cast<size_t>(j) * room.width;
    for (int d = 0; d < head_dim; d += kLanes) store(value + d, load(values + static_cast<ptrdiff_t>(j) * head_dim + d));
  }
}

// Rows `first` to `first + rows` of one head; row r is query r % G of token r / G.
template <typename Element>
void attend_rows(const Attention<Element>& a, int head, int first, int rows, Room& room) {
  const int queries = a.heads / a.kv_heads;
  const auto position = [&](int row) { return a.length - a.tokens + (first + row) / queries; };
  const auto first_seen = [&](int row) { return a.window > 0 ? std::max(0, position(row) - a.window + 1) : 0; };
  for (int r = 0; r < rows; ++r) {
    const int token = (first + r) / queries, query = (first + r) % queries;
    const float* q = a.q + token * a.q_stride + (head * queries + query) * a.head_dim;
    for (int d = 0; d < a.head_dim; ++d) room.queries[static_cast<size_t>(r) * a.head_dim + d] = q[d] * a.scale;
    room.maximum[r] = kNone;
    room.total[r] = 0;
  }
  std::fill(room.mixed.begin(), room.mixed.end(), 0.0f);
  const int end = position(rows - 1) + 1;
  for (int start = first_seen(0); start < end; start += kBlock) {
    const int count = std::min(kBlock, end - start);
    const ptrdiff_t at = head * a.head_stride + static_cast<ptrdiff_t>(start) * a.head_dim;
    pack(a.keys + at, a.values + at, count, a.head_dim, room);
    product(rows, room.queries.data(), a.head_dim, room.keys.data(), kColumns, a.head_dim, room.scores[0], kBlock,
            (count + kColumns - 1) / kColumns * kColumns, nullptr);
    for (int r = 0; r < rows; ++r) {
      float* scores = room.scores[r];
      if (a.softcap > 0)
        for (int j = 0; j < count; ++j) scores[j] = capped(scores[j], a.softcap);
      for (int j = std::max(0, position(r) + 1 - start); j < count; ++j) scores[j] = kNone;
      const int gone = std::min(count, first_seen(r) - start);
      for (int j = 0; j < gone; ++j) scores[j] = kNone;
      room.before[r] = weigh(scores, count, room.maximum[r], room.total[r]);
    }
    product(rows, room.scores[0], kBlock, room.values.data(), room.width, count, room.mixed.data(), room.width,
            room.width, room.before);
  }
  for (int r = 0; r < rows; ++r) {
    const int token = (first + r) / queries, query = (first + r) % queries;
    float* out = a.out + (static_cast<ptrdiff_t>(token) * a.heads + head * queries + query) * a.head_dim;
    for (int d = 0; d < a.head_dim; ++d) out[d] = room.mixed[static_cast<size_t>(r) * room.width + d] / room.total[r];
  }
}

}  // namespace

template <typename Element>
void attend_many(const Attention<Element>& a, Threads& threads) {
  const int rows = a.tokens * (a.heads / a.kv_heads);
  const int tasks = (rows + kRowsOfTask - 1) / kRowsOfTask;
  std::vector<Room> rooms(threads.count(), Room(a.head_dim));
  threads.run(a.kv_heads * tasks, [&](int task, int thread) {
    const int first = (tasks - 1 - task % tasks) * kRowsOfTask;  // the last rows see most: they go first
    attend_rows(a, task / tasks, first, std::min(kRowsOfTask, rows - first), rooms[thread]);
  });
}

template void attend_many(const Attention<float>&, Threads&);
template void attend_many(const Attention<Half>&, Threads&);

}  // namespace rkk
