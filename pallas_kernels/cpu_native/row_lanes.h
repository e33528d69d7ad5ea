// Products of many rows with a bfloat16 matrix, for AVX-512 without its BF16: each row has a lane of the registers.
//
// A block of products.h adds up the lanes of each of its sums at the end, and widens numbers of the matrix for twelve rows
// at most. Here each sum is one lane, and numbers are widened once for all rows. So it is faster as soon as rows fill the
// lanes. (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008: panels of one matrix stay in a
// cache while tiles of the other go by.)
//
// Each sum adds one input after the other: a row's results have the same bits whatever the other rows are, but not those
// of a block.
#pragma once

#include <utility>

#include "lines_ahead.h"
#include "multiply.h"
#include "products.h"

namespace palladio {

constexpr int64_t kRowLanes = 16;             // rows of a register
constexpr int64_t kPanel = 2 * kRowLanes;     // rows of a tile at most
constexpr int64_t kTileOutputs = 12;          // times two registers of rows: 24 sums stay in registers
constexpr int64_t kTileDepth = 256;           // inputs of a tile: its numbers stay in the first cache
constexpr int64_t kOutputsTogether = 48;      // their sums wait in the second cache for the next inputs
constexpr int64_t kRowsTogether = 512;        // the same for rows
constexpr int64_t kSumsStride = kRowsTogether + 16;  // not a power of two, which would put all outputs in one set of a cache
constexpr int64_t kLeastRows = 56;            // fewer are faster by blocks

typedef float RowLanes __attribute__((vector_size(4 * kRowLanes)));

// The number of rows in this number of whole registers.
inline int64_t LanesOf(int64_t rows) { return (rows + kRowLanes - 1) / kRowLanes * kRowLanes; }

// Whether there are enough rows, and few idle lanes.
inline bool AreLanesFaster(int64_t rows) { return rows >= kLeastRows && 8 * rows >= 7 * LanesOf(rows); }

// R outputs times V registers of rows, for some inputs. Prefetches a line of `ahead` every second input.
// Args: w: [R, kTileDepth]. x: [depth, V * kRowLanes]. sums: [R, V * kRowLanes], kSumsStride from one output to the next.
template <int R, int V>
void Tile(const float* w, const float* x, float* sums, int64_t depth, bool is_first, const LinesAhead& ahead) {
  RowLanes own[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v)
      own[r][v] = is_first ? RowLanes{} : *(const RowLanes*)(sums + r * kSumsStride + v * kRowLanes);
  const auto add = [&](int64_t i) __attribute__((always_inline)) {
    RowLanes rows[V];
    for (int v = 0; v < V; ++v) rows[v] = *(const RowLanes*)(x + (i * V + v) * kRowLanes);
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) own[r][v] += w[r * kTileDepth + i] * rows[v];
  };
  int64_t i = 0;
  for (; i + 2 <= depth; i += 2) {
    if (i < 2 * ahead.count) _mm_prefetch(ahead.first[i / 2], _MM_HINT_T0);
    add(i);
    add(i + 1);
  }
  if (i < depth) add(i);
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) *(RowLanes*)(sums + r * kSumsStride + v * kRowLanes) = own[r][v];
}

using TileFunction = void (*)(const float*, const float*, float*, int64_t, bool, const LinesAhead&);

template <int V, int... R>
constexpr TileFunction TileOf(int64_t outputs, std::integer_sequence<int, R...>) {
  constexpr TileFunction all[] = {Tile<R + 1, V>...};
  return all[outputs - 1];
}

// Widens numbers of an output.
inline void Widen(const uint16_t* numbers, int64_t count, float* wide) {
  for (int64_t i = 0; i < count; i += kRowLanes) {
    const __mmask16 some = i + kRowLanes <= count ? 0xffff : (1 << (count - i)) - 1;
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, numbers + i));
    _mm512_store_si512(wide + i, _mm512_slli_epi32(bits, 16));
  }
}

// Transposes sums into y. Args: sums: [outputs, kSumsStride]. y: [rows, outputs of all].
inline void StoreRows(const float* sums, int64_t rows, int64_t outputs, float* y, int64_t stride) {
  for (int64_t r = 0; r < rows; r += 4)
    for (int64_t o = 0; o < outputs; o += 4) {
      const float* from = sums + o * kSumsStride + r;
      float* to = y + r * stride + o;
      if (r + 4 <= rows && o + 4 <= outputs) {
        __m128 a = _mm_load_ps(from), b = _mm_load_ps(from + kSumsStride);
        __m128 c = _mm_load_ps(from + 2 * kSumsStride), d = _mm_load_ps(from + 3 * kSumsStride);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        _mm_storeu_ps(to, a);
        _mm_storeu_ps(to + stride, b);
        _mm_storeu_ps(to + 2 * stride, c);
        _mm_storeu_ps(to + 3 * stride, d);
      } else {
        for (int64_t i = 0; i < std::min<int64_t>(4, rows - r); ++i)
          for (int64_t j = 0; j < std::min<int64_t>(4, outputs - o); ++j) to[i * stride + j] = from[j * kSumsStride + i];
      }
    }
}

