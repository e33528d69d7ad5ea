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

constexpr int kLanes = 16;           // query heads of a group that are computed together
constexpr int kTile = 8;             // keys at a time: so many sums are independent of each other
constexpr int64_t kSpan = 1024;      // keys of one request that one thread takes
constexpr float kLowest = -3.4028234663852886e38f;

typedef float Vector __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));

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
__attribute__((always_inline)) inline Vector Exp(Vector x) {
  const Vector clamped = x > -87.0f ? x : Vector{} - 87.0f;
  const Vector magic = Vector{} + 12582912.0f;  // 1.5 * 2^23: adding it rounds to whole numbers
  const Vector shifted = clamped * 1.44269504f + magic;
  const Vector n = shifted - magic;
  const Vector r = clamped - n * 0.693359375f - n * -2.12194440e-4f;
  Vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Vector power = (Vector)((Ints)p + ((Ints)shifted << 23));
  const Vector result = x > -87.0f ? power : Vector{};
  return x == x ? result : x;
}

__attribute__((always_inline)) inline Vector Capped(Vector scores, float cap) {
  const Vector x = scores / cap, size = x < 0.0f ? x : -x;  // tanh(|x|) = (1 - e) / (1 + e) with e = exp(-2 |x|)
  const Vector e = Exp(size * 2.0f), tanh = (1.0f - e) / (1.0f + e);
  return cap * (x < 0.0f ? -tanh : tanh);
}

// One span of one kv head and up to kLanes of its query heads: peak, total, and output [lanes, H], which is not divided.
#define PALLADIO_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
PALLADIO_CLONES inline void Attend(const Attention& a, const Span& span, int64_t lane, int64_t lanes, float* scratch,
                                   float* state) {
  const int64_t G = a.N / a.K, H = a.H, row_size = 2 * a.padded;
  Vector* q = (Vector*)scratch;  // [H]
  const float* own = a.q + (span.request * a.N + span.head * G + lane) * H;
  for (int64_t h = 0; h < H; ++h) {
    Vector column = {};
    for (int64_t r = 0; r < lanes; ++r) column[r] = own[r * H + h];
    q[h] = column;
  }
  Vector peak = Vector{} + kLowest, total = {};
  float* out = state + 2 * kLanes;
  std::fill(out, out + kLanes * H, 0.0f);
  for (int64_t key = span.first; key < span.last;) {
    const int64_t page = a.table[span.request * a.width + key / a.S], offset = key % a.S;
    const int64_t count = std::min({int64_t{kTile}, a.S - offset, span.last - key});
    const float* rows = a.pages + ((page * a.K + span.head) * a.S + offset) * row_size;
    Vector scores[kTile] = {};
    if (count == kTile) {
      for (int64_t h = 0; h < H; ++h)
        for (int i = 0; i < kTile; ++i) scores[i] += q[h] * rows[i * row_size + h];
    } else {
      for (int64_t i = 0; i < count; ++i)
        for (int64_t h = 0; h < H; ++h) scores[i] += q[h] * rows[i * row_size + h];
    }
    Vector highest = peak;
    for (int64_t i = 0; i < count; ++i) {
      if (a.soft_cap != 0) scores[i] = Capped(scores[i], a.soft_cap);
      highest = scores[i] > highest ? scores[i] : highest;
    }
    const Vector decay = Exp(peak - highest);
    peak = highest;
    total *= decay;
    for (int64_t i = 0; i < count; ++i) {
      scores[i] = Exp(scores[i] - peak);
      total += scores[i];
    }
    for (int64_t r = 0; r < lanes; ++r) {
      float* sum = out + r * H;
      for (int64_t h = 0; h < H; ++h) sum[h] *= decay[r];
      for (int64_t i = 0; i < count; ++i) {
        const float weight = scores[i][r];
        const float* value = rows + i * row_size + a.padded;
        for (int64_t h = 0; h < H; ++h) sum[h] += weight * value[h];
      }
    }
    key += count;
  }
  std::memcpy(state, &peak, sizeof(peak));
  std::memcpy(state + kLanes, &total, sizeof(total));
}

// Joins the spans of one request and kv head: states [spans, groups, (2 + H) * kLanes].
inline void Join(const Attention& a, int64_t request, int64_t head, const float* states, int64_t spans) {
  const int64_t G = a.N / a.K, groups = (G + kLanes - 1) / kLanes, size = (2 + a.H) * kLanes;
  for (int64_t g = 0; g < G; ++g) {
    const int64_t n = head * G + g, r = g % kLanes;
    const float* first = states + g / kLanes * size;
    float peak = a.sinks ? a.sinks[n] : kLowest, total = a.sinks ? 1.0f : 0.0f;
    for (int64_t s = 0; s < spans; ++s) peak = std::max(peak, first[s * groups * size + r]);
    if (a.sinks) total = std::exp(a.sinks[n] - peak);
    float* out = a.out + (request * a.N + n) * a.H;
    std::fill(out, out + a.H, 0.0f);
    for (int64_t s = 0; s < spans; ++s) {
      const float* state = first + s * groups * size;
      const float weight = std::exp(state[r] - peak);
      total += weight * state[kLanes + r];
      for (int64_t h = 0; h < a.H; ++h) out[h] += weight * state[2 * kLanes + r * a.H + h];
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
  const int64_t groups = (a.N / a.K + kLanes - 1) / kLanes, size = (2 + a.H) * kLanes;
  std::vector<float> states(spans.size() * groups * size);
  Run(pool, {int64_t(spans.size()) * groups, [&](int64_t unit) {
               thread_local std::vector<float> scratch;
               scratch.resize((a.H + 1) * kLanes);
               const auto address = (reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64;
               const int64_t lane = unit % groups * kLanes;
               Attend(a, spans[unit / groups], lane, std::min<int64_t>(kLanes, a.N / a.K - lane), (float*)address,
                      states.data() + unit * size);
             }});
  for (int64_t i = 0; i < a.B * a.K; ++i)
    Join(a, i / a.K, i % a.K, states.data() + begin[i] * groups * size, begin[i + 1] - begin[i]);
}

}  // namespace palladio
