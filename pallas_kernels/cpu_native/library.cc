// Our custom calls of XLA for CPUs: products, attention, writes of the cache, the largest logit.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "attention.h"
#include "call.h"
#include "multiply.h"
#include "row_argmax.h"

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
