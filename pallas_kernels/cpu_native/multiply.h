// Products of rows with bfloat16 and int8 matrices, by the kernels that this CPU has.
//
// With bfloat16, rows are rounded to bfloat16, as in XLA's own product, and sums are float32. With int8, each row is
// rounded to whole numbers of 16 or 8 bits, by its largest number; sums of a part of the inputs are exact. The largest
// part (kPartBytes) times the largest numbers of a lane fits in 32 bits.

#pragma once

#include <vector>

#include "products_avx2.h"
#include "products_avx512.h"

namespace palladio {

constexpr int32_t kLargestShort = 127 * 256, kLargestByte = 127;
static_assert(kPartBytes / 8 * kLargestShort * 128 < (int64_t{1} << 31), "a lane's sum would not fit");

inline bool HasAvx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

// Args: only_avx2: as on a CPU that has no more.
inline void MultiplyBfloat16(xla::ffi::ThreadPool pool, const float* x, const uint16_t* w, float* y, int64_t rows,
                             int64_t inputs, int64_t outputs, bool only_avx2) {
  const bool is_wide = HasAvx512() && __builtin_cpu_supports("avx512bf16") && !only_avx2;
  const int64_t padded = (inputs + 31) / 32 * 32, size = is_wide ? 2 : 4;
  const auto packed = Lines<char>(rows * padded * size);
  PackRows(pool, rows, padded, [=, to = packed.get()](int64_t row) {
    char* own = to + row * padded * size;
    if (is_wide)
      avx512::Round(x + row * inputs, inputs, padded, reinterpret_cast<uint16_t*>(own));
    else
      avx2::Round(x + row * inputs, inputs, padded, reinterpret_cast<float*>(own));
  });
  const int64_t part = PartOf(inputs, 2), parts = std::max<int64_t>(1, (inputs + part - 1) / part);
  const Product product = {packed.get(), w, y, rows, inputs, padded, outputs, part, parts, size, 2};
  RunProduct(pool, product, is_wide ? avx512::kBlocksOfFour<avx512::Bfloat16> : avx2::kBlocksOfTwo<avx2::Bfloat16>);
}

struct Int8Product {
  const float* x;
  const int8_t* w;
  const float *scales, *zeros;  // zeros may be null
  float* y;
  int64_t rows, inputs, outputs;
};

inline const Blocks& Int8Blocks(bool is_wide, bool is_pairs) {
  if (!is_wide) return avx2::kBlocksOfTwo<avx2::Int8>;
  return is_pairs ? avx512::kBlocksOfFour<avx512::Int8Pairs> : avx512::kBlocksOfFour<avx512::Int8>;
}

// Args: bits: of x, 16 or 8. only_avx2: as of MultiplyBfloat16.
inline void MultiplyInt8(xla::ffi::ThreadPool pool, const Int8Product& of, int64_t bits, bool only_avx2) {
  const bool is_wide = HasAvx512() && __builtin_cpu_supports("avx512vnni") && !only_avx2;
  const bool is_pairs = is_wide && bits == 16;
  const int64_t padded = (of.inputs + 63) / 64 * 64, part = PartOf(of.inputs, 1);
  const int64_t parts = std::max<int64_t>(1, (of.inputs + part - 1) / part);
  const int64_t copies = is_pairs ? 2 : 1, size = is_wide ? 1 : 2, lanes = avx512::kLanes;
  const auto packed = Lines<char>(of.rows * copies * padded * size);
  const auto starts = Lines<int32_t>(is_wide ? of.rows * copies * parts * lanes : 0);
  std::vector<float> factors(of.rows);
  std::vector<int32_t> sums(of.zeros ? of.rows * parts : 0);
  PackRows(pool, of.rows, padded, [&, to = packed.get()](int64_t row) {
    const auto apart = Lines<int16_t>(is_wide ? padded : 0);
    int16_t* own = is_wide ? apart.get() : reinterpret_cast<int16_t*>(to) + row * padded;
    const int32_t largest = bits == 8 ? kLargestByte : kLargestShort;
    factors[row] = avx2::WholeNumbers(of.x + row * of.inputs, of.inputs, padded, largest, own);
    if (is_wide)
      avx512::BytesOf(own, padded, part, is_pairs, reinterpret_cast<int8_t*>(to) + row * copies * padded,
                      starts.get() + row * copies * parts * lanes);
    if (of.zeros)
      for (int64_t i = 0; i < of.inputs; ++i) sums[row * parts + i / part] += own[i];
  });
  Product product = {packed.get(), of.w, of.y, of.rows * copies, of.inputs, padded, of.outputs, part, parts, size, 1};
  product.factors = factors.data();
  product.starts = starts.get();
  product.sums = sums.data();
  product.scales = of.scales;
  product.zeros = of.zeros;
  RunProduct(pool, product, Int8Blocks(is_wide, is_pairs));
}

}  // namespace palladio
