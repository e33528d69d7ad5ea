// Attention of one query token a request over its pages of keys and values in float32, with online softmax.
//
// A query head's rows are those of the queries that share a kv head (G of them): they lie side by side in the lanes of a
// vector, so that a key is multiplied without a sum across lanes. Long requests are cut into spans, which are computed
// apart and joined at the end, always at the same places: the number of threads changes no result.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "chunks.h"

namespace palladio {

constexpr int kTile = 8;         // keys at a time: so many sums are independent of each other
constexpr int64_t kSpan = 1024;  // keys of one request that one thread takes
constexpr float kLowest = -3.4028234663852886e38f;

// Numbers of L query heads of a group.
template <int L>
struct Lanes;
template <>
struct Lanes<8> {
  typedef float Floats __attribute__((vector_size(32)));
  typedef int32_t Ints __attribute__((vector_size(32)));
};
template <>
struct Lanes<16> {
  typedef float Floats __attribute__((vector_size(64)));
  typedef int32_t Ints __attribute__((vector_size(64)));
};

struct Attention {
  const float* q;                // [B, N, H], scaled
  const float* pages;            // [P, K, S, 2 * padded]
  const int32_t* query_start;    // [B + 1]
  const int32_t* kv_len;         // [B]
  const int32_t* table;          // [B, width]
  const float* sinks;            // [N], or null
  float* out;                    // [B, N, H]
  int64_t B, N, H, K, S, padded, width;
  int64_t window;                // keys that a query sees; 0: all
  float soft_cap;                // 0: none
};

struct Span {
  int64_t request, head, first, last;  // keys of a kv head
};

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

typedef float Sixteen __attribute__((vector_size(64), aligned(4)));  // numbers of a head, anywhere

// One span of one kv head and up to L of its query heads: state gets peak [L], total [L], and output [L, H], which is not
// divided by the total.
template <int L>
__attribute__((always_inline)) inline void AttendSpan(const Attention& a, const Span& span, int64_t lane, int64_t lanes,
                                                      float* scratch, float* state) {
  typedef typename Lanes<L>::Floats V;
  const int64_t G = a.N / a.K, H = a.H, row_size = 2 * a.padded, whole = H / 16 * 16;
  V* q = (V*)scratch;  // [H]
  const float* own = a.q + (span.request * a.N + span.head * G + lane) * H;
  for (int64_t h = 0; h < H; ++h)
    for (int64_t r = 0; r < L; ++r) scratch[h * L + r] = r < lanes ? own[r * H + h] : 0.0f;
  V peak = V{} + kLowest, total = {};
  float* out = state + 2 * L;
  std::fill(out, out + L * H, 0.0f);
  for (int64_t key = span.first; key < span.last;) {
    const int64_t page = a.table[span.request * a.width + key / a.S], offset = key % a.S;
    const int64_t count = std::min({int64_t{kTile}, a.S - offset, span.last - key});
    const float* first = a.pages + ((page * a.K + span.head) * a.S + offset) * row_size;
    const float* rows[kTile];  // beyond the last key that one again, with no weight
    for (int i = 0; i < kTile; ++i) rows[i] = first + std::min<int64_t>(i, count - 1) * row_size;
    const int64_t next = std::min(key + count, span.last - 1);  // on another page, perhaps, which no hardware foresees
    const float* ahead =
        a.pages + ((a.table[span.request * a.width + next / a.S] * a.K + span.head) * a.S + next % a.S) * row_size;
    for (int64_t i = 0; i < kTile * row_size; i += 16) _mm_prefetch((const char*)(ahead + i), _MM_HINT_T0);
    V scores[kTile] = {};
    for (int64_t h = 0; h < H; ++h) {
      const V column = q[h];
      for (int i = 0; i < kTile; ++i) scores[i] += column * rows[i][h];
    }
    V highest = peak;
    for (int i = 0; i < kTile; ++i) {
      if (a.soft_cap != 0) Cap<L>(scores[i], a.soft_cap);
      highest = scores[i] > highest ? scores[i] : highest;
    }
    V decay = peak - highest;
    Exp<L>(decay);
    peak = highest;
    total *= decay;
    alignas(64) float weights[kTile][L];
    for (int i = 0; i < kTile; ++i) {
      V weight = scores[i] - peak;
      Exp<L>(weight);
      if (i >= count) weight = V{};
      total += weight;
      std::memcpy(weights[i], &weight, sizeof(weight));
    }
    for (int64_t r = 0; r < lanes; ++r) {
      float* sum = out + r * H;
      const float kept = decay[r];
      for (int64_t h = 0; h < whole; h += 16) {
        Sixteen part = *(const Sixteen*)(sum + h) * kept;
        for (int i = 0; i < kTile; ++i) part += weights[i][r] * *(const Sixteen*)(rows[i] + a.padded + h);
        *(Sixteen*)(sum + h) = part;
      }
      for (int64_t h = whole; h < H; ++h) {
        sum[h] *= kept;
        for (int i = 0; i < kTile; ++i) sum[h] += weights[i][r] * rows[i][a.padded + h];
      }
    }
    key += count;
  }
  std::memcpy(state, &peak, sizeof(peak));
  std::memcpy(state + L, &total, sizeof(total));
}

#define PALLADIO_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
PALLADIO_CLONES inline void Attend8(const Attention& a, const Span& span, int64_t lane, int64_t lanes, float* scratch,
                                    float* state) {
  AttendSpan<8>(a, span, lane, lanes, scratch, state);
}
PALLADIO_CLONES inline void Attend16(const Attention& a, const Span& span, int64_t lane, int64_t lanes, float* scratch,
                                     float* state) {
  AttendSpan<16>(a, span, lane, lanes, scratch, state);
}

// Joins the spans of one request and kv head: states [spans, groups, (2 + H) * L].
inline void Join(const Attention& a, int64_t request, int64_t head, const float* states, int64_t spans, int64_t L) {
  const int64_t G = a.N / a.K, groups = (G + L - 1) / L, size = (2 + a.H) * L;
  for (int64_t g = 0; g < G; ++g) {
    const int64_t n = head * G + g, r = g % L;
    const float* first = states + g / L * size;
    float peak = a.sinks ? a.sinks[n] : kLowest;
    for (int64_t s = 0; s < spans; ++s) peak = std::max(peak, first[s * groups * size + r]);
    float total = a.sinks ? std::exp(a.sinks[n] - peak) : 0.0f;
    float* out = a.out + (request * a.N + n) * a.H;
    std::fill(out, out + a.H, 0.0f);
    for (int64_t s = 0; s < spans; ++s) {
      const float* state = first + s * groups * size;
      const float weight = std::exp(state[r] - peak);
      total += weight * state[L + r];
      for (int64_t h = 0; h < a.H; ++h) out[h] += weight * state[2 * L + r * a.H + h];
    }
    const float share = 1.0f / std::max(total, 1.17549435e-38f);
    for (int64_t h = 0; h < a.H; ++h) out[h] *= share;
  }
}

inline void AttendAll(xla::ffi::ThreadPool pool, const Attention& a) {
  std::vector<Span> spans;
  std::vector<int64_t> begin;  // of each request and kv head, in `spans`
  for (int64_t b = 0; b < a.B; ++b) {
    const bool is_real = a.query_start[b + 1] > a.query_start[b];
    const int64_t last = is_real ? a.kv_len[b] : 0, first = a.window ? std::max<int64_t>(0, last - a.window) : 0;
    for (int64_t k = 0; k < a.K; ++k) {
      begin.push_back(spans.size());
      for (int64_t key = first; key < last;) {
        const int64_t stop = std::min(last, (key / kSpan + 1) * kSpan);
        spans.push_back({b, k, key, stop});
        key = stop;
      }
    }
  }
  begin.push_back(spans.size());
  const int64_t G = a.N / a.K, L = G > 8 ? 16 : 8, groups = (G + L - 1) / L, size = (2 + a.H) * L;
  std::vector<float> states(spans.size() * groups * size);
  Run(pool, {int64_t(spans.size()) * groups, [&](int64_t unit) {
               thread_local std::vector<float> scratch;
               scratch.resize(a.H * L + 16);
               const auto address = (reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64;
               const int64_t lane = unit % groups * L;
               (L == 8 ? Attend8 : Attend16)(a, spans[unit / groups], lane, std::min(L, G - lane), (float*)address,
                                             states.data() + unit * size);
             }});
  for (int64_t i = 0; i < a.B * a.K; ++i)
    Join(a, i / a.K, i % a.K, states.data() + begin[i] * groups * size, begin[i + 1] - begin[i], L);
}

}  // namespace palladio
