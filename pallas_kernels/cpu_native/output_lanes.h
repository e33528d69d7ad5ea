// Products of many rows with a bfloat16 matrix, for AVX2: each output has a lane of the registers.
//
// A block of products.h adds up the lanes of each of its sums at the end, and widens numbers of the matrix for six rows at
// most. Here each sum is one lane, and numbers are widened and transposed once for all rows. So it is faster as soon as
// there are enough rows, most of all where another thread of the core wants the same caches. (Goto and van de Geijn,
// "Anatomy of High-Performance Matrix Multiplication", 2008: a panel of one matrix stays in a cache while the other goes
// by; tiles as in Van Zee and van de Geijn, "BLIS", 2015.)
//
// Each sum adds one input after the other: a row's results have the same bits whatever the other rows are, but not those
// of a block.
#pragma once

#include "lines_ahead.h"
#include "multiply.h"
#include "products.h"

namespace palladio {

constexpr int64_t kRegisterOutputs = 8;
constexpr int64_t kPanelOutputs = 2 * kRegisterOutputs;
constexpr int64_t kPanelDepth = 304;       // inputs of a panel: it stays in the first cache
constexpr int64_t kTileRows = 6;           // times two registers of outputs: 12 sums stay in registers
constexpr int64_t kRowsTogether = 240;     // their sums of a panel stay in a cache
constexpr int64_t kOutputsTogether = 64;   // that a thread takes at a time
constexpr int64_t kUnroll = 8;             // inputs of an iteration, for which a cache line is prefetched
constexpr int64_t kLeastRows = 20;         // fewer are faster by blocks

typedef float Outputs __attribute__((vector_size(4 * kRegisterOutputs)));

inline bool AreLanesFaster(int64_t rows) { return rows >= kLeastRows; }

// R rows times the outputs of a panel, for its inputs. Prefetches lines into the second cache, since the first one is full.
// Args: x: [depth, R]. panel: [depth, kPanelOutputs].
// sums: [R, kPanelOutputs].
template <int R>
void Tile(const float* x, const float* panel, float* sums, int64_t depth, bool is_first, const LinesAhead& ahead) {
  auto* const all = (Outputs(*)[2])sums;
  Outputs own[R][2];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < 2; ++v) own[r][v] = is_first ? Outputs{} : all[r][v];
  const auto add = [&](int64_t i) __attribute__((always_inline)) {
    const auto* const w = (const Outputs*)(panel + i * kPanelOutputs);
    const Outputs low = w[0], high = w[1];
    for (int r = 0; r < R; ++r) {
      own[r][0] += x[i * R + r] * low;
      own[r][1] += x[i * R + r] * high;
    }
  };
  int64_t i = 0;
  for (int64_t line = 0; i + kUnroll <= depth; i += kUnroll, ++line) {
    if (line < ahead.count) _mm_prefetch(ahead.first[line], _MM_HINT_T1);
#pragma GCC unroll kUnroll
    for (int64_t next = 0; next < kUnroll; ++next) add(i + next);
  }
  for (; i < depth; ++i) add(i);
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < 2; ++v) all[r][v] = own[r][v];
}

using TileFunction = void (*)(const float*, const float*, float*, int64_t, bool, const LinesAhead&);
constexpr TileFunction kTiles[kTileRows] = {Tile<1>, Tile<2>, Tile<3>, Tile<4>, Tile<5>, Tile<6>};

// Widens eight inputs of a register of outputs. Args: w: [kRegisterOutputs, inputs]. to: [8, kPanelOutputs].
inline void WidenEight(const uint16_t* w, int64_t inputs, float* to) {
  const auto load = [=](int64_t output) {  // an output, and the one four further on
    const auto* first = (const __m128i*)(w + output * inputs);
    const auto* second = (const __m128i*)(w + (output + 4) * inputs);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(first)), _mm_loadu_si128(second), 1);
  };
  const auto store = [=](int64_t input, __m256i pairs) {  // of this input and the next one
    const __m256i upper = _mm256_set1_epi32(0xffff0000);
    _mm256_store_si256((__m256i*)(to + input * kPanelOutputs), _mm256_slli_epi32(pairs, 16));
    _mm256_store_si256((__m256i*)(to + (input + 1) * kPanelOutputs), _mm256_and_si256(pairs, upper));
  };
  const __m256i a = load(0), b = load(1), c = load(2), d = load(3);
  const __m256i early = _mm256_unpacklo_epi32(a, b), late = _mm256_unpackhi_epi32(a, b);
  const __m256i other_early = _mm256_unpacklo_epi32(c, d), other_late = _mm256_unpackhi_epi32(c, d);
  store(0, _mm256_unpacklo_epi64(early, other_early));
  store(2, _mm256_unpackhi_epi64(early, other_early));
  store(4, _mm256_unpacklo_epi64(late, other_late));
  store(6, _mm256_unpackhi_epi64(late, other_late));
}

// Widens a panel, with zeros where there are no more outputs. Args: w: [outputs, inputs]. panel: [depth, kPanelOutputs].
inline void WidenPanel(const uint16_t* w, int64_t inputs, int64_t outputs, int64_t depth, float* panel) {
  const int64_t whole = outputs == kPanelOutputs ? depth / 8 * 8 : 0;
  for (int64_t i = 0; i < whole; i += 8)
    for (int64_t o = 0; o < kPanelOutputs; o += kRegisterOutputs)
      WidenEight(w + o * inputs + i, inputs, panel + i * kPanelOutputs + o);
  for (int64_t i = whole; i < depth; ++i)
    for (int64_t o = 0; o < kPanelOutputs; ++o) {
      const uint32_t bits = o < outputs ? uint32_t{w[o * inputs + i]} << 16 : 0;
      std::memcpy(panel + i * kPanelOutputs + o, &bits, sizeof(bits));
    }
}

