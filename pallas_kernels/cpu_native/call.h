// A call as XLA gives it, by its C API: buffers in their order, and attributes by their names. XLA's own classes for
// them take two seconds to compile.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "chunks.h"
#include "layer_blocks.h"
#include "multiply.h"
#include "xla/ffi/api/c_api.h"

namespace palladio {

// The error of a call; null: none.
using Problem = const char*;

constexpr Problem kNoInt8 = "products of int8 are not loaded";

// Reads arguments in their order; the first that does not fit makes the call an error. It owns the float32 copies of
// arguments of other types.
class Call {
 public:
  explicit Call(const XLA_FFI_CallFrame& frame) : frame_(frame) {}

  // The next argument, of this type and rank, and its sizes.
  template <typename T = float>
  T* Array(XLA_FFI_DataType type, int64_t rank, const int64_t** sizes) {
    const XLA_FFI_Buffer& buffer = Next();
    const bool fits = buffer.dtype == type && buffer.rank == rank;
    *sizes = fits ? buffer.dims : kNoSizes;
    return fits ? static_cast<T*>(buffer.data) : Fail<T>();
  }
  // The next argument, with a known number of elements.
  const float* Floats(int64_t count) {
    const XLA_FFI_Buffer& buffer = Next();
    const bool fits = buffer.dtype == XLA_FFI_DataType_F32 && CountOf(buffer) == count;
    return fits ? static_cast<float*>(buffer.data) : Fail<float>();
  }
  const int32_t* Ints(int64_t* count) {
    const XLA_FFI_Buffer& buffer = Next();
    *count = CountOf(buffer);
    return buffer.dtype == XLA_FFI_DataType_S32 ? static_cast<int32_t*>(buffer.data) : Fail<int32_t>();
  }
  // The next argument, of float32, bfloat16 or int8, as float32. Null: it has no numbers.
  const float* Parameter(int64_t count) {
    const XLA_FFI_Buffer& buffer = Next();
    if (CountOf(buffer) == 0) return nullptr;
    if (CountOf(buffer) != count) return Fail<float>();
    if (buffer.dtype == XLA_FFI_DataType_F32) return static_cast<const float*>(buffer.data);
    wide_.emplace_back(count);
    float* wide = wide_.back().data();
    if (buffer.dtype == XLA_FFI_DataType_BF16)
      for (int64_t i = 0; i < count; ++i) {
        const uint32_t bits = uint32_t{static_cast<const uint16_t*>(buffer.data)[i]} << 16;
        std::memcpy(wide + i, &bits, 4);
      }
    else if (buffer.dtype == XLA_FFI_DataType_S8)
      for (int64_t i = 0; i < count; ++i) wide[i] = static_cast<const int8_t*>(buffer.data)[i];
    else
      return Fail<float>();
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
    const XLA_FFI_Buffer& values = Next();
    const auto type = values.dtype;
    m.kind = type == XLA_FFI_DataType_F32    ? MatrixKind::kFloat32
             : type == XLA_FFI_DataType_BF16 ? MatrixKind::kBfloat16
                                             : MatrixKind::kInt8;
    const bool is_int8 = m.kind == MatrixKind::kInt8;
    if (is_int8 && type != XLA_FFI_DataType_S8) is_wrong_ = true;
    if (is_int8 && !multiply_int8) lacks_int8_ = is_wrong_ = true;
    m.values = values.data;
    m.inputs = inputs;
    m.outputs = outputs;
    m.bits = bits;
    m.scales = Parameter(outputs);
    m.zeros = Parameter(outputs);
    m.bias = Parameter(outputs);
    if (CountOf(values) != inputs * outputs || is_int8 != (m.scales != nullptr)) is_wrong_ = true;
    return m;
  }

  // The next result, which must have this type and these sizes.
  template <typename T = float>
  T* Result(int64_t index, XLA_FFI_DataType type, std::initializer_list<int64_t> sizes) {
    if (index >= frame_.rets.size) return Fail<T>();
    const auto& buffer = *static_cast<const XLA_FFI_Buffer*>(frame_.rets.rets[index]);
    const int64_t *begin = buffer.dims, *end = begin + buffer.rank;
    const bool fits = buffer.dtype == type && std::equal(begin, end, sizes.begin(), sizes.end());
    return fits ? static_cast<T*>(buffer.data) : Fail<T>();
  }

  int64_t Whole(std::string_view name) { return Attribute<int64_t>(name, XLA_FFI_DataType_S64); }
  float Real(std::string_view name) { return Attribute<float>(name, XLA_FFI_DataType_F32); }
  bool Flag(std::string_view name) { return Attribute<bool>(name, XLA_FFI_DataType_PRED); }

  // Whether all arguments were read, and none is left.
  bool IsRight() const { return !is_wrong_ && next_ == frame_.args.size; }
  // The error of a wrong call, unless products are missing.
  Problem Wrong(Problem usual) const { return lacks_int8_ ? kNoInt8 : usual; }

