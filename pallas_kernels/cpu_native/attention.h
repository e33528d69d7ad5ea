// Attention of a step's tokens over their pages of keys and values in float32.
#pragma once

#include <cstdint>

#include "chunks.h"

namespace palladio {

struct Attention {
  const float* q;                // [T, N, H], scaled
  const float* pages;            // [P, K, S, 2 * padded]
  const int32_t* query_start;    // [B + 1]
  const int32_t* kv_len;         // [B]
  const int32_t* table;          // [B, width]
  const float* sinks;            // [N], or null
  float* out;                    // [T, N, H]
  int64_t T, B, N, H, K, S, padded, width;
  int64_t window;                // keys that a query sees; 0: all
  float soft_cap;                // 0: none

  // A key and its value, [2 * padded].
  const float* Row(int64_t request, int64_t head, int64_t key) const {
    const int64_t page = table[request * width + key / S];
    return pages + ((page * K + head) * S + key % S) * 2 * padded;
  }
};

void AttendAll(const Pool& pool, const Attention& a);

}  // namespace palladio
