// Our custom calls of XLA for CPUs: products, attention, writes of the cache, and halves of layers.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "attention.h"
#include "call.h"
#include "multiply.h"

namespace palladio {

Int8Multiplier multiply_int8 = nullptr;

namespace {

Problem RowsTimesBfloat16(const Pool& pool, Call& call) {
  const int64_t *x_sizes, *w_sizes;
  const float* x = call.Array(XLA_FFI_DataType_F32, 2, &x_sizes);
  const uint16_t* w = call.Array<uint16_t>(XLA_FFI_DataType_BF16, 2, &w_sizes);
  if (!call.IsRight() || w_sizes[1] != x_sizes[1]) return "rows and matrix do not fit together";
  const int64_t rows = x_sizes[0], inputs = x_sizes[1], outputs = w_sizes[0];
  float* y = call.Result(0, XLA_FFI_DataType_F32, {rows, outputs});
  if (!y) return "no such result";
  MultiplyBfloat16(pool, {x, w, y, rows, inputs, outputs, {rows}});
  return nullptr;
}

Problem GroupsTimesBfloat16(const Pool& pool, Call& call) {
  const int64_t *x_sizes, *w_sizes, *groups;
  const float* x = call.Array(XLA_FFI_DataType_F32, 2, &x_sizes);
  const uint16_t* w = call.Array<uint16_t>(XLA_FFI_DataType_U16, 3, &w_sizes);
  const int32_t* sizes = call.Array<int32_t>(XLA_FFI_DataType_S32, 1, &groups);
  if (!call.IsRight() || w_sizes[2] != x_sizes[1] || w_sizes[0] != groups[0])
    return "rows, matrices and groups do not fit together";
  const int64_t rows = x_sizes[0], inputs = x_sizes[1], outputs = w_sizes[1];
  float* y = call.Result(0, XLA_FFI_DataType_F32, {rows, outputs});
  if (!y) return "no such result";
  std::vector<int64_t> counts;
  int64_t used = 0;
  for (int64_t i = 0; i < groups[0]; ++i) {
    counts.push_back(std::clamp<int64_t>(sizes[i], 0, rows - used));
    used += counts.back();
  }
  MultiplyBfloat16(pool, {x, w, y, used, inputs, outputs, counts});
  std::fill(y + used * outputs, y + rows * outputs, 0.0f);
  return nullptr;
}

Problem RowsTimesInt8(const Pool& pool, Call& call) {
  const int64_t *x_sizes, *w_sizes, *num_scales, *num_zeros;
  const float* x = call.Array(XLA_FFI_DataType_F32, 2, &x_sizes);
  const int8_t* w = call.Array<int8_t>(XLA_FFI_DataType_S8, 2, &w_sizes);
  const float* scales = call.Array(XLA_FFI_DataType_F32, 1, &num_scales);
  const float* zeros = call.Array(XLA_FFI_DataType_F32, 1, &num_zeros);
  const int64_t bits = call.Whole("bits");
  if (!call.IsRight() || w_sizes[1] != x_sizes[1] || num_scales[0] != w_sizes[0] ||
      (num_zeros[0] && num_zeros[0] != w_sizes[0]))
    return "rows, matrix and scales do not fit together";
  const int64_t rows = x_sizes[0], inputs = x_sizes[1], outputs = w_sizes[0];
  float* y = call.Result(0, XLA_FFI_DataType_F32, {rows, outputs});
  if (!y) return "no such result";
  if (!multiply_int8) return kNoInt8;
  multiply_int8(pool, {x, w, scales, num_zeros[0] ? zeros : nullptr, y, rows, inputs, outputs}, bits);
  return nullptr;
}

// Writes a row [2 * padded] of each kv head into the cache, in place.
Problem CacheWrite(const Pool&, Call& call) {
  const int64_t *sizes, *row_sizes, *num_ids, *num_offsets;
  const float* pages = call.Array(XLA_FFI_DataType_F32, 4, &sizes);
  const float* rows = call.Array(XLA_FFI_DataType_F32, 3, &row_sizes);
  const int32_t* page_ids = call.Array<int32_t>(XLA_FFI_DataType_S32, 1, &num_ids);
  const int32_t* page_offsets = call.Array<int32_t>(XLA_FFI_DataType_S32, 1, &num_offsets);
  if (!call.IsRight()) return "pages and rows do not fit together";
  const int64_t P = sizes[0], K = sizes[1], S = sizes[2], width = sizes[3], T = num_ids[0];
  if (row_sizes[0] != T || row_sizes[1] != K || row_sizes[2] != width || num_offsets[0] != T)
    return "pages and rows do not fit together";
  float* written = call.Result(0, XLA_FFI_DataType_F32, {P, K, S, width});
  if (written != pages) return "the cache was copied";
  for (int64_t t = 0; t < T; ++t) {
    const int64_t page = page_ids[t], offset = page_offsets[t];
    if (page < 0 || page >= P || offset < 0 || offset >= S) return "no such page or offset";
    for (int64_t k = 0; k < K; ++k)
      std::memcpy(written + ((page * K + k) * S + offset) * width, rows + (t * K + k) * width, 4 * width);
  }
  return nullptr;
}

Problem PagedAttention(const Pool& pool, Call& call) {
  const int64_t *q_sizes, *page_sizes, *starts, *lengths, *table, *num_sinks;
  Attention a;
  a.q = call.Array(XLA_FFI_DataType_F32, 3, &q_sizes);
  a.pages = call.Array(XLA_FFI_DataType_F32, 4, &page_sizes);
  a.query_start = call.Array<int32_t>(XLA_FFI_DataType_S32, 1, &starts);
  a.kv_len = call.Array<int32_t>(XLA_FFI_DataType_S32, 1, &lengths);
  a.table = call.Array<int32_t>(XLA_FFI_DataType_S32, 2, &table);
  const float* sinks = call.Array(XLA_FFI_DataType_F32, 1, &num_sinks);
  a.window = call.Whole("window");
  a.soft_cap = call.Real("soft_cap");
  if (!call.IsRight()) return "queries and pages do not fit together";
  a.sinks = num_sinks[0] ? sinks : nullptr;
  a.T = q_sizes[0];
  a.B = lengths[0];
  a.N = q_sizes[1];
  a.H = q_sizes[2];
  a.K = page_sizes[1];
  a.S = page_sizes[2];
  a.padded = page_sizes[3] / 2;
  a.width = table[1];
  a.out = call.Result(0, XLA_FFI_DataType_F32, {a.T, a.N, a.H});
  if (!a.out || a.N % a.K || a.H > a.padded || starts[0] != a.B + 1 || table[0] != a.B ||
      (num_sinks[0] && num_sinks[0] != a.N))
    return "queries and pages do not fit together";
  AttendAll(pool, a);
  return nullptr;
}

Problem RowArgmax(const Pool& pool, Call& call) {
  const int64_t *sizes;
  const float* x = call.Array(XLA_FFI_DataType_F32, 2, &sizes);
  if (!call.IsRight()) return "no rows of float32";
  const int64_t rows = sizes[0], size = sizes[1];
  if (size == 0) return "rows without numbers have no largest one";
  int32_t* ids = call.Result<int32_t>(0, XLA_FFI_DataType_S32, {rows});
  bool* are_finite = call.Result<bool>(1, XLA_FFI_DataType_PRED, {rows});
  if (!ids || !are_finite) return "no such result";
  LargestOfRows(pool, x, rows, size, ids, are_finite);
  return nullptr;
}

// The rows that both halves of a layer begin with.
Ends EndsOf(Call& call) {
  Ends ends{};
  const int64_t *sizes;
  ends.x = call.Array(XLA_FFI_DataType_F32, 2, &sizes);
  ends.rows = sizes[0];
  ends.size = sizes[1];
  return ends;
}

// The rest of the beginning, which follows the half's own arguments.
void FinishEnds(Call& call, Ends& ends) {
  const float eps = call.Real("eps"), added = call.Real("added");
  const bool is_centered = call.Flag("is_centered");
  ends.residual = call.Floats(ends.rows * ends.size);
  ends.before = call.NormOf(ends.size, eps, added, is_centered);
  ends.after = call.NormOf(ends.size, eps, added, is_centered);
  ends.factor = call.Real("factor");
  ends.out = call.Result(0, XLA_FFI_DataType_F32, {ends.rows, ends.size});
}

constexpr Problem kBlockError = "the arguments of a block do not fit together";

Problem Mlp(const Pool& pool, Call& call) {
  MlpBlock block{EndsOf(call)};
  const int64_t width = call.Whole("width"), size = block.ends.size;
  block.is_gated = call.Flag("is_gated");
  block.activation = static_cast<Activation>(call.Whole("activation"));
  FinishEnds(call, block.ends);
  block.up = call.MatrixOf(size, block.is_gated ? 2 * width : width, call.Whole("up_bits"));
  block.down = call.MatrixOf(width, size, call.Whole("down_bits"));
  if (!call.IsRight()) return call.Wrong(kBlockError);
  ComputeMlp(pool, block);
  return nullptr;
}

Problem AttentionHalf(const Pool& pool, Call& call) {
  AttentionBlock block{EndsOf(call)};
  Attention& a = block.attention;
  const int64_t *sizes;
  float* const pages = call.Array(XLA_FFI_DataType_F32, 4, &sizes);
  if (!pages) return kBlockError;
  const int64_t P = sizes[0], T = block.ends.rows, D = block.ends.size;
  a.T = T;
  a.N = call.Whole("heads");
  a.H = call.Whole("head_size");
  a.K = sizes[1];
  a.S = sizes[2];
  a.padded = sizes[3] / 2;
  a.pages = block.pages = pages;
  a.window = call.Whole("window");
  a.soft_cap = call.Real("soft_cap");
  block.half = call.Whole("pairs");
  block.head_norm = static_cast<HeadNorm>(call.Whole("head_norm"));
  block.is_interleaved = call.Flag("is_interleaved");
  block.has_gate = call.Flag("has_gate");
  block.scale = call.Real("scale");
  if (call.Result(1, XLA_FFI_DataType_F32, {P, a.K, a.S, sizes[3]}) != pages) return "the cache was copied";
  if (a.N % a.K || a.H > a.padded || 2 * block.half > a.H) return kBlockError;
  FinishEnds(call, block.ends);
  block.qkv = call.MatrixOf(D, (a.N * (block.has_gate ? 2 : 1) + 2 * a.K) * a.H, call.Whole("qkv_bits"));
  block.output = call.MatrixOf(a.N * a.H, D, call.Whole("output_bits"));
  const bool is_shared = block.head_norm == kOfHead, is_centered = call.Flag("is_head_centered");
  const float eps = call.Real("head_eps"), added = call.Real("head_added");
  block.query_norm = call.NormOf(is_shared ? a.H : a.N * a.H, eps, added, is_centered);
  block.key_norm = call.NormOf(is_shared ? a.H : a.K * a.H, eps, added, is_centered);
  block.cos = call.Floats(T * block.half);
  block.sin = call.Floats(T * block.half);
  int64_t ids = 0, offsets = 0, starts = 0, cells = 0;
  block.page_ids = call.Ints(&ids);
  block.page_offsets = call.Ints(&offsets);
  a.query_start = call.Ints(&starts);
  a.kv_len = call.Ints(&a.B);
  a.table = call.Ints(&cells);
  a.sinks = call.Parameter(a.N);
  const bool has_norms = !block.head_norm || (block.query_norm.scale && block.key_norm.scale);
  if (!call.IsRight() || ids != T || offsets != T || starts != a.B + 1 || a.B == 0 || cells % a.B || !has_norms)
    return call.Wrong(kBlockError);
  for (int64_t t = 0; t < T; ++t)
    if (block.page_ids[t] < 0 || block.page_ids[t] >= P || block.page_offsets[t] < 0 || block.page_offsets[t] >= a.S)
      return "no such page or offset";
  a.width = cells / a.B;
  ComputeAttention(pool, block);
  return nullptr;
}

}  // namespace
}  // namespace palladio

extern "C" void PalladioTakeInt8(palladio::Int8Multiplier multiplier) { palladio::multiply_int8 = multiplier; }

#define PALLADIO_CALL(name, compute) \
  extern "C" XLA_FFI_Error* name(XLA_FFI_CallFrame* frame) { return palladio::Start(frame, palladio::compute); }

PALLADIO_CALL(PalladioRowsTimesBfloat16, RowsTimesBfloat16)
PALLADIO_CALL(PalladioGroupsTimesBfloat16, GroupsTimesBfloat16)
PALLADIO_CALL(PalladioRowsTimesInt8, RowsTimesInt8)
PALLADIO_CALL(PalladioPagedAttention, PagedAttention)
PALLADIO_CALL(PalladioCacheWrite, CacheWrite)
PALLADIO_CALL(PalladioRowArgmax, RowArgmax)
PALLADIO_CALL(PalladioMlpBlock, Mlp)
PALLADIO_CALL(PalladioAttentionBlock, AttentionHalf)
