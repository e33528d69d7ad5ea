// Attention of one query token of a request over its pages, with online softmax.
//
// The queries that share a kv head (G of them) are in the lanes of a vector, so that a key is multiplied without a sum
// across lanes. Long requests are cut into spans, which are computed separately and joined at the end, always at the same
// places: the number of threads changes no result.
#pragma once

#include "attention_math.h"

namespace palladio {

constexpr int64_t kSpan = 1024;  // keys of one request that one thread takes

struct Span {
  int64_t request, head, first, last;  // keys of a kv head
};

// Prefetches a tile of keys and values, without the padding between them.
__attribute__((always_inline)) inline void AskForTile(const Attention& a, const float* ahead) {
  for (int64_t i = 0; i < kTile; ++i, ahead += 2 * a.padded)
    for (int64_t h = 0; h < a.H; h += 16) {
      __builtin_prefetch(ahead + h);
      __builtin_prefetch(ahead + a.padded + h);
    }
}

// One span of one kv head and up to L of its query heads: state gets peak [L], total [L], and output [L, H], which is not
// divided by the total.
template <int L>
inline void AttendSpan(const Attention& a, const Span& span, int64_t lane, int64_t lanes, float* scratch, float* state) {
  typedef typename Lanes<L>::Floats V;
  const int64_t G = a.N / a.K, H = a.H, row_size = 2 * a.padded, whole = H / kRegister * kRegister;
  V* q = (V*)scratch;  // [H]
  const float* own = a.q + (a.query_start[span.request] * a.N + span.head * G + lane) * H;
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
    AskForTile(a, ahead);
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
      for (int64_t h = 0; h < whole; h += kRegister) {
        Register part = *(const Unaligned*)(sum + h) * kept;
        for (int i = 0; i < kTile; ++i) part += weights[i][r] * *(const Unaligned*)(rows[i] + a.padded + h);
        *(Unaligned*)(sum + h) = part;
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

constexpr int64_t kFew = 4;  // query heads of a kv head, which are faster one by one

// The sums of eight vectors.
__attribute__((always_inline)) inline Lanes<8>::Floats Fold(const Lanes<8>::Floats* parts) {
  const auto pairs = [](Lanes<8>::Floats a, Lanes<8>::Floats b) { return Lanes<8>::Floats(__builtin_ia32_haddps256(a, b)); };
  const auto first = pairs(pairs(parts[0], parts[1]), pairs(parts[2], parts[3]));
  const auto last = pairs(pairs(parts[4], parts[5]), pairs(parts[6], parts[7]));
  return __builtin_shufflevector(first, last, 0, 1, 2, 3, 8, 9, 10, 11) +
         __builtin_shufflevector(first, last, 4, 5, 6, 7, 12, 13, 14, 15);
}

// The scores of a tile's keys: of each the sums of every 16th product, which are added up in the same order for any L,
// the numbers of a register.
template <int L>
__attribute__((always_inline)) inline Lanes<8>::Floats ScoresOf(const float* query, const float* const* rows,
                                                                int64_t H) {
  typedef typename Lanes<L>::Floats Floats;
  typedef typename Lanes<L>::Anywhere Anywhere;
  Lanes<8>::Floats halves[kTile] = {};
  for (int64_t place = 0; place < 16; place += L) {
    Floats parts[kTile] = {};
    for (int64_t h = place; h < H; h += 16) {
      const Floats column = *(const Anywhere*)(query + h);
      for (int i = 0; i < kTile; ++i) parts[i] += column * *(const Anywhere*)(rows[i] + h);
    }
    for (int i = 0; i < kTile; ++i) {
      const float* numbers = (const float*)&parts[i];
      for (int lane = 0; lane < L; lane += 8) {
        const Lanes<8>::Floats eight = *(const Lanes<8>::Anywhere*)(numbers + lane);
        halves[i] = place + lane ? halves[i] + eight : eight;
      }
    }
  }
  return Fold(halves);
}

// As AttendSpan, for a few heads of a multiple of 16 numbers, one head after the other: the numbers of a head are in the
// lanes, and the scores of a tile's keys in one vector. L: numbers of a register.
template <int L>
inline void AttendFew(const Attention& a, const Span& span, int64_t lanes, float* state) {
  typedef Lanes<8>::Floats Eight;
  typedef Lanes<8>::Ints Places;
  constexpr Places kPlaces = {0, 1, 2, 3, 4, 5, 6, 7};
  const int64_t G = a.N / a.K, H = a.H, row_size = 2 * a.padded;
  const float* own = a.q + (a.query_start[span.request] * a.N + span.head * G) * H;
  float peak[kFew], *out = state + 2 * 8;
  Eight total[kFew] = {};
  std::fill(peak, peak + kFew, kLowest);
  std::fill(out, out + 8 * H, 0.0f);
  for (int64_t key = span.first; key < span.last;) {
    const int64_t page = a.table[span.request * a.width + key / a.S], offset = key % a.S;
    const int64_t count = std::min({int64_t{kTile}, a.S - offset, span.last - key});
    const float* first = a.pages + ((page * a.K + span.head) * a.S + offset) * row_size;
    const float* rows[kTile];  // beyond the last key that one again, with no weight
    for (int i = 0; i < kTile; ++i) rows[i] = first + std::min<int64_t>(i, count - 1) * row_size;
    const int64_t next = std::min(key + count, span.last - 1);
    const float* ahead =
        a.pages + ((a.table[span.request * a.width + next / a.S] * a.K + span.head) * a.S + next % a.S) * row_size;
    AskForTile(a, ahead);
    const Places is_real = kPlaces < int32_t(count);
    for (int64_t r = 0; r < lanes; ++r) {
      Eight scores = ScoresOf<L>(own + r * H, rows, H);
      if (a.soft_cap != 0) Cap<8>(scores, a.soft_cap);
      float highest = peak[r];
      for (int i = 0; i < kTile; ++i) highest = scores[i] > highest ? scores[i] : highest;
      Eight decay = Eight{} + (peak[r] - highest), weights = scores - highest;
      if (highest > peak[r])
        Exp<8>(decay);
      else
        decay = Eight{} + 1.0f;
      Exp<8>(weights);
      weights = is_real ? weights : Eight{};
      peak[r] = highest;
      total[r] = total[r] * decay + weights;
      float* sum = out + r * H;
      for (int64_t h = 0; h < H; h += kRegister) {
        Register part = *(const Unaligned*)(sum + h) * decay[0];
        for (int i = 0; i < kTile; ++i) part += weights[i] * *(const Unaligned*)(rows[i] + a.padded + h);
        *(Unaligned*)(sum + h) = part;
      }
    }
    key += count;
  }
  for (int64_t r = 0; r < lanes; ++r) {
    state[r] = peak[r];
    state[8 + r] = 0.0f;
    for (int i = 0; i < 8; ++i) state[8 + r] += total[r][i];
  }
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
    float* out = a.out + (a.query_start[request] * a.N + n) * a.H;
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

}  // namespace palladio
