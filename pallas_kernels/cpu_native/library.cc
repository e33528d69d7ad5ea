// The custom calls of XLA that a CPU computes by code of ours: products, attention, and writes of the cache.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "attention.h"
#include "block_calls.h"
#include "multiply.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace palladio {
namespace {

ffi::Error RowsTimesBfloat16(ffi::ThreadPool pool, ffi::BufferR2<ffi::F32> x, ffi::BufferR2<ffi::BF16> w,
                             ffi::Result<ffi::BufferR2<ffi::F32>> y, int64_t by) {
  const int64_t rows = x.dimensions()[0], inputs = x.dimensions()[1], outputs = w.dimensions()[0];
  if (w.dimensions()[1] != inputs) return ffi::Error::InvalidArgument("rows and matrix do not fit together");
  const auto* matrix = reinterpret_cast<const uint16_t*>(w.typed_data());
  MultiplyBfloat16(pool, {x.typed_data(), matrix, y->typed_data(), rows, inputs, outputs, {rows}}, Bfloat16By(by));
  return ffi::Error::Success();
}

ffi::Error GroupsTimesBfloat16(ffi::ThreadPool pool, ffi::BufferR2<ffi::F32> x, ffi::BufferR3<ffi::U16> w,
                               ffi::BufferR1<ffi::S32> sizes, ffi::Result<ffi::BufferR2<ffi::F32>> y, int64_t by) {
  const int64_t rows = x.dimensions()[0], inputs = x.dimensions()[1], outputs = w.dimensions()[1];
  if (w.dimensions()[2] != inputs || w.dimensions()[0] != sizes.dimensions()[0])
    return ffi::Error::InvalidArgument("rows, matrices and groups do not fit together");
  std::vector<int64_t> counts;
  int64_t used = 0;
  for (int64_t i = 0; i < sizes.dimensions()[0]; ++i) {
    counts.push_back(std::clamp<int64_t>(sizes.typed_data()[i], 0, rows - used));
    used += counts.back();
  }
  MultiplyBfloat16(pool, {x.typed_data(), w.typed_data(), y->typed_data(), used, inputs, outputs, counts},
                   Bfloat16By(by));
  std::fill(y->typed_data() + used * outputs, y->typed_data() + rows * outputs, 0.0f);
  return ffi::Error::Success();
}

ffi::Error RowsTimesInt8(ffi::ThreadPool pool, ffi::BufferR2<ffi::F32> x, ffi::BufferR2<ffi::S8> w,
                         ffi::BufferR1<ffi::F32> scales, ffi::BufferR1<ffi::F32> zeros,
                         ffi::Result<ffi::BufferR2<ffi::F32>> y, int64_t bits, bool only_avx2) {
  const int64_t rows = x.dimensions()[0], inputs = x.dimensions()[1], outputs = w.dimensions()[0];
  const int64_t num_zeros = zeros.dimensions()[0];
  if (w.dimensions()[1] != inputs || scales.dimensions()[0] != outputs || (num_zeros && num_zeros != outputs))
    return ffi::Error::InvalidArgument("rows, matrix and scales do not fit together");
  const Int8Product product = {x.typed_data(),   w.typed_data(), scales.typed_data(),
                               num_zeros ? zeros.typed_data() : nullptr, y->typed_data(), rows, inputs, outputs};
  MultiplyInt8(pool, product, bits, only_avx2);
  return ffi::Error::Success();
}

// Writes a row [2 * padded] of each kv head into the cache, in place.
ffi::Error CacheWrite(ffi::BufferR4<ffi::F32> pages, ffi::BufferR3<ffi::F32> rows, ffi::BufferR1<ffi::S32> page_ids,
                      ffi::BufferR1<ffi::S32> page_offsets, ffi::Result<ffi::BufferR4<ffi::F32>> written) {
  const int64_t P = pages.dimensions()[0], K = pages.dimensions()[1], S = pages.dimensions()[2];
  const int64_t width = pages.dimensions()[3], T = page_ids.dimensions()[0];
  if (written->typed_data() != pages.typed_data()) return ffi::Error::Internal("the cache was copied");
  for (int64_t t = 0; t < T; ++t) {
    const int64_t page = page_ids.typed_data()[t], offset = page_offsets.typed_data()[t];
    if (page < 0 || page >= P || offset < 0 || offset >= S) return ffi::Error::InvalidArgument("no such page or offset");
    for (int64_t k = 0; k < K; ++k)
      std::memcpy(written->typed_data() + ((page * K + k) * S + offset) * width, rows.typed_data() + (t * K + k) * width,
                  4 * width);
  }
  return ffi::Error::Success();
}

ffi::Error PagedAttention(ffi::ThreadPool pool, ffi::BufferR3<ffi::F32> q, ffi::BufferR4<ffi::F32> pages,
                           ffi::BufferR1<ffi::S32> query_start, ffi::BufferR1<ffi::S32> kv_len,
                           ffi::BufferR2<ffi::S32> table, ffi::BufferR1<ffi::F32> sinks,
                           ffi::Result<ffi::BufferR3<ffi::F32>> out, int64_t window, float soft_cap,
                           bool only_avx2) {
  Attention a;
  a.q = q.typed_data();
  a.pages = pages.typed_data();
  a.query_start = query_start.typed_data();
  a.kv_len = kv_len.typed_data();
  a.table = table.typed_data();
  a.sinks = sinks.dimensions()[0] ? sinks.typed_data() : nullptr;
  a.out = out->typed_data();
  a.T = q.dimensions()[0];
  a.B = kv_len.dimensions()[0];
  a.N = q.dimensions()[1];
  a.H = q.dimensions()[2];
  a.K = pages.dimensions()[1];
  a.S = pages.dimensions()[2];
  a.padded = pages.dimensions()[3] / 2;
  a.width = table.dimensions()[1];
  a.window = window;
  a.soft_cap = soft_cap;
  a.only_avx2 = only_avx2;
  if (a.N % a.K || a.H > a.padded) return ffi::Error::InvalidArgument("queries and pages do not fit together");
  AttendAll(pool, a);
  return ffi::Error::Success();
}

ffi::Error RowArgmax(ffi::ThreadPool pool, ffi::BufferR2<ffi::F32> x, ffi::Result<ffi::BufferR1<ffi::S32>> ids,
                     ffi::Result<ffi::BufferR1<ffi::PRED>> finite) {
  const int64_t rows = x.dimensions()[0], size = x.dimensions()[1];
  if (size == 0) return ffi::Error::InvalidArgument("rows without numbers have no largest one");
  LargestOfRows(pool, x.typed_data(), rows, size, ids->typed_data(), finite->typed_data());
  return ffi::Error::Success();
}

}  // namespace
}  // namespace palladio

