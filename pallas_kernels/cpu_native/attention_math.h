// Vectors of floats for both kinds of attention and for row_argmax.cc.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "attention.h"

namespace palladio {

#ifdef __AVX512F__
constexpr int kRegister = 16;    // numbers of a register
#else
constexpr int kRegister = 8;
#endif
constexpr int kTile = 8;         // keys at a time: their sums are independent of each other
constexpr float kLowest = -3.4028234663852886e38f;

// Numbers of L query heads of a group.
template <int L>
struct Lanes;
template <>
struct Lanes<8> {
  typedef float Floats __attribute__((vector_size(32)));
  typedef float Anywhere __attribute__((vector_size(32), aligned(4)));  // numbers of a row
  typedef int32_t Ints __attribute__((vector_size(32)));
};
template <>
struct Lanes<16> {
  typedef float Floats __attribute__((vector_size(64)));
  typedef float Anywhere __attribute__((vector_size(64), aligned(4)));
  typedef int32_t Ints __attribute__((vector_size(64)));
};

// Numbers of a register, and those of a row from anywhere. GCC keeps wider vectors in memory, and takes ten times as long.
typedef Lanes<kRegister>::Floats Register;
typedef Lanes<kRegister>::Anywhere Unaligned;

// e to the power of x <= 0, to 2 ulp; 0 below -87. NaN stays NaN.
template <int L, typename V = typename Lanes<L>::Floats>
__attribute__((always_inline)) inline void Exp(V& x) {
  typedef typename Lanes<L>::Ints I;
  const V clamped = x > -87.0f ? x : V{} - 87.0f;
  const V shifted = clamped * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds to whole numbers
  const V n = shifted - 12582912.0f;
  const V r = clamped - n * 0.693359375f - n * -2.12194440e-4f;
  V p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const V power = (V)((I)p + ((I)shifted << 23));
  const V result = x > -87.0f ? power : V{};
  x = x == x ? result : x;
}

template <int L, typename V = typename Lanes<L>::Floats>
__attribute__((always_inline)) inline void Cap(V& scores, float cap) {
  const V x = scores / cap;
  V e = (x < 0.0f ? x : -x) * 2.0f;  // tanh(|x|) = (1 - e) / (1 + e) with e = exp(-2 |x|)
  Exp<L>(e);
  const V tanh = (1.0f - e) / (1.0f + e);
  scores = cap * (x < 0.0f ? -tanh : tanh);
}

}  // namespace palladio
