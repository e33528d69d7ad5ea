// Attention of a step's tokens over their pages of keys and values in float32.
#include "attention.h"

#include "attention_blocks.h"
#include "attention_spans.h"

namespace palladio {

// Memory of this thread that begins with a cache line.
inline float* Scratch(int64_t count) {
  thread_local std::vector<float> memory;
  memory.resize(count + 16);
  return (float*)((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
}

struct Units {
  std::vector<Span> spans;
  std::vector<std::pair<int64_t, int64_t>> joined;  // requests of one token and their kv heads
  std::vector<int64_t> begin{0};                    // of the spans of each
  std::vector<QueryRows> rows;                      // of the other requests, kTogether blocks each
};

inline Units UnitsOf(const Attention& a, int64_t size) {
  Units units;
  for (int64_t b = 0; b < a.B; ++b) {
    const int64_t tokens = a.query_start[b + 1] - a.query_start[b], last = a.kv_len[b];
    const int64_t first = a.window ? std::max<int64_t>(0, last - a.window) : 0, rows = tokens * (a.N / a.K);
    for (int64_t k = 0; k < a.K && tokens == 1; ++k) {
      for (int64_t key = first; key < last;) {
        const int64_t stop = std::min(last, (key / kSpan + 1) * kSpan);
        units.spans.push_back({b, k, key, stop});
        key = stop;
      }
      units.joined.push_back({b, k});
      units.begin.push_back(units.spans.size());
    }
    for (int64_t row = (rows - 1) / size * size; row >= 0 && tokens > 1; row -= size)
      for (int64_t k = 0; k < a.K; ++k)  // spans with most keys first: threads end at about the same time
        units.rows.push_back({b, k, row, std::min(size, rows - row)});
  }
  return units;
}

void AttendAll(const Pool& pool, const Attention& a) {
  constexpr int64_t together = kTogether * kBlockRows;
  const Units units = UnitsOf(a, together);
  const int64_t G = a.N / a.K, L = G > 8 ? kRegister : 8, groups = (G + L - 1) / L, size = (2 + a.H) * L;
  const int64_t of_rows = units.rows.size();
  const bool is_few = G <= kFew && a.H % 16 == 0;
  std::vector<float> states(units.spans.size() * groups * size);
  Run(pool, {of_rows + int64_t(units.spans.size()) * groups, [&](int64_t unit) {
               if (unit < of_rows)
                 return AttendRows<kRegister, kVectors>(a, units.rows[unit], Scratch(2 * together * a.H));
               unit -= of_rows;
               if (is_few) {
                 const Span& span = units.spans[unit];
                 return AttendFew<kRegister>(a, span, G, states.data() + unit * size);
               }
               const int64_t lane = unit % groups * L;
               (L == 8 ? AttendSpan<8> : AttendSpan<kRegister>)(a, units.spans[unit / groups], lane, std::min(L, G - lane), Scratch(a.H * L),
                                             states.data() + unit * size);
             }});
  for (size_t i = 0; i < units.joined.size(); ++i)
    Join(a, units.joined[i].first, units.joined[i].second, states.data() + units.begin[i] * groups * size,
         units.begin[i + 1] - units.begin[i], L);
  std::fill(a.out + a.query_start[a.B] * a.N * a.H, a.out + a.T * a.N * a.H, 0.0f);  // padding
}

}  // namespace palladio
