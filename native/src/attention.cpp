#include "attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "simd.h"

// Both ways keep a running maximum and a running sum (Milakov and Gimelshein, arXiv 1805.02867), so that scores
// exist for one block of keys at a time, which stays in the nearest cache (Dao et al., arXiv 2205.14135).
//
// One token is bound by reading the cache: a thread reads long stretches of it, once for all queries of a head, and
// what comes next is fetched ahead. Few heads are split into parts, which are joined. Many tokens are bound by
// arithmetic: a task is some rows of queries of one head, and both products are made of one small block product.

namespace rkk {
namespace {

constexpr int kKeys = 8;         // keys in a block of decode: values are read by columns, which must not be long
constexpr int kAhead = 3072;     // bytes from what is read to what is fetched; 4096 would be the same lines of a cache
constexpr int kLine = 64;        // bytes of a line of the processor's caches
constexpr int kKeysOfPart = 128; // fewer are not worth another thread
constexpr int kBlock = 64;       // keys in a block of prefill
constexpr int kMaxHeadDim = 512;
constexpr int kQueries = 4;      // queries that read a key together: more would not fit into registers
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

// ---- one token

// Scores, or weights, of one key for the queries that read it together.
typedef float Row[kQueries];

// scores[j][g] = q[g] . keys[j] for Queries queries and Keys keys; what stands for further queries has no meaning.
// Keys and values further on are fetched meanwhile, in the order of memory, which the processor does not find out
// by itself where rows are read side by side; into the second cache, since the first is small. What is beyond the
// end of memory is not fetched, and does no harm.
template <typename Element, int Queries, int Keys>
void few_products(const float* q, const Element* keys, const Element* values, int head_dim, Row* scores) {
  constexpr int kStep = kLanes * Keys * static_cast<int>(sizeof(Element));
  const char* keys_ahead = reinterpret_cast<const char*>(keys) + kAhead;
  const char* values_ahead = reinterpret_cast<const char*>(values) + kAhead;
  Floats sums[Queries][Keys] = {};
  for (int d = 0, read = 0; d < head_dim; d += kLanes, read += kStep) {
    if (read % kLine == 0)
      for (int line = read; line < read + kStep; line += kLine) {
        __builtin_prefetch(keys_ahead + line, 0, 2);
        __builtin_prefetch(values_ahead + line, 0, 2);
      }
    Floats right[Keys];
    for (int j = 0; j < Keys; ++j) right[j] = load(keys + j * head_dim + d);
    for (int g = 0; g < Queries; ++g) {
      const Floats left = load(q + g * head_dim + d);
      for (int j = 0; j < Keys; ++j) sums[g][j] += left * right[j];
    }
  }
  constexpr int kLast = Queries - 1;
  for (int j = 0; j < Keys; ++j)
    sum_each(sums[0][j], sums[std::min(1, kLast)][j], sums[std::min(2, kLast)][j], sums[kLast][j], scores[j]);
}

template <typename Element, int Queries>
void dot_products(const float* q, const Element* keys, const Element* values, int count, int head_dim, Row* scores) {
  constexpr int kTogether = Queries > 2 ? 2 : 4;
  int j = 0;
  for (; j + kTogether <= count; j += kTogether) {
    const ptrdiff_t at = static_cast<ptrdiff_t>(j) * head_dim;
    few_products<Element, Queries, kTogether>(q, keys + at, values + at, head_dim, scores + j);
  }
  for (; j < count; ++j) {
    const ptrdiff_t at = static_cast<ptrdiff_t>(j) * head_dim;
    few_products<Element, Queries, 1>(q, keys + at, values + at, head_dim, scores + j);
  }
}

// As `weigh`, for the queries of rows, each in a lane of its own (of every row in a vector). There is room for as
// many rows as fill the last vector.
Floats weigh_rows(Row* rows, int count, Floats& maximum, Floats& total) {
  float* scores = rows[0];
  int size = count * kQueries;
  for (; size % kLanes != 0; ++size) scores[size] = kNone;
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

// mixed[g] = mixed[g] * before[g] + sum over j of weights[j][g] * values[j], for Vectors vectors of columns
template <typename Element, int Queries, int Vectors>
void add_columns(const Row* weights, const Element* values, int count, int head_dim, Floats before, float* mixed) {
  Floats sums[Queries][Vectors];
  for (int g = 0; g < Queries; ++g)
    for (int v = 0; v < Vectors; ++v) sums[g][v] = load(mixed + g * head_dim + v * kLanes) * all(before[g]);
  for (int j = 0; j < count; ++j, values += head_dim) {
    Floats right[Vectors];
    for (int v = 0; v < Vectors; ++v) right[v] = load(values + v * kLanes);
    for (int g = 0; g < Queries; ++g)
      for (int v = 0; v < Vectors; ++v) sums[g][v] += all(weights[j][g]) * right[v];
  }
  for (int g = 0; g < Queries; ++g)
    for (int v = 0; v < Vectors; ++v) store(mixed + g * head_dim + v * kLanes, sums[g][v]);
}

// What one part of the keys gives for queries that read it together; parts are joined by their maxima.
struct Part {
  Floats maximum = all(std::numeric_limits<float>::lowest());  // of a query in its lane
  Floats total{};
  float* mixed = nullptr;  // (kQueries, D)
};

// Take a block of at most kKeys keys into a part. q: scaled.
template <typename Element, int Queries>
void attend_block(const Attention<Element>& a, const float* q, const Element* keys, const Element* values, int count,
                  Part& part) {
  Row scores[kKeys];
  dot_products<Element, Queries>(q, keys, values, count, a.head_dim, scores);
  if (a.softcap > 0)
    for (int j = 0; j < count; ++j)
      for (int g = 0; g < Queries; ++g) scores[j][g] = capped(scores[j][g], a.softcap);
  const Floats before = weigh_rows(scores, count, part.maximum, part.total);
  constexpr int kWide = 2;
  int d = 0;
  for (; d + kWide * kLanes <= a.head_dim; d += kWide * kLanes)
    add_columns<Element, Queries, kWide>(scores, values + d, count, a.head_dim, before, part.mixed + d);
  for (; d < a.head_dim; d += kLanes)
    add_columns<Element, Queries, 1>(scores, values + d, count, a.head_dim, before, part.mixed + d);
}

template <typename Element>
void attend_block(const Attention<Element>& a, const float* q, int queries, const Element* keys,
                  const Element* values, int count, Part& part) {
  switch (queries) {
    case 1: return attend_block<Element, 1>(a, q, keys, values, count, part);
    case 2: return attend_block<Element, 2>(a, q, keys, values, count, part);
    case 3: return attend_block<Element, 3>(a, q, keys, values, count, part);
    default: return attend_block<Element, kQueries>(a, q, keys, values, count, part);
  }
}

template <typename Element>
void attend_one(const Attention<Element>& a, Threads& threads) {
  const int queries = a.heads / a.kv_heads, groups = (queries + kQueries - 1) / kQueries;
  const int seen = a.window > 0 ? std::min(a.window, a.length) : a.length;
  const ptrdiff_t first = static_cast<ptrdiff_t>(a.length - seen) * a.head_dim;
  const int wanted = (2 * threads.count() + a.kv_heads - 1) / a.kv_heads;
  const int parts = threads.count() == 1 ? 1 : std::clamp(seen / kKeysOfPart, 1, wanted);
  const int step = (seen + parts - 1) / parts;
  std::vector<float> q(a.q, a.q + a.heads * a.head_dim);
  for (float& value : q) value *= a.scale;
  std::vector<Part> done(static_cast<size_t>(a.kv_heads) * parts * groups);
  std::vector<float> mixed(done.size() * kQueries * a.head_dim);
  for (size_t i = 0; i < done.size(); ++i) done[i].mixed = mixed.data() + i * kQueries * a.head_dim;
  threads.run(a.kv_heads * parts, [&](int task, int) {
    const int head = task / parts, part = task % parts, end = std::min(seen, (part + 1) * step);
    for (int start = part * step; start < end; start += kKeys) {
      const ptrdiff_t at = head * a.head_stride + first + static_cast<ptrdiff_t>(start) * a.head_dim;
      for (int group = 0; group < groups; ++group)
        attend_block(a, q.data() + (head * queries + group * kQueries) * a.head_dim, queries - group * kQueries,
                     a.keys + at, a.values + at, std::min(kKeys, end - start), done[task * groups + group]);
    }
  });
  for (int head = 0; head < a.heads; ++head) {
    const int group = head % queries / kQueries, g = head % queries % kQueries;
    const Part* mine = &done[static_cast<size_t>(head / queries) * parts * groups + group];
    float maximum = kNone, total = 0;
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

// ---- many tokens

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
  for (int start = first_seen(0) / kBlock * kBlock; start < end; start += kBlock) {
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
