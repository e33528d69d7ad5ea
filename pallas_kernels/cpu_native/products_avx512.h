// Kernels of products for CPUs with AVX-512: for bfloat16 with its BF16 or without, for int8 with its VNNI.
#pragma once

#include "product_blocks.h"

// Kernels name their instructions: of the functions for them, compilers make copies of registers, and lose half of the
// speed.
namespace palladio::avx512 {

constexpr int64_t kLanes = 16;  // of 32 bits in a vector

inline __m128 TotalsOf(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
  __m512 all = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  all = _mm512_add_ps(all, _mm512_permute_ps(all, 0x4e));
  all = _mm512_add_ps(all, _mm512_permute_ps(all, 0xb1));
  return _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, all));
}

#ifdef __AVX512BF16__

// bfloat16, by the instruction for 32 products.
struct Bfloat16 {
  using Row = uint16_t;
  using Number = uint16_t;
  using Vector = __m512bh;
  using Sum = __m512;
  static constexpr int64_t kStep = 32, kVectors = 1, kFewRows = 6, kPartNumberBytes = 2;

  static Sum Start(const Product&, int64_t, int64_t) { return _mm512_setzero_ps(); }
  __attribute__((always_inline)) static Vector Load(const Number* w, All) { return (__m512bh)_mm512_loadu_si512(w); }
  __attribute__((always_inline)) static Vector Load(const Number* w, int64_t count) {
    return (__m512bh)_mm512_maskz_loadu_epi16((uint32_t{1} << count) - 1, w);
  }
  __attribute__((always_inline)) static Vector LoadRow(const Row* x) { return (__m512bh)_mm512_load_si512(x); }
  __attribute__((always_inline)) static void Add(Sum& sum, Vector w, Vector x) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
  }
  static __m128 Totals(const Four<Sum>& sums) { return TotalsOf(sums.a, sums.b, sums.c, sums.d); }
  static void PackRow(const float* x, int64_t inputs, int64_t padded, int64_t stride, Row* to);
};

// Rounds a row to bfloat16. Args: stride: numbers from one vector of it to the next.
inline void Bfloat16::PackRow(const float* x, int64_t inputs, int64_t padded, int64_t stride, uint16_t* rounded) {
  for (int64_t i = 0; i < padded; i += 16) {
    const __mmask16 some = i + 16 <= inputs ? 0xffff : i < inputs ? (1 << (inputs - i)) - 1 : 0;
    const __m256bh sixteen = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(some, x + i));
    _mm256_store_si256((__m256i*)(rounded + i / 32 * stride + i % 32), (__m256i)sixteen);
  }
}

#else

// Thirty-two neighbours in pairs: of each pair the lower one, and the upper one.
struct Pairs {
  __m512 low, high;
};

inline Pairs PairsOf(__m512i both) {
  const __m512i high = _mm512_and_si512(both, _mm512_set1_epi32(int32_t(0xffff0000)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)), _mm512_castsi512_ps(high)};
}

// bfloat16, widened and multiplied as float32. Rows are float32 already: of 32 numbers, the lower neighbours first.
struct Bfloat16 {
  using Row = float;
  using Number = uint16_t;
  using Vector = Pairs;
  using Sum = __m512;
  static constexpr int64_t kStep = 32, kVectors = 1, kFewRows = 6, kPartNumberBytes = 4;

  static Sum Start(const Product&, int64_t, int64_t) { return _mm512_setzero_ps(); }
  __attribute__((always_inline)) static Vector Load(const Number* w, All) { return PairsOf(_mm512_loadu_si512(w)); }
  __attribute__((always_inline)) static Vector Load(const Number* w, int64_t count) {
    return PairsOf(_mm512_maskz_loadu_epi16((uint32_t{1} << count) - 1, w));
  }
  __attribute__((always_inline)) static Vector LoadRow(const Row* x) {
    return {_mm512_load_ps(x), _mm512_load_ps(x + kLanes)};
  }
  __attribute__((always_inline)) static void Add(Sum& sum, const Vector& w, const Vector& x) {
    asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(w.low), "v"(x.low));
    asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(w.high), "v"(x.high));
  }
  static __m128 Totals(const Four<Sum>& sums) { return TotalsOf(sums.a, sums.b, sums.c, sums.d); }
  static void PackRow(const float* x, int64_t inputs, int64_t padded, int64_t stride, Row* to);
};

