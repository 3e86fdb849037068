#include "attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "simd.h"

// Both ways keep a running maximum and a running sum (Milakov and Gimelshein, arXiv 1805.02867), so that scores
// exist for one block of keys at a time, which stays in the nearest cache (Dao et al., arXiv 2205.14135).
//
// One token is bound by reading the cache: the keys of a head are split over the threads, each reads its part
// once for all queries of the head, and the parts are joined. Many tokens are bound by arithmetic: a task is
// some rows of queries of one head, and both products are made of one small block product.

namespace rkk {
namespace {

constexpr int kKeys = 16;        // keys in a block of decode
constexpr int kKeysOfPart = 128; // fewer are not worth another thread
constexpr int kBlock = 64;       // keys in a block of prefill
constexpr int kMaxHeadDim = 512;
constexpr int kMaxQueries = 4;   // queries that read a key together: more would not fit into registers
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

// scores[g][j] = q[g] . keys[j] for Queries queries and the four keys from `key` on. value: the values of these
// keys, fetched meanwhile, line by line, since they are read by columns afterwards; null: nothing is fetched.
template <typename Element, int Queries>
void four_products(const float* q, const Element* key, const Element* value, int head_dim,
                   float (*scores)[kKeys]) {
  constexpr int kLine = 64 / static_cast<int>(sizeof(Element));
  Floats sums[Queries][4] = {};
  for (int d = 0; d < head_dim; d += kLanes) {
    if (value != nullptr && d % kLine == 0)
      for (int j = 0; j < 4; ++j) __builtin_prefetch(value + j * head_dim + d);
    Floats left[Queries];
    for (int g = 0; g < Queries; ++g) left[g] = load(q + g * head_dim + d);
    for (int j = 0; j < 4; ++j) {
      const Floats k = load(key + j * head_dim + d);
      for (int g = 0; g < Queries; ++g) sums[g][j] += k * left[g];
    }
  }
  for (int g = 0; g < Queries; ++g) sum_each(sums[g][0], sums[g][1], sums[g][2], sums[g][3], scores[g]);
}

// scores[g][j] = q[g] . keys[j]
template <typename Element, int Queries>
void dot_products(const float* q, const Element* keys, const Element* values, int count, int head_dim,
                  float (*scores)[kKeys]) {
  constexpr int kFirst = Queries == 4 ? 2 : Queries;  // at once: their sums and operands fill the registers
  int j = 0;
  for (; j + 4 <= count; j += 4) {
    const ptrdiff_t at = static_cast<ptrdiff_t>(j) * head_dim;
    auto* to = reinterpret_cast<float(*)[kKeys]>(&scores[0][j]);
    four_products<Element, kFirst>(q, keys + at, values + at, head_dim, to);
    if constexpr (kFirst < Queries)
      four_products<Element, Queries - kFirst>(q + kFirst * head_dim, keys + at, nullptr, head_dim, to + kFirst);
  }
  for (; j < count; ++j)
    for (int g = 0; g < Queries; ++g) {
      Floats total{};
      for (int d = 0; d < head_dim; d += kLanes)
        total += load(keys + static_cast<ptrdiff_t>(j) * head_dim + d) * load(q + g * head_dim + d);
      scores[g][j] = sum(total);
    }
}

// mixed[g] = mixed[g] * before[g] + sum over j of weights[g][j] * values[j]
template <typename Element, int Queries>
void add_values(const float (*weights)[kKeys], const Element* values, int count, int head_dim,
                const float* before, float* mixed) {
  constexpr int kWide = 2;
  for (int d = 0; d < head_dim; d += kWide * kLanes) {
    const int wide = std::min(kWide, (head_dim - d) / kLanes);
    Floats sums[Queries][kWide];
    for (int g = 0; g < Queries; ++g)
      for (int w = 0; w < wide; ++w) sums[g][w] = load(mixed + g * head_dim + d + w * kLanes) * all(before[g]);
    if (wide == kWide) {
      for (int j = 0; j < count; ++j) {
        const Element* value = values + static_cast<ptrdiff_t>(j) * head_dim + d;
        const Floats v[kWide] = {load(value), load(value + kLanes)};
        for (int g = 0; g < Queries; ++g)
          for (int w = 0; w < kWide; ++w) sums[g][w] += all(weights[g][j]) * v[w];
      }
    } else {
      for (int j = 0; j < count; ++j) {
        const Floats v = load(values + static_cast<ptrdiff_t>(j) * head_dim + d);
        for (int g = 0; g < Queries; ++g) sums[g][0] += all(weights[g][j]) * v;
      }
    }
    for (int g = 0; g < Queries; ++g)
      for (int w = 0; w < wide; ++w) store(mixed + g * head_dim + d + w * kLanes, sums[g][w]);
  }
}

// What one part of the keys gives for some queries; parts are joined by their maxima.
struct Part {
  float maximum[kMaxQueries];
  float total[kMaxQueries];
  float* mixed;  // (Queries, D)
};

template <typename Element, int Queries>
void attend_part(const Attention<Element>& a, const float* q, const Element* keys, const Element* values,
                 int count, Part& part) {
  float scaled[Queries * kMaxHeadDim];
  for (int i = 0; i < Queries * a.head_dim; ++i) scaled[i] = q[i] * a.scale;
  std::fill(part.mixed, part.mixed + Queries * a.head_dim, 0.0f);
  for (int g = 0; g < Queries; ++g) {
    part.maximum[g] = kNone;
    part.total[g] = 0;
  }
  alignas(32) float scores[Queries][kKeys];
  float before[Queries];
  for (int start = 0; start < count; start += kKeys) {
    const int keys_here = std::min(kKeys, count - start);
    const Element* block_values = values + static_cast<ptrdiff_t>(start) * a.head_dim;
    dot_products<Element, Queries>(scaled, keys + static_cast<ptrdiff_t>(start) * a.head_dim, block_values,
                                   keys_here, a.head_dim, scores);
    for (int g = 0; g < Queries; ++g) {
      if (a.softcap > 0)
        for (int j = 0; j < keys_here; ++j) scores[g][j] = capped(scores[g][j], a.softcap);
      before[g] = weigh(scores[g], keys_here, part.maximum[g], part.total[g]);
    }
    add_values<Element, Queries>(scores, block_values, keys_here, a.head_dim, before, part.mixed);
  }
}

template <typename Element>
void attend_part(const Attention<Element>& a, const float* q, const Element* keys, const Element* values,
                 int count, int queries, Part& part) {
  switch (queries) {
    case 1: return attend_part<Element, 1>(a, q, keys, values, count, part);
    case 2: return attend_part<Element, 2>(a, q, keys, values, count, part);
    case 3: return attend_part<Element, 3>(a, q, keys, values, count, part);
    default: return attend_part<Element, 4>(a, q, keys, values, count, part);
  }
}

template <typename Element>
void attend_one(const Attention<Element>& a, Threads& threads) {
  const int queries = a.heads / a.kv_heads;
  const int groups = (queries + kMaxQueries - 1) / kMaxQueries;
  const int seen = a.window > 0 ? std::min(a.window, a.length) : a.length;
  const ptrdiff_t first = static_cast<ptrdiff_t>(a.length - seen) * a.head_dim;
  const int wanted = (2 * threads.count() + a.kv_heads * groups - 1) / (a.kv_heads * groups);
  const int parts = threads.count() == 1 ? 1 : std::clamp(seen / kKeysOfPart, 1, wanted);
  const int step = (seen + parts - 1) / parts;
  std::vector<Part> done(static_cast<size_t>(a.kv_heads) * groups * parts);
  std::vector<float> room(done.size() * kMaxQueries * a.head_dim);
  threads.run(static_cast<int>(done.size()), [&](int task, int) {
    const int head = task / (groups * parts), group = task / parts % groups, part = task % parts;
    const int here = std::min(kMaxQueries, queries - group * kMaxQueries);
    const int start = part * step, count = std::min(step, seen - start);
    const ptrdiff_t at = head * a.head_stride + first + static_cast<ptrdiff_t>(start) * a.head_dim;
    done[task].mixed = room.data() + static_cast<size_t>(task) * kMaxQueries * a.head_dim;
    attend_part(a, a.q + (head * queries + group * kMaxQueries) * a.head_dim, a.keys + at, a.values + at, count,
                here, done[task]);
  });
  for (int head = 0; head < a.heads; ++head) {
    const int group = head % queries / kMaxQueries, g = head % queries % kMaxQueries;
    const Part* mine = &done[(static_cast<size_t>(head / queries) * groups + group) * parts];
    float maximum = kNone, total = 0;
    for (int part = 0; part < parts; ++part) maximum = std::max(maximum, mine[part].maximum[g]);
    float* out = a.out + head * a.head_dim;
    std::fill(out, out + a.head_dim, 0.0f);
    for (int part = 0; part < parts; ++part) {
      const float share = std::exp(mine[part].maximum[g] - maximum);
      total += share * mine[part].total[g];
      for (int d = 0; d < a.head_dim; ++d) out[d] += share * mine[part].mixed[g * a.head_dim + d];
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
