// Products of float32 rows with a matrix of 16 or 8 bits on a CPU: y[T, out] = x[T, in] . w[out, in]^T.
//
// A product of a few rows reads each number of the matrix once and does little with it, so memory should be the limit;
// one of many rows should keep the multipliers busy. Both read the matrix in memory order, the inputs of an output one
// after the other: a block of rows and outputs keeps its sums in registers, and numbers come from the caches.
//
// Each sum is made by one thread in an order that follows from the number of inputs alone: neither the number of
// threads nor the other rows change a bit of a row's results, unless there are enough rows for row_lanes.h or
// output_lanes.h.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "chunks.h"

namespace palladio {

constexpr int64_t kOutputs = 2;            // of a block: their numbers are loaded once for all its rows
constexpr int64_t kTogetherFew = 4;        // outputs of a block of few rows
constexpr int64_t kRows = 12;              // of a block at most: 24 sums stay in registers
constexpr int64_t kPartBytes = 1 << 11;    // of an output's numbers: those of a block's rows stay in the first cache
#ifdef __AVX512F__
constexpr int64_t kChunkBytes = 1 << 19;   // of a matrix: what a thread takes at a time stays in the second cache
#else
constexpr int64_t kChunkBytes = 1 << 18;   // CPUs without AVX-512 have a smaller one
#endif
constexpr int64_t kChunks = 8;             // for each thread at least: all end at about the same time
constexpr int64_t kAheadBytes = 3 << 12;   // of a matrix: how early memory is asked for numbers
constexpr int64_t kFewAheadBytes = 1 << 13;  // the same for few rows
constexpr int64_t kFewNumbers = 10 << 10;  // of rows: they stay in the first cache whole
constexpr int64_t kLine = 64;              // bytes of a cache line
constexpr int64_t kPackedAlone = 1 << 14;  // numbers of rows that one thread packs
constexpr int64_t kKeptBytes = 1 << 22;    // of packed rows, by each thread that starts products

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Memory that begins with a cache line.
template <typename T>
std::unique_ptr<T[], Free> Lines(int64_t count) {
  const int64_t bytes = (count * int64_t{sizeof(T)} + kLine - 1) / kLine * kLine;
  return std::unique_ptr<T[], Free>(static_cast<T*>(std::aligned_alloc(kLine, std::max(bytes, kLine))));
}

// Numbers of a vector rounded to bfloat16, as float32. NaN stays: rounded like a number, it could become an infinity.
template <typename Floats>
__attribute__((always_inline)) inline Floats RoundedToBfloat16(Floats numbers) {
  typedef uint32_t Bits __attribute__((vector_size(sizeof(Floats))));
  const Bits bits = (Bits)numbers, up = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
  return numbers == numbers ? (Floats)up : numbers;
}

// Memory for packed rows, of one product at a time in a thread. A thread keeps it as far as it is small: the system would
// take back what is freed and clear it again, which takes longer than packing.
class PackedRows {
 public:
  explicit PackedRows(int64_t bytes) : own_(bytes > kKeptBytes ? Lines<char>(bytes) : nullptr) {}
  char* get() const {
    static thread_local const auto kept = Lines<char>(kKeptBytes);
    return own_ ? own_.get() : kept.get();
  }

 private:
  std::unique_ptr<char[], Free> own_;
};

// How rows are divided into blocks: of about one size, since a block of one row takes nearly as long as one of five.
struct RowBlocks {
  int64_t rows = 0;    // of all blocks
  int64_t count = 1;   // of blocks
  int64_t most = 1;    // rows of the first `longer` blocks; the others have one less
  int64_t longer = 0;