// Rounds a row to bfloat16, as float32, in the order of the kernel. Args: stride: numbers from one vector of it to the next.
inline void Bfloat16::PackRow(const float* x, int64_t inputs, int64_t padded, int64_t stride, float* rounded) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  const auto round = [=](int64_t i) {
    const __mmask16 some = i + 16 <= inputs ? 0xffff : i < inputs ? (1 << (inputs - i)) - 1 : 0;
    return RoundedToBfloat16(_mm512_maskz_loadu_ps(some, x + i));
  };
  for (int64_t i = 0; i < padded; i += 32) {
    const __m512 first = round(i), second = round(i + 16);
    float* to = rounded + i / 32 * stride;
    _mm512_store_ps(to, _mm512_permutex2var_ps(first, even, second));
    _mm512_store_ps(to + kLanes, _mm512_permutex2var_ps(first, odd, second));
  }
}

#endif

#ifdef __AVX512VNNI__

// int8, with rows of 8 bits. The instruction wants one of both unsigned: 128 is added to all numbers of the matrix, so
// sums start with -128 times those of the row.
struct Int8 {
  using Row = int8_t;
  using Number = int8_t;
  using Vector = __m512i;
  using Sum = __m512i;
  static constexpr int64_t kStep = 64, kVectors = 1, kFewRows = 6;

  static Sum Start(const Product& p, int64_t row, int64_t part) {
    return _mm512_loadu_si512(p.starts + (row * p.parts + part) * kLanes);
  }
  __attribute__((always_inline)) static Vector Load(const Number* w, All) {
    return _mm512_xor_si512(_mm512_loadu_si512(w), _mm512_set1_epi8(int8_t(0x80)));
  }
  __attribute__((always_inline)) static Vector Load(const Number* w, int64_t count) {
    const __m512i some = _mm512_maskz_loadu_epi8((uint64_t{1} << count) - 1, w);
    return _mm512_xor_si512(some, _mm512_set1_epi8(int8_t(0x80)));
  }
  __attribute__((always_inline)) static Vector LoadRow(const Row* x) { return _mm512_load_si512(x); }
  __attribute__((always_inline)) static void Add(Sum& sum, Vector w, Vector x) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
  }
  static __m128 Totals(const Four<Sum>& sums) {
    return TotalsOf(_mm512_cvtepi32_ps(sums.a), _mm512_cvtepi32_ps(sums.b), _mm512_cvtepi32_ps(sums.c),
                    _mm512_cvtepi32_ps(sums.d));
  }
  static void PackRow(const int16_t* numbers, int64_t padded, int64_t part, int64_t stride, Row* to, int32_t* starts);
};

// int8, with rows of 16 bits.
struct Int8OfShorts {
  using Row = int16_t;
  using Number = int8_t;
  using Vector = __m512i;
  using Sum = __m512i;
  static constexpr int64_t kStep = 32, kVectors = 1, kFewRows = 6;

  static Sum Start(const Product&, int64_t, int64_t) { return _mm512_setzero_si512(); }
  __attribute__((always_inline)) static Vector Load(const Number* w, All) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)w));
  }
  __attribute__((always_inline)) static Vector Load(const Number* w, int64_t count) {
    return _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8((uint32_t{1} << count) - 1, w));
  }
  __attribute__((always_inline)) static Vector LoadRow(const Row* x) { return _mm512_load_si512(x); }
  __attribute__((always_inline)) static void Add(Sum& sum, Vector w, Vector x) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
  }
  static __m128 Totals(const Four<Sum>& sums) { return Int8::Totals(sums); }
  static void PackRow(const int16_t* numbers, int64_t padded, int64_t part, int64_t stride, Row* to, int32_t* starts);
};

// Bytes of whole numbers of 8 bits, and the starts of their sums.
inline void Int8::PackRow(const int16_t* numbers, int64_t padded, int64_t part, int64_t stride, int8_t* bytes,
                          int32_t* starts) {
  const int64_t parts = (padded + part - 1) / part;
  const __m512i shift = _mm512_set1_epi8(int8_t(0x80));
  for (int64_t number = 0; number < parts; ++number) {
    __m512i sums = _mm512_setzero_si512();
    for (int64_t i = number * part; i < std::min(padded, (number + 1) * part); i += 64) {
      const __m256i first = _mm512_cvtepi16_epi8(_mm512_load_si512(numbers + i));
      const __m256i second = _mm512_cvtepi16_epi8(_mm512_load_si512(numbers + i + 32));
      const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
      _mm512_store_si512(bytes + i / 64 * stride, both);
      sums = _mm512_dpbusd_epi32(sums, shift, both);
    }
    _mm512_storeu_si512(starts + number * kLanes, _mm512_sub_epi32(_mm512_setzero_si512(), sums));
  }
}

// Whole numbers of a row as the kernel takes them.
inline void Int8OfShorts::PackRow(const int16_t* numbers, int64_t padded, int64_t, int64_t stride, int16_t* to, int32_t*) {
  for (int64_t i = 0; i < padded; i += 32)
    _mm512_store_si512(to + i / 32 * stride, _mm512_load_si512(numbers + i));
}

#endif

}  // namespace palladio::avx512
