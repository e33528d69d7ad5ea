// Products of float32 rows with a float32 matrix, inputs first: y[T, out] = x[T, in] . w[in, out].
//
// A tile of rows and outputs keeps its sums in registers, and goes down the inputs. Each sum is made by one thread, one
// input after the other: neither the number of threads nor the other rows change a bit of a row's results.
#pragma once

#include "attention_math.h"
#include "multiply.h"

namespace palladio {

constexpr int64_t kStrip = 64;   // outputs that a thread takes at a time
constexpr int64_t kDepth = 256;  // inputs that rows go through together: their part of a strip stays in a cache
constexpr int64_t kSoon = 12;    // inputs ahead that are prefetched

// R rows times V * L outputs, for inputs from `from` to `end`. L: numbers of a register; a wider type would be kept in
// memory.
template <int L, int R, int V>
__attribute__((always_inline)) inline void DenseTile(const DenseProduct& p, int64_t row, int64_t output, int64_t from,
                                                     int64_t end) {
  typedef typename Lanes<L>::Floats Floats;
  typedef typename Lanes<L>::Anywhere Anywhere;
  Floats sums[R][V];
  float* y = p.y + row * p.outputs + output;
  const float *x = p.x + row * p.inputs, *w = p.w + output;
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sums[r][v] = from ? Floats(*(const Anywhere*)(y + r * p.outputs + v * L)) : Floats{};
  for (int64_t i = from; i < end; ++i) {
    Floats numbers[V];
    for (int v = 0; v < V; ++v) {
      numbers[v] = *(const Anywhere*)(w + i * p.outputs + v * L);
      if (v * L % 16 == 0)  // beyond the matrix for the last inputs: with three rows or more, a test takes longer than that
        __builtin_prefetch(w + (R > 2 ? i + kSoon : std::min(i + kSoon, p.inputs - 1)) * p.outputs + v * L);
    }
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) sums[r][v] += x[r * p.inputs + i] * numbers[v];
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) *(Anywhere*)(y + r * p.outputs + v * L) = sums[r][v];
}

// The last outputs, fewer than 16.
__attribute__((always_inline)) inline void DenseRest(const DenseProduct& p, int64_t output, int64_t stop) {
  for (int64_t row = 0; row < p.rows; ++row)
    for (int64_t o = output; o < stop; ++o) {
      float sum = 0;
      for (int64_t i = 0; i < p.inputs; ++i) sum += p.x[row * p.inputs + i] * p.w[i * p.outputs + o];
      p.y[row * p.outputs + o] = sum;
    }
}

template <int R, int V>
__attribute__((always_inline)) inline void DenseRows(const DenseProduct& p, int64_t row, int64_t output, int64_t from,
                                                     int64_t end) {
  for (; row + R <= p.rows; row += R) DenseTile<16, R, V>(p, row, output, from, end);
  if constexpr (R > 1) DenseRows<R - 1, V>(p, row, output, from, end);
}

#ifdef __AVX512F__

// All rows times the outputs of a strip. 32 registers of 16 numbers: 20 sums.
inline void DenseStrip(const DenseProduct& p, int64_t output, int64_t stop) {
  for (int64_t from = 0; from < p.inputs; from += kDepth) {
    const int64_t end = std::min(p.inputs, from + kDepth);
    int64_t o = output;
    for (; o + 64 <= stop; o += 64) DenseRows<5, 4>(p, 0, o, from, end);
    for (; o + 16 <= stop; o += 16) DenseRows<5, 1>(p, 0, o, from, end);
  }
  DenseRest(p, output + (stop - output) / 16 * 16, stop);
}

#else

// R rows times the outputs of a strip, V * 8 at a time.
template <int R, int V>
__attribute__((always_inline)) inline void DenseColumns(const DenseProduct& p, int64_t row, int64_t output, int64_t stop,
                                                        int64_t from, int64_t end) {
  for (; output + V * 8 <= stop; output += V * 8) DenseTile<8, R, V>(p, row, output, from, end);
  for (; output + 16 <= stop; output += 16) DenseTile<8, R, 2>(p, row, output, from, end);
}

// All rows times the outputs of a strip. 16 registers of 8 numbers: 6 to 12 sums, of six rows or of what is left of them.
// Two units add, and a sum is there four cycles later, so fewer than eight would wait for each other.
inline void DenseStrip(const DenseProduct& p, int64_t output, int64_t stop) {
  const int64_t whole = p.rows / 6 * 6;
  for (int64_t from = 0; from < p.inputs; from += kDepth) {
    const int64_t end = std::min(p.inputs, from + kDepth);
    for (int64_t o = output; o + 16 <= stop; o += 16)
      for (int64_t row = 0; row < whole; row += 6) DenseTile<8, 6, 2>(p, row, o, from, end);
    switch (p.rows - whole) {
      case 5: DenseColumns<5, 2>(p, whole, output, stop, from, end); break;
      case 4: DenseColumns<4, 2>(p, whole, output, stop, from, end); break;
      case 3: DenseColumns<3, 2>(p, whole, output, stop, from, end); break;
      case 2: DenseColumns<2, 4>(p, whole, output, stop, from, end); break;
      case 1: DenseColumns<1, 8>(p, whole, output, stop, from, end); break;
    }
  }
  DenseRest(p, output + (stop - output) / 16 * 16, stop);
}

#endif

}  // namespace palladio
