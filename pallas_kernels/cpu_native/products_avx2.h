// Kernels of products for CPUs with AVX2.
#pragma once

#include <cstring>
#include <limits>

#include "product_blocks.h"

namespace palladio::avx2 {

inline __m128 TotalsOf(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}

// bfloat16. Interleaved with zeros, which come below, numbers become float32: of sixteen, the lower four of each half and
// then the upper ones. Rows are float32 already, in that order. Interleaving takes no time of the units that multiply.
struct Bfloat16 {
  using Row = float;
  using Number = uint16_t;
  using Vector = __m256;
  using Sum = __m256;
  static constexpr int64_t kStep = 16, kVectors = 2, kFewRows = 1, kPartNumberBytes = 2;

  static Sum Start(const Product&, int64_t, int64_t) { return _mm256_setzero_ps(); }
  template <int V>
  __attribute__((always_inline)) static Vector Load(const Number* w, All) {
    const __m256i numbers = _mm256_loadu_si256((const __m256i*)w), zero = _mm256_setzero_si256();
    return _mm256_castsi256_ps(V ? _mm256_unpackhi_epi16(zero, numbers) : _mm256_unpacklo_epi16(zero, numbers));
  }
  template <int V>
  __attribute__((always_inline)) static Vector Load(const Number* w, int64_t count) {
    Number some[kStep] = {};
    std::memcpy(some, w, count * sizeof(Number));
    return Load<V>(some, All{});
  }
  __attribute__((always_inline)) static Vector LoadRow(const Row* x) {
    Vector row = _mm256_load_ps(x);
    asm("" : "+x"(row));  // else GCC loads it again for each output
    return row;
  }
  __attribute__((always_inline)) static void Add(Sum& sum, const Vector& w, const Vector& x) {
    asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(w), "x"(x));  // else GCC puts sums in place of rows, and moves them
  }
  static __m128 Totals(const Four<Sum>& sums) { return TotalsOf(sums.a, sums.b, sums.c, sums.d); }
  static void PackRow(const float* x, int64_t inputs, int64_t padded, int64_t stride, Row* to);
};

// int8, with rows of 16 or 8 bits, which are stored in 16.
struct Int8 {
  using Row = int16_t;
  using Number = int8_t;
  using Vector = __m256i;
  using Sum = __m256i;
  static constexpr int64_t kStep = 16, kVectors = 1, kFewRows = 2;

  static Sum Start(const Product&, int64_t, int64_t) { return _mm256_setzero_si256(); }
  __attribute__((always_inline)) static Vector Load(const Number* w, All) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)w)); }
  __attribute__((always_inline)) static Vector Load(const Number* w, int64_t count) {
    Number some[kStep] = {};
    std::memcpy(some, w, count);
    return Load(some, All{});
  }
  __attribute__((always_inline)) static Vector LoadRow(const Row* x) { return _mm256_load_si256((const __m256i*)x); }
  __attribute__((always_inline)) static void Add(Sum& sum, Vector w, Vector x) { sum = _mm256_add_epi32(sum, _mm256_madd_epi16(w, x)); }
  static __m128 Totals(const Four<Sum>& sums) {
    return TotalsOf(_mm256_cvtepi32_ps(sums.a), _mm256_cvtepi32_ps(sums.b), _mm256_cvtepi32_ps(sums.c),
                    _mm256_cvtepi32_ps(sums.d));
  }
  static void PackRow(const int16_t* numbers, int64_t padded, int64_t part, int64_t stride, Row* to, int32_t* starts);
};

// Rounds a row to bfloat16, as float32, in the order of the kernel. Args: stride: numbers from one vector of it to the next.
inline void Bfloat16::PackRow(const float* x, int64_t inputs, int64_t padded, int64_t stride, float* rounded) {
  for (int64_t i = 0; i < padded; i += 16) {
    float rest[16] = {};
    if (i + 16 > inputs && i < inputs) std::memcpy(rest, x + i, 4 * (inputs - i));
    const float* from = i + 16 <= inputs ? x + i : rest;
    const __m256 low = RoundedToBfloat16(_mm256_loadu_ps(from)), high = RoundedToBfloat16(_mm256_loadu_ps(from + 8));
    float* to = rounded + i / 16 * stride;
    _mm256_store_ps(to, _mm256_permute2f128_ps(low, high, 0x20));
    _mm256_store_ps(to + 8, _mm256_permute2f128_ps(low, high, 0x31));
  }
}

// Whole numbers of a row as the kernel takes them.
inline void Int8::PackRow(const int16_t* numbers, int64_t padded, int64_t, int64_t stride, int16_t* to, int32_t*) {
  for (int64_t i = 0; i < padded; i += 16)
    _mm256_store_si256((__m256i*)(to + i / 16 * stride), _mm256_load_si256((const __m256i*)(numbers + i)));
}

// Whole numbers of a row. Returns their factor; NaN for a row with a number that is not finite.
inline float WholeNumbers(const float* x, int64_t inputs, int64_t padded, int32_t largest, int16_t* numbers) {
  const __m256 sign = _mm256_set1_ps(-0.0f), zero = _mm256_setzero_ps();
  __m256 most = zero, sum = zero;
  const auto load = [&](int64_t i) {
    if (i + 8 <= inputs) return _mm256_loadu_ps(x + i);
    float rest[8] = {};
    if (i < inputs) std::memcpy(rest, x + i, 4 * (inputs - i));
    return _mm256_loadu_ps(rest);
  };
  for (int64_t i = 0; i < inputs; i += 8) {
    const __m256 size = _mm256_andnot_ps(sign, load(i));
    most = _mm256_max_ps(most, size);
    sum = _mm256_add_ps(sum, _mm256_sub_ps(size, size));  // 0, unless one is not finite
  }
  float highest = 0, mosts[8];
  _mm256_storeu_ps(mosts, most);
  for (float each : mosts) highest = std::max(highest, each);
  if (_mm256_movemask_ps(_mm256_cmp_ps(sum, zero, _CMP_NEQ_UQ))) {
    std::fill(numbers, numbers + padded, int16_t{0});
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float factor = highest / largest;
  const __m256 divisor = _mm256_set1_ps(factor == 0 ? 1.0f : factor), top = _mm256_set1_ps(float(largest));
  for (int64_t i = 0; i < padded; i += 8) {
    __m256 numbers_here = _mm256_div_ps(load(i), divisor);  // a factor of few bits could make more than the largest
    numbers_here = _mm256_max_ps(_mm256_min_ps(numbers_here, top), _mm256_sub_ps(zero, top));
    const __m256i whole = _mm256_cvtps_epi32(numbers_here);
    const __m128i shorts = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_store_si128((__m128i*)(numbers + i), shorts);
  }
  return factor;
}

}  // namespace palladio::avx2
