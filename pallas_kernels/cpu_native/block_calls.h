// The arguments of a block as XLA gives them: those that are not there have no numbers.
#pragma once

#include <cstring>
#include <vector>

#include "layer_blocks.h"
#include "xla/ffi/api/ffi.h"

namespace palladio {

// Reads arguments in their order; the first that does not fit makes the call an error. What it makes of those that are
// not of float32 lasts as long as it does.
class Arguments {
 public:
  explicit Arguments(const xla::ffi::RemainingArgs& args) : args_(args) {}

  const float* Floats(int64_t count) {
    const auto buffer = Next();
    if (int64_t(buffer.element_count()) != count || buffer.element_type() != xla::ffi::F32) return Fail<const float*>();
    return static_cast<const float*>(buffer.untyped_data());
  }
  const int32_t* Ints(int64_t* count) {
    const auto buffer = Next();
    if (buffer.element_type() != xla::ffi::S32) return Fail<const int32_t*>();
    *count = buffer.element_count();
    return static_cast<const int32_t*>(buffer.untyped_data());
  }
  // Of float32, bfloat16 or int8, which become float32. Null: it has no numbers.
  const float* Parameter(int64_t count) {
    const auto buffer = Next();
    if (buffer.element_count() == 0) return nullptr;
    if (int64_t(buffer.element_count()) != count) return Fail<const float*>();
    if (buffer.element_type() == xla::ffi::F32) return static_cast<const float*>(buffer.untyped_data());
    wide_.emplace_back(count);
    float* wide = wide_.back().data();
    if (buffer.element_type() == xla::ffi::BF16)
      for (int64_t i = 0; i < count; ++i) {
        const uint32_t bits = uint32_t{static_cast<const uint16_t*>(buffer.untyped_data())[i]} << 16;
        std::memcpy(wide + i, &bits, 4);
      }
    else if (buffer.element_type() == xla::ffi::S8)
      for (int64_t i = 0; i < count; ++i) wide[i] = static_cast<const int8_t*>(buffer.untyped_data())[i];
    else
      return Fail<const float*>();
    return wide;
  }
  Norm NormOf(int64_t size, float eps, float added, bool is_centered) {
    Norm norm;
    norm.scale = Parameter(size);
    norm.bias = Parameter(size);
    norm.eps = eps;
    norm.added = added;
    norm.is_centered = is_centered;
    return norm;
  }
  Matrix MatrixOf(int64_t inputs, int64_t outputs, int64_t bits) {
    Matrix m{};
    const auto values = Next();
    const auto type = values.element_type();
    m.kind = type == xla::ffi::F32    ? MatrixKind::kFloat32
             : type == xla::ffi::BF16 ? MatrixKind::kBfloat16
                                      : MatrixKind::kInt8;
    if (m.kind == MatrixKind::kInt8 && type != xla::ffi::S8) is_wrong_ = true;
    m.values = values.untyped_data();
    m.inputs = inputs;
    m.outputs = outputs;
    m.bits = bits;
    m.scales = Parameter(outputs);
    m.zeros = Parameter(outputs);
    m.bias = Parameter(outputs);
    if (int64_t(values.element_count()) != inputs * outputs || (m.kind == MatrixKind::kInt8) != (m.scales != nullptr))
      is_wrong_ = true;
    return m;
  }
  xla::ffi::AnyBuffer Next() {
    auto found = args_.get<xla::ffi::AnyBuffer>(next_);
    if (found.has_error()) is_wrong_ = true;
    else ++next_;
    return found.has_error() ? *args_.get<xla::ffi::AnyBuffer>(0) : *found;
  }
  // All were there, and no others are.
  bool AreRight() const { return !is_wrong_ && next_ == args_.size(); }

 private:
  template <typename T>
  T Fail() {
    is_wrong_ = true;
    return nullptr;
  }

