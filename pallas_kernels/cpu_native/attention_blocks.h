// Attention of several query tokens of a request over its pages, with online softmax.
//
// A block belongs to one kv head: its rows, each one of the G query heads of one token, are in the lanes of V vectors, as
// many as registers can hold sums of. Several blocks go through the keys together, which are in a cache then. Tiles of
// keys begin at multiples of their size, and a key that a row does not see changes no bit of it: neither the other rows
// nor the division of a prompt into chunks change a result.
#pragma once

#include "attention_math.h"

namespace palladio {

constexpr int64_t kKeys = 64;     // keys that blocks go through together: a multiple of kTile
constexpr int64_t kTogether = 4;  // blocks that go through keys together

struct QueryRows {
  int64_t request, head, first, count;  // of the rows of a kv head
};

// A block of rows and the state of their softmax.
template <int L, int V>
struct RowBlock {
  typedef typename Lanes<L>::Floats Floats;
  typedef typename Lanes<L>::Ints Ints;
  static constexpr int64_t kSize = V * L;

  QueryRows rows;
  int64_t earliest, latest;  // positions of the first row's token and the last one's
  int64_t low, high;         // keys that any row sees
  Floats *q, *out;           // [H * V]
  Floats peak[V], total[V];
  Ints position[V];          // of each row; -1: there is none
};

// The first number of a row in q and out.
inline int64_t PlaceOf(const Attention& a, const QueryRows& rows, int64_t r) {
  const int64_t G = a.N / a.K, row = rows.first + r;
  return ((a.query_start[rows.request] + row / G) * a.N + rows.head * G + row % G) * a.H;
}

// Args: memory: 2 * kSize * H numbers; begins with a cache line.
template <int L, int V>
__attribute__((always_inline)) inline void Begin(const Attention& a, const QueryRows& rows, float* memory, RowBlock<L, V>& b) {
  const int64_t G = a.N / a.K, R = b.kSize, H = a.H;
  const int64_t before = a.kv_len[rows.request] - (a.query_start[rows.request + 1] - a.query_start[rows.request]);
  b.rows = rows;
  b.earliest = before + rows.first / G;
  b.latest = before + (rows.first + rows.count - 1) / G;
  b.low = a.window ? std::max<int64_t>(0, b.earliest - a.window + 1) : 0;
  b.high = b.latest + 1;
  b.q = (typename Lanes<L>::Floats*)memory;
  b.out = b.q + H * V;
  std::fill(memory, memory + 2 * R * H, 0.0f);
  for (int64_t r = 0; r < R; ++r) {
    const bool is_real = r < rows.count, has_sink = is_real && a.sinks;  // its weight is 1 until a score is larger
    b.position[r / L][r % L] = is_real ? before + (rows.first + r) / G : -1;
    b.peak[r / L][r % L] = has_sink ? a.sinks[rows.head * G + (rows.first + r) % G] : kLowest;
    b.total[r / L][r % L] = has_sink ? 1.0f : 0.0f;
    const float* own = a.q + (is_real ? PlaceOf(a, rows, r) : 0);
    for (int64_t h = 0; is_real && h < H; ++h) memory[h * R + r] = own[h];
  }
}

// The keys of a tile, and their values behind them.
struct KeyTile {
  const float* rows[kTile];
};

// Keys from `low` to `high` are read; others, whose pages may belong to another request, are replaced by the nearest one.
inline KeyTile TileOf(const Attention& a, const QueryRows& rows, int64_t key, int64_t low, int64_t high) {
  KeyTile tile;
  if (key >= low && key + kTile <= high && key / a.S == (key + kTile - 1) / a.S) {
    tile.rows[0] = a.Row(rows.request, rows.head, key);
    for (int i = 1; i < kTile; ++i) tile.rows[i] = tile.rows[i - 1] + 2 * a.padded;
  } else {
    for (int i = 0; i < kTile; ++i)
      tile.rows[i] = a.Row(rows.request, rows.head, std::min(std::max(key + i, low), high - 1));
  }
  return tile;
}

// One tile of keys.
template <int L, int V>
__attribute__((always_inline)) inline void Add(const Attention& a, RowBlock<L, V>& b, int64_t key) {
  typedef typename Lanes<L>::Floats Floats;
  typedef typename Lanes<L>::Ints Ints;
  const KeyTile tile = TileOf(a, b.rows, key, b.low, b.high);
  Floats scores[V][kTile] = {}, decay[V];
  for (int64_t h = 0; h < a.H; ++h)
    for (int i = 0; i < kTile; ++i)
      for (int v = 0; v < V; ++v) scores[v][i] += b.q[h * V + v] * tile.rows[i][h];
  const bool all_seen = key + kTile <= b.earliest + 1 && (!a.window || key > b.latest - a.window);
  for (int v = 0; v < V; ++v) {
    if (a.soft_cap != 0)
      for (int i = 0; i < kTile; ++i) Cap<L>(scores[v][i], a.soft_cap);
    if (!all_seen)
      for (int i = 0; i < kTile; ++i) {
        const int32_t number = key + i;
        Ints seen = number <= b.position[v];
        if (a.window) seen &= number > b.position[v] - int32_t(a.window);
        scores[v][i] = seen ? scores[v][i] : Floats{} + kLowest;
      }
    Floats highest = b.peak[v];
    for (int i = 0; i < kTile; ++i) highest = scores[v][i] > highest ? scores[v][i] : highest;
    decay[v] = b.peak[v] - highest;
    Exp<L>(decay[v]);
    b.peak[v] = highest;
    b.total[v] *= decay[v];
    for (int i = 0; i < kTile; ++i) {
      Floats weight = scores[v][i] - highest;
      Exp<L>(weight);
      scores[v][i] = scores[v][i] <= kLowest ? Floats{} : weight;  // of a key that is not seen; NaN stays NaN
      b.total[v] += scores[v][i];
    }
  }
  for (int64_t h = 0; h < a.H; ++h) {
    Floats sums[V];
    for (int v = 0; v < V; ++v) sums[v] = b.out[h * V + v] * decay[v];
    for (int i = 0; i < kTile; ++i)
      for (int v = 0; v < V; ++v) sums[v] += scores[v][i] * tile.rows[i][a.padded + h];
    for (int v = 0; v < V; ++v) b.out[h * V + v] = sums[v];
  }
}

template <int L, int V>
__attribute__((always_inline)) inline void End(const Attention& a, const RowBlock<L, V>& b) {
  const float* results = (const float*)b.out;
  for (int64_t r = 0; r < b.rows.count; ++r) {
    const float share = 1.0f / std::max<float>(b.total[r / L][r % L], 1.17549435e-38f);
    float* own = a.out + PlaceOf(a, b.rows, r);
    for (int64_t h = 0; h < a.H; ++h) own[h] = results[h * b.kSize + r] * share;
  }
}

// Args: memory: kTogether * 2 * kSize * H numbers; begins with a cache line.
template <int L, int V>
inline void AttendRows(const Attention& a, const QueryRows& rows, float* memory) {
  RowBlock<L, V> blocks[kTogether];
  constexpr int64_t R = RowBlock<L, V>::kSize;
  const int64_t count = (rows.count + R - 1) / R;
  for (int64_t i = 0; i < count; ++i)
    Begin(a, {rows.request, rows.head, rows.first + i * R, std::min(R, rows.count - i * R)}, memory + i * 2 * R * a.H,
          blocks[i]);
  for (int64_t from = blocks[0].low / kKeys * kKeys; from < blocks[count - 1].high; from += kKeys)
    for (int64_t i = 0; i < count; ++i) {
      const int64_t first = std::max(from, blocks[i].low / kTile * kTile), stop = std::min(from + kKeys, blocks[i].high);
      for (int64_t key = first; key < stop; key += kTile) Add(a, blocks[i], key);
    }
  for (int64_t i = 0; i < count; ++i) End(a, blocks[i]);
}

constexpr int kVectors = kRegister == 16 ? 2 : 1;     // of a block's rows: 32 registers hold twice as many sums as 16
constexpr int64_t kBlockRows = kVectors * kRegister;  // of a block

}  // namespace palladio
