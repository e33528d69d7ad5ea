// Products of a few float32 rows with a matrix of 16 or 8 bits on a CPU:
// y[T, out] = x[T, in] . w, of bfloat16 w[out, in]^T or int8 w[in, out].
//
// A product of a few rows reads each number of the matrix once and does little with it, so memory should be the limit.
// XLA:CPU converts every bfloat16 number to float32 on the way, on which one core spends twice the time that reading
// takes; for int8 it has products of bytes alone, so that rows have to be rounded to bytes before.
// With bfloat16, rows are rounded to bfloat16, as in XLA's own product; with int8 they are not rounded. Sums are float32.
// Each sum is made by one thread in an order that follows from the sizes alone, so the number of threads changes no
// result.

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "chunks.h"

namespace palladio {

constexpr int kOutputs = 4;              // of a block: their numbers are loaded once for all rows of a block
constexpr int kRows = 4;                 // of a block: 16 sums stay in registers
constexpr int64_t kChunkBytes = 1 << 17;  // of a matrix: what a thread takes at a time

struct Bfloat16Product {
  const uint16_t* x;  // [rows, padded], bfloat16; 0 beyond the inputs
  const uint16_t* w;  // [outputs, inputs], bfloat16
  float* y;           // [rows, outputs]
  int64_t rows, inputs, padded, outputs;
};

// What 32 numbers at a time leave over, of one output and one row.
float Rest(const Bfloat16Product& p, int64_t row, int64_t output, int64_t from) {
  float sum = 0;
  for (int64_t i = from; i < p.inputs; ++i) {
    uint32_t a = uint32_t{p.x[row * p.padded + i]} << 16, b = uint32_t{p.w[output * p.inputs + i]} << 16;
    float left, right;
    std::memcpy(&left, &a, 4);
    std::memcpy(&right, &b, 4);
    sum += left * right;
  }
  return sum;
}

template <int R, int O>
__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) void BlockAvx512Bf16(const Bfloat16Product& p, int64_t row,
                                                                                     int64_t output) {
  __m512 sums[R][O];
  for (auto& own : sums)
    for (auto& sum : own) sum = _mm512_setzero_ps();
  const int64_t whole = p.inputs / 32 * 32;
  for (int64_t i = 0; i < whole; i += 32) {
    __m512bh x[R];
    for (int r = 0; r < R; ++r) x[r] = (__m512bh)_mm512_loadu_si512(p.x + (row + r) * p.padded + i);
    for (int o = 0; o < O; ++o) {
      const auto w = (__m512bh)_mm512_loadu_si512(p.w + (output + o) * p.inputs + i);
      for (int r = 0; r < R; ++r) sums[r][o] = _mm512_dpbf16_ps(sums[r][o], w, x[r]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int o = 0; o < O; ++o)
      p.y[(row + r) * p.outputs + output + o] =
          _mm512_reduce_add_ps(sums[r][o]) + Rest(p, row + r, output + o, whole);
}

// Of two neighbours in 32 bits, the upper one is a float32 when the lower one is cleared, the lower one when shifted up.
template <int R, int O>
__attribute__((target("avx2,fma"))) void BlockAvx2(const Bfloat16Product& p, int64_t row, int64_t output) {
  static_assert(R * O <= 8, "more sums than registers");
  __m256 sums[R][O];
  for (auto& own : sums)
    for (auto& sum : own) sum = _mm256_setzero_ps();
  const __m256i upper = _mm256_set1_epi32(int32_t(0xffff0000));
  const int64_t whole = p.inputs / 16 * 16;
  for (int64_t i = 0; i < whole; i += 16) {
    for (int r = 0; r < R; ++r) {
      const __m256i x = _mm256_loadu_si256((const __m256i*)(p.x + (row + r) * p.padded + i));
      const __m256 x_low = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
      const __m256 x_high = _mm256_castsi256_ps(_mm256_and_si256(x, upper));
      for (int o = 0; o < O; ++o) {
        const __m256i w = _mm256_loadu_si256((const __m256i*)(p.w + (output + o) * p.inputs + i));
        sums[r][o] = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(w, 16)), x_low, sums[r][o]);
        sums[r][o] = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(w, upper)), x_high, sums[r][o]);
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int o = 0; o < O; ++o) {
      float parts[8], sum = 0;
      _mm256_storeu_ps(parts, sums[r][o]);
      for (float part : parts) sum += part;
      p.y[(row + r) * p.outputs + output + o] = sum + Rest(p, row + r, output + o, whole);
    }
}

using Block = void (*)(const Bfloat16Product&, int64_t, int64_t);

// Blocks by rows and outputs: whole ones, and those at the edges.
struct Blocks {
  int rows;                        // of a whole block
  Block whole[kRows], last[kRows];  // by rows - 1; of kOutputs outputs, and of one
};

