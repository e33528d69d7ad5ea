// Products of rows with float32, bfloat16 and int8 matrices, by the kernels for the CPU that this is compiled for.
//
// With bfloat16, rows are rounded to bfloat16, as in XLA's own product, and sums are float32. With int8, each row is
// rounded to whole numbers of 16 or 8 bits, by its largest number; sums of a part of the inputs are exact.

#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "chunks.h"

namespace palladio {

// A float32 matrix is stored inputs first, unlike the others.
struct DenseProduct {
  const float* x;  // [rows, inputs]
  const float* w;  // [inputs, outputs]
  float* y;        // [rows, outputs]
  int64_t rows, inputs, outputs;
};

// Rows, and matrices one behind another: the first `sizes[0]` rows are multiplied with the first one, and so on.
struct Bfloat16Products {
  const float* x;
  const uint16_t* w;
  float* y;
  int64_t rows, inputs, outputs;
  std::vector<int64_t> sizes;  // rows beyond their sum are left as they are
};

struct Int8Product {
  const float* x;
  const int8_t* w;
  const float *scales, *zeros;  // zeros may be null
  float* y;
  int64_t rows, inputs, outputs;
};

void MultiplyDense(const Pool& pool, const DenseProduct& of);

void MultiplyBfloat16(const Pool& pool, const Bfloat16Products& of);

// Defined in a library of its own. Args: bits: bits of x, 16 or 8.
using Int8Multiplier = void (*)(const Pool& pool, const Int8Product& of, int64_t bits);

// The function of the loaded library; null: none is loaded.
extern Int8Multiplier multiply_int8;

// Returns the number of rows before the last ones that only repeat the one before them, as rows of padding do. Repeats
// need not be computed.
inline int64_t RowsBeforeRepeats(const float* x, int64_t rows, int64_t inputs) {
  const auto is_repeat = [=](int64_t row) {
    return std::memcmp(x + row * inputs, x + (row - 1) * inputs, inputs * sizeof(float)) == 0;
  };
  while (rows > 1 && is_repeat(rows - 1)) --rows;
  return rows;
}

}  // namespace palladio
