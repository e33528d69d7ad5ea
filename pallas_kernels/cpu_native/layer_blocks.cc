#include "layer_blocks.h"

#include "multiply.h"
#include "row_math.h"

namespace palladio {

constexpr int64_t kAlone = 1 << 18;          // products of numbers, at most: one thread is done before another comes
constexpr int64_t kRowsAlone = 1 << 13;      // numbers of rows: as many are computed at a time
constexpr int64_t kFewThreads = 2;           // of a pool: the engine and the front need one of the cores
constexpr int64_t kAloneOfFew = 1 << 24;     // products that one thread of such a pool computes
constexpr int64_t kMatricesOfFew = 1 << 20;  // numbers of their matrices, at most: they stay in one core's caches

// Chooses threads by the number of products and the size of the matrices that they read. With two cores, the engine's
// thread and the front's run during a step: a second thread of a short step waits for a core longer than it helps.
inline int64_t ThreadsFor(const Pool& pool, int64_t products, int64_t matrices) {
  const bool is_small = pool.num_threads() <= kFewThreads && matrices <= kMatricesOfFew && products <= kAloneOfFew;
  return is_small || products <= kAlone ? 1 : pool.num_threads();
}

inline void Multiply(const Pool& pool, const Matrix& m, const float* x, float* y, int64_t rows) {
  if (m.kind == MatrixKind::kFloat32) {
    const int64_t own = RowsBeforeRepeats(x, rows, m.inputs);
    MultiplyDense(pool, {x, static_cast<const float*>(m.values), y, own, m.inputs, m.outputs});
    for (int64_t t = own; t < rows; ++t) std::copy_n(y + (own - 1) * m.outputs, m.outputs, y + t * m.outputs);
  } else if (m.kind == MatrixKind::kBfloat16)
    MultiplyBfloat16(pool, {x, static_cast<const uint16_t*>(m.values), y, rows, m.inputs, m.outputs, {rows}});
  else
    multiply_int8(pool, {x, static_cast<const int8_t*>(m.values), m.scales, m.zeros, y, rows, m.inputs, m.outputs}, m.bits);
  for (int64_t t = 0; m.bias && t < rows; ++t) AddBias(m.bias, y + t * m.outputs, m.outputs);
}

// Computes rows by a function of one row.
template <typename Compute>
void EachRow(const Pool& pool, int64_t rows, int64_t numbers, Compute compute) {
  const int64_t size = std::max<int64_t>(1, kRowsAlone / std::max<int64_t>(1, numbers));
  Run(pool, {(rows + size - 1) / size, [&, size](int64_t chunk) {
               for (int64_t t = chunk * size; t < std::min(rows, (chunk + 1) * size); ++t) compute(t);
             }});
}

// Memory of this thread, for a call.
class Arena {
 public:
  // Args: count: numbers that the call needs in all.
  explicit Arena(int64_t count) {
    thread_local std::vector<float> memory;
    if (int64_t(memory.size()) < count) memory.resize(count);
    next_ = memory.data();
  }
  float* Take(int64_t count) {
    float* taken = next_;
    next_ += count;
    return taken;
  }