 private:
  static constexpr int64_t kNoSizes[4] = {};
  static constexpr XLA_FFI_Buffer kNone = {sizeof(XLA_FFI_Buffer), nullptr, XLA_FFI_DataType_INVALID, nullptr, 0,
                                           nullptr};

  // They are sorted by name.
  template <typename T>
  T Attribute(std::string_view name, XLA_FFI_DataType type) {
    const XLA_FFI_Attrs& all = frame_.attrs;
    const auto of = [](const XLA_FFI_ByteSpan* span) { return std::string_view(span->ptr, span->len); };
    const auto is_before = [of](const XLA_FFI_ByteSpan* span, std::string_view wanted) { return of(span) < wanted; };
    const int64_t place = std::lower_bound(all.names, all.names + all.size, name, is_before) - all.names;
    const bool is_there = place < all.size && of(all.names[place]) == name;
    if (!is_there || all.types[place] != XLA_FFI_AttrType_SCALAR) {
      is_wrong_ = true;
      return T{};
    }
    const auto& scalar = *static_cast<const XLA_FFI_Scalar*>(all.attrs[place]);
    if (scalar.dtype != type) is_wrong_ = true;
    return scalar.dtype == type ? *static_cast<const T*>(scalar.value) : T{};
  }
  const XLA_FFI_Buffer& Next() {
    if (next_ == frame_.args.size) {
      is_wrong_ = true;
      return kNone;
    }
    return *static_cast<const XLA_FFI_Buffer*>(frame_.args.args[next_++]);
  }
  static int64_t CountOf(const XLA_FFI_Buffer& buffer) {
    int64_t count = 1;
    for (int64_t i = 0; i < buffer.rank; ++i) count *= buffer.dims[i];
    return count;
  }
  template <typename T>
  T* Fail() {
    is_wrong_ = true;
    return nullptr;
  }

  const XLA_FFI_CallFrame& frame_;
  int64_t next_ = 0;
  bool is_wrong_ = false, lacks_int8_ = false;
  std::vector<std::vector<float>> wide_;
};

inline XLA_FFI_Error* ErrorOf(const XLA_FFI_Api& api, Problem problem) {
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, problem,
                                    XLA_FFI_Error_Code_INVALID_ARGUMENT};
  return api.XLA_FFI_Error_Create(&args);
}

inline void Destroy(const XLA_FFI_Api& api, XLA_FFI_Error* error) {
  XLA_FFI_Error_Destroy_Args args = {XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
  api.XLA_FFI_Error_Destroy(&args);
}

// XLA's threads for the works of a call.
inline Pool PoolOf(XLA_FFI_CallFrame* frame) {
  int64_t num_threads = 0;
  XLA_FFI_ThreadPool_NumThreads_Args args = {XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE, nullptr, frame->ctx,
                                             &num_threads};
  if (auto* error = frame->api->XLA_FFI_ThreadPool_NumThreads(&args)) {  // there is no pool
    Destroy(*frame->api, error);
    num_threads = 1;
  }
  return Pool(frame, num_threads, [](void* handle, std::function<void()> task) {
    const auto* own = static_cast<const XLA_FFI_CallFrame*>(handle);
    auto* kept = new std::function<void()>(std::move(task));
    const auto run = [](void* data) {
      auto* kept = static_cast<std::function<void()>*>(data);
      (*kept)();
      delete kept;
    };
    XLA_FFI_ThreadPool_Schedule_Args args = {XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE, nullptr, own->ctx, run,
                                             kept};
    if (auto* error = own->api->XLA_FFI_ThreadPool_Schedule(&args)) {
      Destroy(*own->api, error);
      run(kept);
    }
  });
}

// A call's function as XLA starts it. XLA asks first for which version of its API it was compiled.
inline XLA_FFI_Error* Start(XLA_FFI_CallFrame* frame, Problem (*compute)(const Pool&, Call&)) {
  const auto* extension = frame->extension_start;  // its type has another name in each version of jax
  if (extension && extension->type == XLA_FFI_Extension_Metadata) {
    XLA_FFI_Metadata& metadata = *reinterpret_cast<const XLA_FFI_Metadata_Extension*>(extension)->metadata;
    metadata.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
    metadata.traits = 0;
#ifdef XLA_FFI_UNKNOWN_TYPE_ID
    metadata.state_type_id = XLA_FFI_UNKNOWN_TYPE_ID;  // a call keeps nothing
#endif
    return nullptr;
  }
  if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return ErrorOf(*frame->api, "this call is executed only");
  Call call(*frame);
  const Problem problem = compute(PoolOf(frame), call);
  return problem ? ErrorOf(*frame->api, problem) : nullptr;
}

}  // namespace palladio
