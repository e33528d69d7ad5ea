// Products of float32 rows with a matrix of 16 or 8 bits on a CPU: y[T, out] = x[T, in] . w[out, in]^T.
//
// A product of a few rows reads each number of the matrix once and does little with it, so memory should be the limit;
// one of many rows should keep the multipliers busy. Both walk the matrix as it lies, the inputs of an output one after
// the other: a block of rows and outputs keeps its sums in registers, and numbers come from the caches.
//
// Each sum is made by one thread in an order that follows from the number of inputs alone: neither the number of
// threads nor the rows beside it change a bit of a row's results.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "chunks.h"

namespace palladio {

constexpr int kOutputs = 4;                  // of a block: their numbers are loaded once for all rows of a block
constexpr int kRows = 4;                     // of a block: 16 sums stay in registers
constexpr int64_t kPartBytes = 1 << 11;       // of an output's numbers: those of a block stay in the first cache
constexpr int64_t kPanelBytes = 1 << 18;     // of rows: they stay in the second cache
constexpr int64_t kChunkBytes = 1 << 17;     // of a matrix: what a thread takes at a time, in the second cache too
constexpr int64_t kStreamBytes = 1 << 19;  // the same, where memory is read in one stream
constexpr int64_t kGroupBytes = 3 << 13;     // of a matrix, in the first cache
constexpr int64_t kLine = 64;                // bytes of a cache line
constexpr int64_t kPackedAlone = 1 << 15;    // numbers of rows that one thread packs

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Memory that begins with a cache line.
template <typename T>
std::unique_ptr<T[], Free> Lines(int64_t count) {
  const int64_t bytes = (count * int64_t{sizeof(T)} + kLine - 1) / kLine * kLine;
  return std::unique_ptr<T[], Free>(static_cast<T*>(std::aligned_alloc(kLine, std::max(bytes, kLine))));
}

// Rows as the blocks of a kernel take them, a matrix, and what becomes of the sums.
struct Product {
  const void* x;         // [rows, padded]; 0 beyond the inputs
  const void* w;         // [outputs, inputs]
  float* y;              // [rows, outputs]
  int64_t rows, inputs, padded, outputs;
  int64_t part, parts;   // inputs of all parts but the last one, and how many parts there are
  int64_t x_bytes, w_bytes;         // of a number
  const float* factors = nullptr;   // [rows]: y of whole numbers is multiplied by it
  const int32_t* starts = nullptr;  // [rows, parts, lanes]: of sums, of bytes
  const int32_t* sums = nullptr;    // [rows, parts]: of x, of whole numbers; where there are zeros
  const float* scales = nullptr;    // [outputs]: y of whole numbers is multiplied by it
  const float* zeros = nullptr;     // [outputs], subtracted from w; null: there are none
};

// Inputs of a part: all parts are of about one size, and of whole vectors.
inline int64_t PartOf(int64_t inputs, int64_t w_bytes) {
  const int64_t most = kPartBytes / w_bytes, parts = std::max<int64_t>(1, (inputs + most - 1) / most);
  return std::max<int64_t>(64, ((inputs + parts - 1) / parts + 63) / 64 * 64);
}

// Computes a block: the sums over one part of the inputs of some rows and outputs, added to y unless they are the first.
using Block = void (*)(const Product&, int64_t row, int64_t output, int64_t part);

// Blocks by rows - 1, of kOutputs outputs, and of one.
struct Blocks {
  int rows;         // of a whole block
  bool is_streamed;  // one block of rows takes one output after the other: memory is read in one stream, which is faster
  Block whole[kRows], last[kRows];
};

// Sums or numbers of four outputs.
template <typename V>
struct Four {
  V a, b, c, d;
};

struct All {};  // numbers of a vector: none lies beyond the inputs

// Asks for numbers of the matrix that the next blocks read.
inline void Ask(const Product& p, int64_t first, int64_t stop, int64_t from, int64_t count) {
  for (int64_t output = first; output < stop; ++output) {
    const char* numbers = static_cast<const char*>(p.w) + (output * p.inputs + from) * p.w_bytes;
    for (int64_t i = 0; i < count * p.w_bytes; i += kLine) _mm_prefetch(numbers + i, _MM_HINT_T0);
  }
}

// Some rows times some outputs, for one part of the inputs. While it computes with some outputs, it asks for the next.
inline void MultiplyPanel(const Product& p, const Blocks& blocks, int64_t panel, int64_t panel_end, int64_t first,
                          int64_t stop, int64_t part) {
  const int64_t from = part * p.part, end = std::min(p.inputs, from + p.part);
  const int64_t steps = (panel_end - panel + blocks.rows - 1) / blocks.rows;
  const int64_t share = ((end - from) / steps + 31) / 32 * 32, ahead = steps > 1 ? stop - first : kOutputs;
  for (int64_t row = panel, asked = from; row < panel_end; row += blocks.rows, asked += share)
    for (int64_t output = first; output < stop;) {
      const bool is_whole = output + kOutputs <= stop;
      const int64_t next = output + (is_whole ? kOutputs : 1), rows = std::min<int64_t>(blocks.rows, panel_end - row);
      if (asked < end)
        Ask(p, std::min(p.outputs, output + ahead), std::min(p.outputs, next + ahead), asked, std::min(share, end - asked));
      (is_whole ? blocks.whole : blocks.last)[rows - 1](p, row, output, part);
      output = next;
    }
}

inline bool IsStreamed(const Product& p, const Blocks& blocks) { return blocks.is_streamed && p.rows <= blocks.rows; }

// All rows times some outputs. Rows go by in panels, which stay in the second cache; for each of them a group of outputs
// stays in the first one. One block of rows walks the matrix from front to end.
inline void Multiply(const Product& p, const Blocks& blocks, int64_t first, int64_t stop) {
  if (IsStreamed(p, blocks)) {
    for (int64_t output = first; output < stop; ++output)
      for (int64_t part = 0; part < p.parts; ++part) blocks.last[p.rows - 1](p, 0, output, part);
    return;
  }
  if (p.rows <= blocks.rows) {
    for (int64_t output = first; output < stop; output += kOutputs)
      for (int64_t part = 0; part < p.parts; ++part)
        MultiplyPanel(p, blocks, 0, p.rows, output, std::min(stop, output + kOutputs), part);
    return;
  }
  const int64_t size = std::max<int64_t>(1, kPanelBytes / (p.part * p.x_bytes) / blocks.rows) * blocks.rows;
  const int64_t group = std::max<int64_t>(1, kGroupBytes / (p.part * p.w_bytes) / kOutputs) * kOutputs;
  for (int64_t part = 0; part < p.parts; ++part)
    for (int64_t panel = 0; panel < p.rows; panel += size)
      for (int64_t output = first; output < stop; output += group)
        MultiplyPanel(p, blocks, panel, std::min(p.rows, panel + size), output, std::min(stop, output + group), part);
}

// Packs all rows by a function of one row, on all threads where there is much to pack.
template <typename Pack>
void PackRows(xla::ffi::ThreadPool pool, int64_t rows, int64_t padded, Pack pack) {
  const int64_t size = std::max<int64_t>(1, kPackedAlone / std::max<int64_t>(1, padded));
  const int64_t chunks = (rows + size - 1) / size;
  const auto some = [rows, size, pack](int64_t chunk) {
    for (int64_t row = chunk * size; row < std::min(rows, (chunk + 1) * size); ++row) pack(row);
  };
  if (chunks == 1)
    some(0);
  else
    Run(pool, {chunks, some});
}

// Runs a product on all threads. A chunk is small enough that all threads end at about the same time.
inline void RunProduct(xla::ffi::ThreadPool pool, const Product& p, const Blocks& blocks) {
  const int64_t fair = p.outputs / (4 * std::max<int64_t>(1, pool.num_threads()));
  const int64_t bytes = IsStreamed(p, blocks) ? kStreamBytes : kChunkBytes, most = bytes / (p.part * p.w_bytes);
  const int64_t size = std::max<int64_t>(1, std::min(fair, most) / kOutputs) * kOutputs;
  Run(pool, {(p.outputs + size - 1) / size, [&p, &blocks, size](int64_t chunk) {
               Multiply(p, blocks, chunk * size, std::min(p.outputs, (chunk + 1) * size));
             }});
}

}  // namespace palladio