 private:
  float* next_;
};

// Returns the rows that the half begins with. Args: memory: for their numbers.
inline const float* Normed(const Pool& pool, const Ends& ends, float* memory) {
  if (!ends.before.scale) return ends.x;
  EachRow(pool, ends.rows, ends.size, [&](int64_t t) {
    NormRow(ends.before, ends.x + t * ends.size, memory + t * ends.size, ends.size);
  });
  return memory;
}

// `out` holds the numbers to add.
inline void Finish(const Pool& pool, const Ends& ends) {
  EachRow(pool, ends.rows, ends.size, [&](int64_t t) {
    float* row = ends.out + t * ends.size;
    if (ends.after.scale) NormRow(ends.after, row, row, ends.size);
    AddRow(ends.residual + t * ends.size, row, ends.factor, row, ends.size);
  });
}

void ComputeMlp(const Pool& threads, const MlpBlock& b) {
  const int64_t rows = b.ends.rows, size = b.ends.size, F = b.down.inputs, outputs = b.up.outputs;
  const int64_t matrices = b.up.size() + b.down.size();
  Team team(threads, ThreadsFor(threads, rows * matrices, matrices));
  const Pool& pool = team.pool();
  Arena arena(rows * (size + outputs + F));
  const float* normed = Normed(pool, b.ends, arena.Take(rows * size));
  float *wide = arena.Take(rows * outputs), *between = arena.Take(rows * F);
  Multiply(pool, b.up, normed, wide, rows);
  EachRow(pool, rows, 4 * outputs, [&](int64_t t) {
    const float* row = wide + t * outputs;
    ActivateRow(b.activation, row, b.is_gated ? row + F : nullptr, between + t * F, F);
  });
  Multiply(pool, b.down, between, b.ends.out, rows);
  Finish(pool, b.ends);
}

// Norms the heads of one token in place.
inline void NormEachHead(const AttentionBlock& b, const Norm& norm, float* first, int64_t of_kv, int64_t kv_stride) {
  const int64_t H = b.attention.H, K = b.attention.K;
  for (int64_t k = 0; k < K; ++k)
    for (int64_t g = 0; g < of_kv; ++g) {
      float* head = first + k * kv_stride + g * H;
      Norm own = norm;
      const int64_t skipped = b.head_norm == kOwnScales ? (k * of_kv + g) * H : 0;
      own.scale += skipped;
      if (own.bias) own.bias += skipped;
      NormRow(own, head, head, H);
    }
}

// The same where all heads have one mean.
inline void NormAllHeads(const AttentionBlock& b, const Norm& norm, float* first, int64_t of_kv, int64_t kv_stride) {
  const int64_t H = b.attention.H, K = b.attention.K;
  float squares = 0;
  for (int64_t k = 0; k < K; ++k) squares += SquaresOf(first + k * kv_stride, of_kv * H);
  const float factor = 1.0f / std::sqrt(squares / (K * of_kv * H) + norm.eps);
  for (int64_t k = 0; k < K; ++k) {
    float* heads = first + k * kv_stride;
    ScaleRow(norm, factor, heads, k * of_kv * H, of_kv * H);
  }
}

// Queries of a token go to q, its keys and values into the cache.
inline void PlaceHeads(const AttentionBlock& b, int64_t t, float* qkv, float* q) {
  const Attention& a = b.attention;
  const int64_t G = a.N / a.K, H = a.H, stride = b.qkv.outputs / a.K, width = 2 * a.padded;
  if (b.head_norm == kAllHeads) {
    NormAllHeads(b, b.query_norm, qkv, G, stride);
    NormAllHeads(b, b.key_norm, qkv + G * H, 1, stride);
  } else if (b.head_norm != kNone) {
    NormEachHead(b, b.query_norm, qkv, G, stride);
    NormEachHead(b, b.key_norm, qkv + G * H, 1, stride);
  }
  const float *cos = b.cos + t * b.half, *sin = b.sin + t * b.half;
  const int64_t page = b.page_ids[t], offset = b.page_offsets[t];
  for (int64_t k = 0; k < a.K; ++k) {
    const float* own = qkv + k * stride;
    for (int64_t g = 0; g < G; ++g)
      RotateHead(own + g * H, cos, sin, b.half, b.is_interleaved, b.scale, q + (k * G + g) * H, H);
    if (page == 0) continue;  // the scratch page, which rows of padding share
    float* row = b.pages + ((page * a.K + k) * a.S + offset) * width;
    RotateHead(own + G * H, cos, sin, b.half, b.is_interleaved, 1.0f, row, H);
    std::memcpy(row + a.padded, own + (G + 1) * H, 4 * H);
    std::memset(row + H, 0, 4 * (a.padded - H));
    std::memset(row + a.padded + H, 0, 4 * (a.padded - H));
  }
}

void ComputeAttention(const Pool& threads, const AttentionBlock& b) {
  Attention a = b.attention;
  const int64_t rows = b.ends.rows, size = b.ends.size, outputs = b.qkv.outputs, heads = a.N * a.H, G = a.N / a.K;
  int64_t keys = 0;
  for (int64_t request = 0; request < a.B; ++request)
    keys += int64_t{a.query_start[request + 1] - a.query_start[request]} * a.kv_len[request];
  const int64_t matrices = b.qkv.size() + b.output.size();
  Team team(threads, ThreadsFor(threads, rows * matrices + 2 * keys * heads, matrices));
  const Pool& pool = team.pool();
  Arena arena(rows * (size + outputs + 2 * heads));
  const float* normed = Normed(pool, b.ends, arena.Take(rows * size));
  float *qkv = arena.Take(rows * outputs), *q = arena.Take(rows * heads), *out = arena.Take(rows * heads);
  Multiply(pool, b.qkv, normed, qkv, rows);
  EachRow(pool, rows, 4 * outputs, [&](int64_t t) { PlaceHeads(b, t, qkv + t * outputs, q + t * heads); });
  a.q = q;
  a.out = out;
  AttendAll(pool, a);
  if (b.has_gate)
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t k = 0; k < a.K; ++k)
        GateRow(qkv + t * outputs + (k * (2 * G + 2) + G + 2) * a.H, out + t * heads + k * G * a.H, G * a.H);
  Multiply(pool, b.output, out, b.ends.out, rows);
  Finish(pool, b.ends);
}

void LargestOfRows(const Pool& threads, const float* x, int64_t rows, int64_t size, int32_t* ids, bool* finite) {
  Team team(threads, ThreadsFor(threads, rows * size, rows * size));
  const Pool& pool = team.pool();
  EachRow(pool, rows, size, [&](int64_t t) {
    const float* row = x + t * size;
    const int64_t found = LargestOf(row, size);
    ids[t] = found;
    finite[t] = std::isfinite(row[found]);
  });
}

}  // namespace palladio