// A matrix, and rows as PackLanes leaves them.
struct LaneProduct {
  const float* x;
  const uint16_t* w;  // [outputs, inputs]
  float* y;           // [rows, outputs]
  int64_t rows, inputs, outputs;
  int64_t part;  // inputs of all parts but the last one
};

// Some rows times the outputs from `first` to `stop`, kRowsTogether and kOutputsTogether at most.
// Args: next: the output that this thread probably takes after them.
inline void MultiplyTogether(const LaneProduct& p, int64_t row, int64_t first, int64_t stop, int64_t next) {
  alignas(64) static thread_local float wide[kTileOutputs * kTileDepth], sums[kOutputsTogether * kSumsStride];
  constexpr auto kAll = std::make_integer_sequence<int, kTileOutputs>();
  const float* x = p.x + row * p.inputs;
  const int64_t rows = std::min(kRowsTogether, p.rows - row), lanes = LanesOf(rows), panels = (lanes + kPanel - 1) / kPanel;
  for (int64_t from = 0; from < p.inputs; from += p.part) {
    const int64_t depth = std::min(p.part, p.inputs - from);
    for (int64_t output = first; output < stop; output += kTileOutputs) {
      const int64_t outputs = std::min(kTileOutputs, stop - output);
      for (int64_t r = 0; r < outputs; ++r) Widen(p.w + (output + r) * p.inputs + from, depth, wide + r * kTileDepth);

      const bool is_last = output + kTileOutputs >= stop, are_all = is_last && from + p.part >= p.inputs;
      const int64_t soon = !is_last ? output + kTileOutputs : are_all ? next : first;
      const int64_t soon_from = !is_last ? from : are_all ? 0 : from + p.part;
      const NextLines<kTileOutputs, kTileDepth> lines(p.w, p.outputs, p.inputs, soon, soon_from, p.part, panels);

      for (int64_t panel = 0; panel < panels; ++panel) {
        const int64_t lane = panel * kPanel, width = std::min(kPanel, lanes - lane);
        const auto tile = width == kPanel ? TileOf<2>(outputs, kAll) : TileOf<1>(outputs, kAll);
        tile(wide, x + lane * p.inputs + from * width, sums + (output - first) * kSumsStride + lane, depth, from == 0,
             lines.Of(panel));
      }
    }
  }
  StoreRows(sums, rows, stop - first, p.y + row * p.outputs + first, p.outputs);
}

// Packs the rows of a register, rounded to bfloat16, from `row` on. The last row is repeated where there are no more.
// Args: x: all rows. to: the packed ones, by kRowsTogether and in them by panels [inputs, rows of the panel].
inline void PackLanes(const float* x, int64_t row, int64_t rows, int64_t inputs, float* to) {
  const int64_t together = row / kRowsTogether * kRowsTogether, panel = row / kPanel * kPanel;
  const int64_t width = std::min(kPanel, LanesOf(std::min(rows - together, kRowsTogether)) - (panel - together));
  float* own = to + panel * inputs + (row - panel);
  const auto load = [=](int64_t r, int64_t i) {
    const float* from = x + std::min(row + r, rows - 1) * inputs + i;
    return RoundedToBfloat16(_mm_maskz_loadu_ps((1 << std::min<int64_t>(4, inputs - i)) - 1, from));
  };
  for (int64_t i = 0; i < inputs; i += 4)
    for (int64_t r = 0; r < kRowLanes; r += 4) {
      __m128 four[4] = {load(r, i), load(r + 1, i), load(r + 2, i), load(r + 3, i)};
      _MM_TRANSPOSE4_PS(four[0], four[1], four[2], four[3]);
      for (int64_t j = 0; j < std::min<int64_t>(4, inputs - i); ++j) _mm_store_ps(own + (i + j) * width + r, four[j]);
    }
}

// All rows times all outputs; each repeat is as the last row.
inline void MultiplyByLanes(const Pool& pool, const float* x, const uint16_t* w, float* y, int64_t rows, int64_t repeats,
                            int64_t inputs, int64_t outputs) {
  const int64_t parts = (inputs + kTileDepth - 1) / kTileDepth, part = ((inputs + parts - 1) / parts + 15) / 16 * 16;
  const PackedRows packed(LanesOf(rows) * inputs * sizeof(float));
  auto* const lanes = reinterpret_cast<float*>(packed.get());
  Run(pool, {LanesOf(rows) / kRowLanes,
             [=](int64_t number) { PackLanes(x, number * kRowLanes, rows, inputs, lanes); }});
  const int64_t threads = std::max<int64_t>(1, pool.num_threads());
  const int64_t size = outputs < kChunks * threads * kOutputsTogether ? kOutputsTogether / 2 : kOutputsTogether;
  const LaneProduct product{lanes, w, y, rows, inputs, outputs, part};
  Run(pool, {(outputs + size - 1) / size, [=](int64_t number) {
               const int64_t first = number * size, stop = std::min(outputs, first + size);
               for (int64_t row = 0; row < rows; row += kRowsTogether)
                 MultiplyTogether(product, row, first, stop, row + kRowsTogether < rows ? first : first + threads * size);
               RepeatLast(y, rows, repeats, outputs, first, stop);
             }});
}

}  // namespace palladio
