// What a layer computes with each row between its products, in float32.
#pragma once

#include <cmath>

#include "attention_math.h"
#include "layer_blocks.h"

namespace palladio {

typedef Lanes<16>::Floats Sums;

__attribute__((always_inline)) inline float SumOf(const Sums& lanes) {
  float sum = 0;
  for (int i = 0; i < 16; ++i) sum += lanes[i];
  return sum;
}

// y = (x - mean) * factor * scale + bias, for n numbers.
__attribute__((always_inline)) inline void Scale(const float* x, float* y, int64_t n, float mean, float factor,
                                                 const float* scale, const float* bias, float added) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    Sums out = (*(const Wide*)(x + i) - mean) * factor * (*(const Wide*)(scale + i) + added);
    if (bias) out += *(const Wide*)(bias + i);
    *(Wide*)(y + i) = out;
  }
  for (; i < n; ++i) y[i] = (x[i] - mean) * factor * (scale[i] + added) + (bias ? bias[i] : 0.0f);
}

__attribute__((always_inline)) inline float SumOfSquares(const float* x, int64_t n, float mean) {
  Sums lanes = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const Sums part = *(const Wide*)(x + i) - mean;
    lanes += part * part;
  }
  float sum = SumOf(lanes);
  for (; i < n; ++i) sum += (x[i] - mean) * (x[i] - mean);
  return sum;
}

__attribute__((always_inline)) inline float MeanOf(const float* x, int64_t n) {
  Sums lanes = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) lanes += *(const Wide*)(x + i);
  float sum = SumOf(lanes);
  for (; i < n; ++i) sum += x[i];
  return sum / n;
}

// y = norm(x), one row of n numbers; y may be x.
inline void NormRow(const Norm& norm, const float* x, float* y, int64_t n) {
  const float mean = norm.is_centered ? MeanOf(x, n) : 0.0f;
  const float factor = 1.0f / std::sqrt(SumOfSquares(x, n, mean) / n + norm.eps);
  Scale(x, y, n, mean, factor, norm.scale, norm.bias, norm.added);
}

inline float SquaresOf(const float* x, int64_t n) { return SumOfSquares(x, n, 0.0f); }

// x *= factor * scale for n numbers, whose scales begin at `first`.
inline void ScaleRow(const Norm& norm, float factor, float* x, int64_t first, int64_t n) {
  Scale(x, x, n, 0.0f, factor, norm.scale + first, norm.bias ? norm.bias + first : nullptr, norm.added);
}

// 1 / (1 + exp(-x)); NaN stays NaN.
__attribute__((always_inline)) inline Sums Sigmoid(const Sums& x) {
  Sums e = x < 0.0f ? x : -x;
  Exp<16>(e);
  return (x < 0.0f ? e : Sums{} + 1.0f) / (1.0f + e);
}

__attribute__((always_inline)) inline Sums Activated(const Sums& x, Activation activation) {
  if (activation == kRelu2) {
    const Sums kept = x < 0.0f ? Sums{} : x;
    return kept * kept;
  }
  if (activation == kSilu) return x * Sigmoid(x);
  return x * Sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x));
}

// y = activation(gate) * up for n numbers; up may be null.
inline void ActivateRow(Activation activation, const float* gate, const float* up, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t count = std::min<int64_t>(16, n - i);
    Sums x = {}, factor = {};
    if (count == 16) {
      x = *(const Wide*)(gate + i);
      if (up) factor = *(const Wide*)(up + i);
    } else {
      std::memcpy(&x, gate + i, 4 * count);
      if (up) std::memcpy(&factor, up + i, 4 * count);
    }
    Sums out = Activated(x, activation);
    if (up) out *= factor;
    std::memcpy(y + i, &out, 4 * count);
  }
}

// y *= sigmoid(gate) for n numbers.
inline void GateRow(const float* gate, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t count = std::min<int64_t>(16, n - i);
    Sums x = {}, out = {};
    std::memcpy(&x, gate + i, 4 * count);
    std::memcpy(&out, y + i, 4 * count);
    out *= Sigmoid(x);
    std::memcpy(y + i, &out, 4 * count);
  }
}

// y = residual + x * factor for n numbers; y may be x.
inline void AddRow(const float* residual, const float* x, float factor, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = residual[i] + x[i] * factor;
}

inline void AddBias(const float* bias, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += bias[i];
}

// Rotates the pairs of one head, in its first 2 * half dimensions, and multiplies all of it by a factor. y is not x.
inline void RotateHead(const float* x, const float* cos, const float* sin, int64_t half, bool is_interleaved, float factor,
                       float* y, int64_t H) {
  if (is_interleaved)
    for (int64_t i = 0; i < half; ++i) {
      const float first = x[2 * i], second = x[2 * i + 1];
      y[2 * i] = (first * cos[i] - second * sin[i]) * factor;
      y[2 * i + 1] = (second * cos[i] + first * sin[i]) * factor;
    }
  else
    for (int64_t i = 0; i < half; ++i) {
      const float first = x[i], second = x[i + half];
      y[i] = (first * cos[i] - second * sin[i]) * factor;
      y[i + half] = (second * cos[i] + first * sin[i]) * factor;
    }
  for (int64_t i = 2 * half; i < H; ++i) y[i] = x[i] * factor;
}

// The place of the largest of n numbers, the first of equals; NaN is larger than all.
inline int64_t LargestOf(const float* x, int64_t n) {
  typedef Lanes<16>::Ints Ints;
  Sums highest = Sums{} - INFINITY;
  Ints unordered = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const Sums part = *(const Wide*)(x + i);
    highest = part > highest ? part : highest;
    unordered |= part != part;
  }
  float largest = -INFINITY;
  bool has_nan = false;
  for (int lane = 0; lane < 16; ++lane) {
    largest = std::max(largest, highest[lane]);
    has_nan |= unordered[lane] != 0;
  }
  for (; i < n; ++i) {
    largest = std::max(largest, x[i]);
    has_nan |= x[i] != x[i];
  }
  for (i = 0; !has_nan && i + 16 <= n; i += 16) {
    const Ints equal = *(const Wide*)(x + i) == largest;
    int32_t any = 0;
    for (int lane = 0; lane < 16; ++lane) any |= equal[lane];
    if (any) break;
  }
  while (i < n && (has_nan ? x[i] == x[i] : x[i] != largest)) ++i;
  return i;
}

}  // namespace palladio