// Whether this CPU has what all calls need; asked before the first one.
extern "C" int PalladioIsSupported() {
  __builtin_cpu_init();  // some compilers leave it to the first caller
  return __builtin_cpu_supports("x86-64-v3") != 0;
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(PalladioRowArgmax, palladio::RowArgmax,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Ret<ffi::BufferR1<ffi::S32>>()
                                  .Ret<ffi::BufferR1<ffi::PRED>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(PalladioRowsTimesBfloat16, palladio::RowsTimesBfloat16,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Arg<ffi::BufferR2<ffi::BF16>>()
                                  .Ret<ffi::BufferR2<ffi::F32>>()
                                  .Attr<int64_t>("by"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(PalladioGroupsTimesBfloat16, palladio::GroupsTimesBfloat16,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Arg<ffi::BufferR3<ffi::U16>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Ret<ffi::BufferR2<ffi::F32>>()
                                  .Attr<int64_t>("by"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(PalladioRowsTimesInt8, palladio::RowsTimesInt8,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Arg<ffi::BufferR2<ffi::S8>>()
                                  .Arg<ffi::BufferR1<ffi::F32>>()
                                  .Arg<ffi::BufferR1<ffi::F32>>()
                                  .Ret<ffi::BufferR2<ffi::F32>>()
                                  .Attr<int64_t>("bits")
                                  .Attr<bool>("only_avx2"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(PalladioPagedAttention, palladio::PagedAttention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Arg<ffi::BufferR4<ffi::F32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .Arg<ffi::BufferR1<ffi::F32>>()
                                  .Ret<ffi::BufferR3<ffi::F32>>()
                                  .Attr<int64_t>("window")
                                  .Attr<float>("soft_cap")
                                  .Attr<bool>("only_avx2"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(PalladioCacheWrite, palladio::CacheWrite,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR4<ffi::F32>>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Ret<ffi::BufferR4<ffi::F32>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(PalladioMlpBlock, palladio::MlpCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .RemainingArgs()
                                  .Ret<ffi::BufferR2<ffi::F32>>()
                                  .Attr<float>("eps")
                                  .Attr<float>("added")
                                  .Attr<bool>("is_centered")
                                  .Attr<float>("factor")
                                  .Attr<int64_t>("width")
                                  .Attr<int64_t>("activation")
                                  .Attr<bool>("is_gated")
                                  .Attr<int64_t>("up_bits")
                                  .Attr<int64_t>("down_bits")
                                  .Attr<bool>("only_avx2"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(PalladioAttentionBlock, palladio::AttentionCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Arg<ffi::BufferR4<ffi::F32>>()
                                  .RemainingArgs()
                                  .Ret<ffi::BufferR2<ffi::F32>>()
                                  .Ret<ffi::BufferR4<ffi::F32>>()
                                  .Attr<float>("eps")
                                  .Attr<float>("added")
                                  .Attr<bool>("is_centered")
                                  .Attr<float>("factor")
                                  .Attr<int64_t>("heads")
                                  .Attr<int64_t>("head_size")
                                  .Attr<int64_t>("pairs")
                                  .Attr<int64_t>("head_norm")
                                  .Attr<float>("head_eps")
                                  .Attr<float>("head_added")
                                  .Attr<bool>("is_head_centered")
                                  .Attr<bool>("is_interleaved")
                                  .Attr<bool>("has_gate")
                                  .Attr<float>("scale")
                                  .Attr<int64_t>("window")
                                  .Attr<float>("soft_cap")
                                  .Attr<int64_t>("qkv_bits")
                                  .Attr<int64_t>("output_bits")
                                  .Attr<bool>("only_avx2"));
