// Half a layer for a few rows: its norm, products, the operations between them, and the residual sum, in one call.
// XLA:CPU starts an operation for each of these, and most of them take less time than their start.
#pragma once

#include <cstdint>

#include "attention.h"

namespace palladio {

enum class MatrixKind { kFloat32, kBfloat16, kInt8 };

struct Matrix {
  MatrixKind kind;
  const void* values;  // float32: [inputs, outputs], others: [outputs, inputs]
  const float *scales, *zeros;  // [outputs], of int8; zeros may be null
  const float* bias;            // [outputs], or null
  int64_t inputs, outputs, bits;

  int64_t size() const { return inputs * outputs; }
};

struct Norm {
  const float *scale = nullptr, *bias = nullptr;  // [size]; no scale: there is no norm
  float eps = 0, added = 0;                       // to the mean of squares, and to the scale
  bool is_centered = false;                       // the mean is subtracted first
};

enum Activation { kSilu, kGeluTanh, kRelu2 };

// The beginning and the end of both halves.
struct Ends {
  const float *x, *residual;  // [rows, size]
  float* out;                 // [rows, size]
  int64_t rows, size;
  Norm before, after;
  float factor;  // of what is added to the residual
};

struct MlpBlock {
  Ends ends;
  Matrix up, down;  // up: the gate's outputs first, if there is one
  Activation activation;
  bool is_gated;
};

enum HeadNorm { kNone, kOfHead, kOwnScales, kAllHeads };

struct AttentionBlock {
  Ends ends;
  Matrix qkv, output;  // qkv: of each kv head its query heads, its key, its value, and gates of its query heads, if any
  HeadNorm head_norm;
  Norm query_norm, key_norm;
  const float *cos, *sin;  // [rows, half]
  int64_t half;            // pairs of a head that are rotated
  bool is_interleaved, has_gate;
  float scale;             // of scores
  float* pages;            // as those of `attention`
  const int32_t *page_ids, *page_offsets;
  Attention attention;     // all but q and out
};

void ComputeMlp(const Pool& pool, const MlpBlock& b);

void ComputeAttention(const Pool& pool, const AttentionBlock& b);

// Finds the place of each row's largest number, the first of equals, where NaN is larger than all; and whether that
// number is finite.
void LargestOfRows(const Pool& pool, const float* x, int64_t rows, int64_t size, int32_t* ids, bool* finite);

}  // namespace palladio