const Blocks kAvx512Bf16 = {4,
                            {BlockAvx512Bf16<1, 4>, BlockAvx512Bf16<2, 4>, BlockAvx512Bf16<3, 4>, BlockAvx512Bf16<4, 4>},
                            {BlockAvx512Bf16<1, 1>, BlockAvx512Bf16<2, 1>, BlockAvx512Bf16<3, 1>, BlockAvx512Bf16<4, 1>}};
const Blocks kAvx2 = {2, {BlockAvx2<1, 4>, BlockAvx2<2, 4>}, {BlockAvx2<1, 1>, BlockAvx2<2, 1>}};

void Multiply(const Bfloat16Product& p, int64_t first, int64_t stop) {
  const bool is_wide = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw");
  const Blocks& blocks = is_wide ? kAvx512Bf16 : kAvx2;
  for (int64_t output = first; output < stop;) {
    const bool is_whole = output + kOutputs <= stop;
    for (int64_t row = 0; row < p.rows; row += blocks.rows) {
      const int64_t rows = std::min<int64_t>(blocks.rows, p.rows - row);
      (is_whole ? blocks.whole : blocks.last)[rows - 1](p, row, output);
    }
    output += is_whole ? kOutputs : 1;
  }
}

struct Int8Product {
  const float* x;   // [rows, inputs]
  const int8_t* w;  // [inputs, outputs]
  float* y;         // [rows, outputs]
  int64_t rows, inputs, outputs;
};

constexpr int kVectors = 8;     // of outputs in a block: two cache lines of each input's numbers with AVX-512
constexpr int64_t kAhead = 8;   // inputs whose numbers are asked for early: each lies on another page of memory

// Outputs that fill no vector.
void Rest(const Int8Product& p, int64_t row, int64_t from, int64_t stop) {
  for (int64_t output = from; output < stop; ++output) {
    float sum = 0;
    for (int64_t i = 0; i < p.inputs; ++i) sum += p.x[row * p.inputs + i] * p.w[i * p.outputs + output];
    p.y[row * p.outputs + output] = sum;
  }
}

template <int V>
__attribute__((target("avx512f"))) void BytesAvx512(const Int8Product& p, int64_t row, int64_t output) {
  __m512 sums[V];
  for (auto& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < p.inputs; ++i) {
    const int8_t* w = p.w + i * p.outputs + output;
    if (i + kAhead < p.inputs)
      for (int v = 0; v < V; v += 4) _mm_prefetch((const char*)(w + kAhead * p.outputs + 16 * v), _MM_HINT_T0);
    const __m512 x = _mm512_set1_ps(p.x[row * p.inputs + i]);
    for (int v = 0; v < V; ++v) {
      const __m512i wide = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(w + 16 * v)));
      sums[v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(wide), x, sums[v]);
    }
  }
  for (int v = 0; v < V; ++v) _mm512_storeu_ps(p.y + row * p.outputs + output + 16 * v, sums[v]);
}

template <int V>
__attribute__((target("avx2,fma"))) void BytesAvx2(const Int8Product& p, int64_t row, int64_t output) {
  __m256 sums[V];
  for (auto& sum : sums) sum = _mm256_setzero_ps();
  for (int64_t i = 0; i < p.inputs; ++i) {
    const int8_t* w = p.w + i * p.outputs + output;
    if (i + kAhead < p.inputs) _mm_prefetch((const char*)(w + kAhead * p.outputs), _MM_HINT_T0);
    const __m256 x = _mm256_set1_ps(p.x[row * p.inputs + i]);
    for (int v = 0; v < V; ++v) {
      const __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(w + 8 * v)));
      sums[v] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(wide), x, sums[v]);
    }
  }
  for (int v = 0; v < V; ++v) _mm256_storeu_ps(p.y + row * p.outputs + output + 8 * v, sums[v]);
}

void Multiply(const Int8Product& p, int64_t first, int64_t stop) {
  const bool is_wide = __builtin_cpu_supports("avx512f");
  const auto whole = is_wide ? BytesAvx512<kVectors> : BytesAvx2<kVectors>;
  const auto single = is_wide ? BytesAvx512<1> : BytesAvx2<1>;
  const int64_t vector = is_wide ? 16 : 8;
  int64_t output = first;
  for (; output + kVectors * vector <= stop; output += kVectors * vector)
    for (int64_t row = 0; row < p.rows; ++row) whole(p, row, output);
  for (; output + vector <= stop; output += vector)
    for (int64_t row = 0; row < p.rows; ++row) single(p, row, output);
  for (int64_t row = 0; row < p.rows; ++row) Rest(p, row, output, stop);
}

template <typename Product>
Work Chunked(const Product& product, int64_t bytes_per_output, int64_t multiple) {
  const int64_t size = std::max<int64_t>(1, kChunkBytes / std::max<int64_t>(1, bytes_per_output) / multiple) * multiple;
  return {(product.outputs + size - 1) / size, [product, size](int64_t chunk) {
            Multiply(product, chunk * size, std::min(product.outputs, (chunk + 1) * size));
          }};
}

}  // namespace palladio