// Packs R rows for a tile, rounded to bfloat16. Args: x: [R, inputs]. to: [inputs, R].
template <int R>
void PackTile(const float* x, int64_t inputs, float* to) {
  constexpr int kFirst = std::min(R, 4), kSecond = R - kFirst;
  const auto load = [=](int r, int64_t i) __attribute__((always_inline)) {
    return r < R ? RoundedToBfloat16(_mm_loadu_ps(x + r * inputs + i)) : _mm_setzero_ps();
  };
  int64_t i = 0;
  for (; i + 4 <= inputs; i += 4) {
    __m128 first[4] = {load(0, i), load(1, i), load(2, i), load(3, i)}, second[4] = {load(4, i), load(5, i)};
    _MM_TRANSPOSE4_PS(first[0], first[1], first[2], first[3]);
    _MM_TRANSPOSE4_PS(second[0], second[1], second[2], second[3]);
    for (int j = 0; j < 4; ++j) {
      std::memcpy(to + (i + j) * R, &first[j], kFirst * sizeof(float));
      std::memcpy(to + (i + j) * R + kFirst, &second[j], kSecond * sizeof(float));
    }
  }
  for (; i < inputs; ++i)
    for (int r = 0; r < R; ++r) _mm_store_ss(to + i * R + r, RoundedToBfloat16(_mm_load_ss(x + r * inputs + i)));
}

using PackFunction = void (*)(const float*, int64_t, float*);
constexpr PackFunction kPacks[kTileRows] = {PackTile<1>, PackTile<2>, PackTile<3>, PackTile<4>, PackTile<5>, PackTile<6>};

// A matrix, and rows as PackTile leaves them, one block of rows after the other.
struct LaneProduct {
  const float* x;
  const uint16_t* w;  // [outputs, inputs]
  float* y;           // [rows, outputs]
  RowBlocks tiles;
  int64_t inputs, outputs;
  int64_t part;  // inputs of all panels but the last ones
};

// The tiles from `top` to `bottom`, of kRowsTogether at most, times the outputs from `first` to `stop`.
// Args: next: the output that this thread probably takes after them.
inline void MultiplyTogether(const LaneProduct& p, int64_t top, int64_t bottom, int64_t first, int64_t stop, int64_t next) {
  alignas(kLine) static thread_local float panel[kPanelDepth * kPanelOutputs], sums[kRowsTogether * kPanelOutputs];
  const int64_t begin = p.tiles.StartOf(top), end = p.tiles.StartOf(bottom);
  for (int64_t output = first; output < stop; output += kPanelOutputs) {
    const int64_t width = std::min(kPanelOutputs, stop - output);
    for (int64_t from = 0; from < p.inputs; from += p.part) {
      const int64_t depth = std::min(p.part, p.inputs - from);
      WidenPanel(p.w + output * p.inputs + from, p.inputs, width, depth, panel);

      const bool is_last = from + p.part >= p.inputs;
      const int64_t soon = !is_last ? output : output + kPanelOutputs < stop ? output + kPanelOutputs : next;
      const int64_t soon_from = is_last ? 0 : from + p.part;
      const NextLines<kPanelOutputs, kPanelDepth> lines(p.w, p.outputs, p.inputs, soon, soon_from, p.part, bottom - top);
      for (int64_t tile = top; tile < bottom; ++tile) {
        const int64_t row = p.tiles.StartOf(tile), rows = p.tiles.StartOf(tile + 1) - row;
        kTiles[rows - 1](p.x + row * p.inputs + from * rows, panel, sums + (row - begin) * kPanelOutputs, depth, from == 0,
                         lines.Of(tile - top));
      }
    }
    for (int64_t row = begin; row < end; ++row)
      std::copy_n(sums + (row - begin) * kPanelOutputs, width, p.y + row * p.outputs + output);
  }
}

// All rows times all outputs; each repeat is as the last row.
inline void MultiplyByLanes(const Pool& pool, const float* x, const uint16_t* w, float* y, int64_t rows, int64_t repeats,
                            int64_t inputs, int64_t outputs) {
  const int64_t parts = (inputs + kPanelDepth - 1) / kPanelDepth, part = ((inputs + parts - 1) / parts + 7) / 8 * 8;
  constexpr int64_t kTogether = kRowsTogether / kTileRows;
  const auto tiles = RowBlocks::Of(rows, kTileRows, kTileRows);
  const PackedRows packed(rows * inputs * sizeof(float));
  auto* const own = reinterpret_cast<float*>(packed.get());
  Run(pool, {tiles.count, [=](int64_t tile) {
               const int64_t row = tiles.StartOf(tile), size = tiles.StartOf(tile + 1) - row;
               kPacks[size - 1](x + row * inputs, inputs, own + row * inputs);
             }});
  const int64_t threads = std::max<int64_t>(1, pool.num_threads());
  const int64_t fair = outputs / (kChunks * threads) / kPanelOutputs * kPanelOutputs;
  const int64_t size = std::max(kPanelOutputs, std::min(kOutputsTogether, fair));
  const LaneProduct product{own, w, y, tiles, inputs, outputs, part};
  Run(pool, {(outputs + size - 1) / size, [=](int64_t number) {
               const int64_t first = number * size, stop = std::min(outputs, first + size);
               for (int64_t top = 0; top < tiles.count; top += kTogether) {
                 const int64_t bottom = std::min(tiles.count, top + kTogether);
                 MultiplyTogether(product, top, bottom, first, stop, bottom < tiles.count ? first : first + threads * size);
               }
               RepeatLast(y, rows, repeats, outputs, first, stop);
             }});
}

}  // namespace palladio