  const xla::ffi::RemainingArgs& args_;
  size_t next_ = 0;
  bool is_wrong_ = false;
  std::vector<std::vector<float>> wide_;
};

inline Ends EndsOf(Arguments& arguments, xla::ffi::BufferR2<xla::ffi::F32> x, float* out, float eps, float added,
                   bool is_centered, float factor) {
  Ends ends{};
  ends.x = x.typed_data();
  ends.out = out;
  ends.rows = x.dimensions()[0];
  ends.size = x.dimensions()[1];
  ends.residual = arguments.Floats(ends.rows * ends.size);
  ends.before = arguments.NormOf(ends.size, eps, added, is_centered);
  ends.after = arguments.NormOf(ends.size, eps, added, is_centered);
  ends.factor = factor;
  return ends;
}

inline xla::ffi::Error BlockError() {
  return xla::ffi::Error::InvalidArgument("the arguments of a block do not fit together");
}

inline xla::ffi::Error MlpCall(xla::ffi::ThreadPool pool, xla::ffi::BufferR2<xla::ffi::F32> x,
                               xla::ffi::RemainingArgs args, xla::ffi::Result<xla::ffi::BufferR2<xla::ffi::F32>> out,
                               float eps, float added, bool is_centered, float factor, int64_t width, int64_t activation,
                               bool is_gated, int64_t up_bits, int64_t down_bits, bool only_avx2) {
  Arguments arguments(args);
  MlpBlock block{EndsOf(arguments, x, out->typed_data(), eps, added, is_centered, factor)};
  block.up = arguments.MatrixOf(block.ends.size, is_gated ? 2 * width : width, up_bits);
  block.down = arguments.MatrixOf(width, block.ends.size, down_bits);
  block.activation = static_cast<Activation>(activation);
  block.is_gated = is_gated;
  block.only_avx2 = only_avx2;
  if (!arguments.AreRight()) return BlockError();
  ComputeMlp(pool, block);
  return xla::ffi::Error::Success();
}

inline xla::ffi::Error AttentionCall(xla::ffi::ThreadPool pool, xla::ffi::BufferR2<xla::ffi::F32> x,
                                     xla::ffi::BufferR4<xla::ffi::F32> pages, xla::ffi::RemainingArgs args,
                                     xla::ffi::Result<xla::ffi::BufferR2<xla::ffi::F32>> out,
                                     xla::ffi::Result<xla::ffi::BufferR4<xla::ffi::F32>> written, float eps, float added,
                                     bool is_centered, float factor, int64_t heads, int64_t head_size, int64_t pairs,
                                     int64_t head_norm, float head_eps, float head_added, bool is_head_centered,
                                     bool is_interleaved, bool has_gate, float scale, int64_t window, float soft_cap,
                                     int64_t qkv_bits, int64_t output_bits, bool only_avx2) {
  if (written->typed_data() != pages.typed_data()) return xla::ffi::Error::Internal("the cache was copied");
  Arguments arguments(args);
  AttentionBlock block{EndsOf(arguments, x, out->typed_data(), eps, added, is_centered, factor)};
  Attention& a = block.attention;
  const int64_t T = block.ends.rows, D = block.ends.size;
  a.T = T;
  a.N = heads;
  a.H = head_size;
  a.K = pages.dimensions()[1];
  a.S = pages.dimensions()[2];
  a.padded = pages.dimensions()[3] / 2;
  if (a.N % a.K || a.H > a.padded || 2 * pairs > a.H) return BlockError();
  block.qkv = arguments.MatrixOf(D, (a.N * (has_gate ? 2 : 1) + 2 * a.K) * a.H, qkv_bits);
  block.output = arguments.MatrixOf(a.N * a.H, D, output_bits);
  block.head_norm = static_cast<HeadNorm>(head_norm);
  const bool is_shared = head_norm == kOfHead;
  block.query_norm = arguments.NormOf(is_shared ? a.H : a.N * a.H, head_eps, head_added, is_head_centered);
  block.key_norm = arguments.NormOf(is_shared ? a.H : a.K * a.H, head_eps, head_added, is_head_centered);
  block.half = pairs;
  block.cos = arguments.Floats(T * pairs);
  block.sin = arguments.Floats(T * pairs);
  block.is_interleaved = is_interleaved;
  block.has_gate = has_gate;
  block.scale = scale;
  block.pages = written->typed_data();
  int64_t ids = 0, offsets = 0, starts = 0, cells = 0;
  block.page_ids = arguments.Ints(&ids);
  block.page_offsets = arguments.Ints(&offsets);
  a.query_start = arguments.Ints(&starts);
  a.kv_len = arguments.Ints(&a.B);
  a.table = arguments.Ints(&cells);
  a.sinks = arguments.Parameter(a.N);
  const bool has_norms = !head_norm || (block.query_norm.scale && block.key_norm.scale);
  if (!arguments.AreRight() || ids != T || offsets != T || starts != a.B + 1 || a.B == 0 || cells % a.B || !has_norms)
    return BlockError();
  for (int64_t t = 0; t < T; ++t)
    if (block.page_ids[t] < 0 || block.page_ids[t] >= pages.dimensions()[0] || block.page_offsets[t] < 0 ||
        block.page_offsets[t] >= a.S)
      return xla::ffi::Error::InvalidArgument("no such page or offset");
  a.width = cells / a.B;
  a.pages = block.pages;
  a.window = window;
  a.soft_cap = soft_cap;
  a.only_avx2 = only_avx2;
  ComputeAttention(pool, block);
  return xla::ffi::Error::Success();
}

}  // namespace palladio