  // Args: usual: rows of a block. most: the most rows it can have, if that saves a block.
  static RowBlocks Of(int64_t rows, int64_t usual, int64_t most) {
    const int64_t count = std::max<int64_t>(1, (rows + 2 * usual - most - 1) / usual);
    return {rows, count, rows / count + 1, rows % count};
  }
  // Of the block that begins with a row.
  int64_t SizeAt(int64_t first) const { return first < longer * most ? most : most - 1; }
  // The first row of a block; of the one after the last: the number of rows.
  int64_t StartOf(int64_t block) const { return block * (most - 1) + std::min(block, longer); }
  // The first row of a row's block.
  int64_t FirstOf(int64_t row) const {
    const int64_t beyond = row - longer * most;
    return beyond < 0 ? row / most * most : row - beyond % (most - 1);
  }
};

// Copies some outputs of the last row to those that repeat it. Args: y: [rows + repeats, outputs].
inline void RepeatLast(float* y, int64_t rows, int64_t repeats, int64_t outputs, int64_t first, int64_t stop) {
  const float* last = y + (rows - 1) * outputs;
  for (int64_t row = rows; row < rows + repeats; ++row) std::copy(last + first, last + stop, y + row * outputs + first);
}

// Rows as the blocks of a kernel take them, a matrix, and what becomes of the sums.
struct Product {
  const void* x;         // by blocks of rows [padded / vector, rows, vector]; 0 beyond the inputs
  const void* w;         // [outputs, inputs]
  float* y;              // [rows + repeats, outputs]
  int64_t rows;          // of x
  RowBlocks row_blocks;  // they
  int64_t repeats;       // rows of y after those: they are as the last one
  int64_t inputs, padded, outputs;
  int64_t part, parts;   // inputs of all parts but the last one, and how many parts there are
  int64_t w_bytes;       // of a number of the matrix
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

// How far beyond its own numbers a block prefetches: into the first cache those that come next, and into the second one
// those of one output that come later; 0: none of these.
struct Ahead {
  int64_t soon, later = 0;
};

// Computes a block: the sums over one part of the inputs of some rows and outputs, added to y unless they are the first.
using Block = void (*)(const Product&, int64_t row, int64_t output, int64_t part, Ahead ahead);

// The same for one output, of a block with this number of rows.
using OneOutput = void (*)(const Product&, int64_t row, int64_t rows, int64_t output, int64_t part);

// Blocks of one output; by rows - 1, of two and of four.
struct Blocks {
  int64_t usual, most;  // rows, see RowBlocks::Of
  int64_t few;   // up to this number of rows, one block takes four outputs at a time
  OneOutput one;
  Block two[kRows], four[kRows];
};

// Sums or numbers of four.
template <typename V>
struct Four {
  V a, b, c, d;
};

struct All {};  // numbers of a vector: none lies beyond the inputs

// Some outputs of a matrix, and the first one of those that the same thread probably takes next.
struct Chunk {
  int64_t first, stop, next;
};

// How far the numbers lie ahead that memory is asked for in a block: some outputs further on, in the next part, or in the
// next chunk.
inline int64_t AheadOf(const Product& p, const Chunk& chunk, int64_t output, int64_t part, int64_t outputs) {
  if (output + outputs + kOutputs <= chunk.stop) return outputs * p.inputs;
  const int64_t beyond = std::max<int64_t>(0, output + outputs - chunk.stop), is_last = part + 1 == p.parts;
  const int64_t asked = (is_last ? chunk.next : chunk.first) + beyond;
  if (asked + kOutputs > (is_last ? p.outputs : chunk.stop)) return 0;
  return (asked - output) * p.inputs + (is_last ? -part : 1) * p.part;
}

// How far the same output of the next part lies ahead, or of the next chunk, or one of its neighbours; 0: there is none.
inline int64_t LaterOf(const Product& p, const Chunk& chunk, int64_t output, int64_t part, int64_t neighbour) {
  const bool is_last = part + 1 == p.parts;
  const int64_t asked = output + neighbour + (is_last ? chunk.next - chunk.first : 0);
  return asked < p.outputs ? (asked - output) * p.inputs + (is_last ? -part : 1) * p.part : 0;
}

// Few rows times some outputs, four at a time: with fewer, each sum waits for its own last addition. Memory is read in
// one stream.
inline void MultiplyFew(const Product& p, const Blocks& blocks, const Chunk& chunk) {
  const int64_t block = kTogetherFew * p.inputs * p.w_bytes;
  const int64_t far = (kFewAheadBytes + block - 1) / block * kTogetherFew;  // outputs ahead
  int64_t output = chunk.first;
  for (; output + kTogetherFew <= chunk.stop; output += kTogetherFew) {
    const int64_t asked = output + far + (output + far + kTogetherFew > chunk.stop ? chunk.next - chunk.stop : 0);
    const bool is_there = asked + kTogetherFew <= p.outputs;
    for (int64_t part = 0; part < p.parts; ++part)
      blocks.four[p.rows - 1](p, 0, output, part, {is_there ? (asked - output) * p.inputs : 0});
  }
  for (; output < chunk.stop; ++output)
    for (int64_t part = 0; part < p.parts; ++part) blocks.one(p, 0, p.rows, output, part);
}

// All rows times some outputs, for one part of the inputs after the other. The first block of rows reads the matrix from
// memory; the next ones find it in the second cache, and prefetch the numbers of the outputs after their own. The second
// and the third one also prefetch what the first block reads next, so that memory is as busy all the time.
inline void MultiplyMany(const Product& p, const Blocks& blocks, const Chunk& chunk) {
  const int64_t ahead = std::max<int64_t>(1, kAheadBytes / (p.part * p.w_bytes) / kOutputs) * kOutputs;
  for (int64_t part = 0; part < p.parts; ++part)
    for (int64_t row = 0, pass = 0, rows; row < p.rows; row += rows, ++pass) {
      rows = p.row_blocks.SizeAt(row);
      for (int64_t output = chunk.first; output < chunk.stop; output += kOutputs) {
        if (output + kOutputs > chunk.stop)
          blocks.one(p, row, rows, output, part);
        else if (pass == 0)
          blocks.two[rows - 1](p, row, output, part, {AheadOf(p, chunk, output, part, ahead)});
        else
          blocks.two[rows - 1](p, row, output, part,
                               {kOutputs * p.inputs, pass <= kOutputs ? LaterOf(p, chunk, output, part, pass - 1) : 0});
      }
    }
}

inline void Multiply(const Product& p, const Blocks& blocks, const Chunk& chunk) {
  const bool is_few = p.rows <= blocks.few && p.rows * p.inputs <= kFewNumbers;
  (is_few ? MultiplyFew : MultiplyMany)(p, blocks, chunk);
  RepeatLast(p.y, p.rows, p.repeats, p.outputs, chunk.first, chunk.stop);
}

// The position of a row among those of a product as blocks take them.
struct Place {
  int64_t first = 0;   // its first number
  int64_t stride = 0;  // numbers from one vector of it to the next; 0: it is not there
};

// Args: start: first number of the product's rows. vector: numbers of one.
inline Place PlaceOf(int64_t row, const RowBlocks& blocks, int64_t start, int64_t padded, int64_t vector) {
  const int64_t first = blocks.FirstOf(row);
  return {start + first * padded + (row - first) * vector, blocks.SizeAt(first) * vector};
}

// Packs all rows by a function of one row, on all threads where there is much to pack.
template <typename Pack>
void PackRows(const Pool& pool, int64_t rows, int64_t padded, Pack pack) {
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

// Runs products with matrices of one size on all threads.
inline void RunProducts(const Pool& pool, const std::vector<Product>& products, const Blocks& blocks) {
  if (products.empty()) return;
  const Product& p = products[0];
  const int64_t count = int64_t(products.size()), threads = std::max<int64_t>(1, pool.num_threads());
  const int64_t fair = p.outputs * count / (kChunks * threads), most = kChunkBytes / (p.part * p.w_bytes);
  const int64_t size = std::max<int64_t>(1, std::min(fair, most) / kOutputs) * kOutputs;
  const int64_t chunks = (p.outputs + size - 1) / size;
  Run(pool, {count * chunks, [&products, &blocks, size, chunks, threads](int64_t number) {
               const Product& own = products[number / chunks];
               const int64_t first = number % chunks * size;
               Multiply(own, blocks, {first, std::min(own.outputs, first + size), first + threads * size});
             }});
}

}  // namespace palladio
