// A layer's operations on each row between its products, in float32.
#pragma once

#include <cmath>

#include "attention_math.h"
#include "layer_blocks.h"

namespace palladio {

// Sixteen sums, whatever a register holds: so each adds up the same numbers on all CPUs.
constexpr int kRegisters = 16 / kRegister;
struct Sums {
  Register parts[kRegisters] = {};
  float Total() const {
    float sum = 0;
    for (const Register& part : parts)
      for (int i = 0; i < kRegister; ++i) sum += part[i];
    return sum;
  }
};

// y = (x - mean) * factor * scale + bias, for n numbers.
__attribute__((always_inline)) inline void Scale(const float* x, float* y, int64_t n, float mean, float factor,
                                                 const float* scale, const float* bias, float added) {
  int64_t i = 0;
  for (; i + kRegister <= n; i += kRegister) {
    Register out = (*(const Unaligned*)(x + i) - mean) * factor * (*(const Unaligned*)(scale + i) + added);
    if (bias) out += *(const Unaligned*)(bias + i);
    *(Unaligned*)(y + i) = out;
  }
  for (; i < n; ++i) y[i] = (x[i] - mean) * factor * (scale[i] + added) + (bias ? bias[i] : 0.0f);
}

__attribute__((always_inline)) inline float SumOfSquares(const float* x, int64_t n, float mean) {
  Sums sums;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int k = 0; k < kRegisters; ++k) {
      const Register part = *(const Unaligned*)(x + i + k * kRegister) - mean;
      sums.parts[k] += part * part;
    }
  float sum = sums.Total();
  for (; i < n; ++i) sum += (x[i] - mean) * (x[i] - mean);
  return sum;
}

__attribute__((always_inline)) inline float MeanOf(const float* x, int64_t n) {
  Sums sums;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int k = 0; k < kRegisters; ++k) sums.parts[k] += *(const Unaligned*)(x + i + k * kRegister);
  float sum = sums.Total();
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
__attribute__((always_inline)) inline Register Sigmoid(const Register& x) {
  Register e = x < 0.0f ? x : -x;
  Exp<kRegister>(e);
  return (x < 0.0f ? e : Register{} + 1.0f) / (1.0f + e);
}

__attribute__((always_inline)) inline Register Activated(const Register& x, Activation activation) {
  if (activation == kRelu2) {
    const Register kept = x < 0.0f ? Register{} : x;
    return kept * kept;
  }
  if (activation == kSilu) return x * Sigmoid(x);
  return x * Sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x));
}

// Numbers of a row from some on, as many as there are; 0 beyond.
__attribute__((always_inline)) inline Register Part(const float* x, int64_t count) {
  if (count >= kRegister) return *(const Unaligned*)x;
  Register part = {};
  std::memcpy(&part, x, 4 * count);
  return part;
}

__attribute__((always_inline)) inline void StorePart(const Register& part, float* y, int64_t count) {
  if (count >= kRegister)
    *(Unaligned*)y = part;
  else
    std::memcpy(y, &part, 4 * count);
}

// y = activation(gate) * up for n numbers; up may be null.
inline void ActivateRow(Activation activation, const float* gate, const float* up, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += kRegister) {
    Register out = Activated(Part(gate + i, n - i), activation);
    if (up) out *= Part(up + i, n - i);
    StorePart(out, y + i, n - i);
  }
}

// y *= sigmoid(gate) for n numbers.
inline void GateRow(const float* gate, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += kRegister)
    StorePart(Part(y + i, n - i) * Sigmoid(Part(gate + i, n - i)), y + i, n - i);
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
  typedef Lanes<kRegister>::Ints Ints;
  Register highest = Register{} - INFINITY, highest2 = highest;
  Ints unordered = {};
  int64_t i = 0;
  for (; i + 2 * kRegister <= n; i += 2 * kRegister) {
    const Register part = *(const Unaligned*)(x + i), part2 = *(const Unaligned*)(x + i + kRegister);
    highest = part > highest ? part : highest;
    highest2 = part2 > highest2 ? part2 : highest2;
    unordered |= (part != part) | (part2 != part2);
  }
  highest = highest2 > highest ? highest2 : highest;
  float largest = -INFINITY;
  bool has_nan = false;
  for (int lane = 0; lane < kRegister; ++lane) {
    largest = std::max(largest, highest[lane]);
    has_nan |= unordered[lane] != 0;
  }
  for (; i < n; ++i) {
    largest = std::max(largest, x[i]);
    has_nan |= x[i] != x[i];
  }
  for (i = 0; !has_nan && i + kRegister <= n; i += kRegister) {
    const Ints equal = *(const Unaligned*)(x + i) == largest;
    int32_t any = 0;
    for (int lane = 0; lane < kRegister; ++lane) any |= equal[lane];
    if (any) break;
  }
  while (i < n && (has_nan ? x[i] == x[i] : x[i] != largest)) ++i;
  return i;
}

}  // namespace palladio
