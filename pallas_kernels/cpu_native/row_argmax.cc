#include "row_argmax.h"

#include <algorithm>
#include <cmath>

#include "attention_math.h"

namespace palladio {

constexpr int64_t kAlone = 1 << 18;       // numbers that one thread has read before another comes
constexpr int64_t kFewThreads = 2;        // of a pool: the engine and the front need one of the cores
constexpr int64_t kAloneOfFew = 1 << 20;  // numbers that one thread of such a pool reads
constexpr int64_t kRowsAlone = 1 << 13;   // numbers of rows: as many are read at a time

// The place of the largest of n numbers, the first of equals; NaN is larger than all.
inline int64_t LargestOf(const float* x, int64_t n) {
  typedef Lanes<kRegister>::Ints Ints;
  Register highest = Register{} - INFINITY, highest2 = highest;
  Ints unordered = {};
  int64_t i = 0;
  for (; i + 2 * kRegister <= n; i += 2 * kRegister) {
    const Register part = *(const Unaligned*)(x + i), part2 = *(const Unaligned*)(x + i + kRegister);
    highest = part > highest ? part : highest;
    highest2 = part2 > highest2 ? part2 : highest2;
    unordered |= (part != part) | (part2 != part2);
  }
  highest = highest2 > highest ? highest2 : highest;
  float largest = -INFINITY;
  bool has_nan = false;
  for (int lane = 0; lane < kRegister; ++lane) {
    largest = std::max(largest, highest[lane]);
    has_nan |= unordered[lane] != 0;
  }
  for (; i < n; ++i) {
    largest = std::max(largest, x[i]);
    has_nan |= x[i] != x[i];
  }
  for (i = 0; !has_nan && i + kRegister <= n; i += kRegister) {
    const Ints equal = *(const Unaligned*)(x + i) == largest;
    int32_t any = 0;
    for (int lane = 0; lane < kRegister; ++lane) any |= equal[lane];
    if (any) break;
  }
  while (i < n && (has_nan ? x[i] == x[i] : x[i] != largest)) ++i;
  return i;
}

// Where there are two cores, the engine's thread and the front's compute beside a step: a second thread of a short step
// waits for a core longer than it helps.
void LargestOfRows(const Pool& pool, const float* x, int64_t rows, int64_t size, int32_t* ids, bool* finite) {
  const auto compute = [=](int64_t t) {
    const float* row = x + t * size;
    const int64_t found = LargestOf(row, size);
    ids[t] = found;
    finite[t] = std::isfinite(row[found]);
  };
  if (rows * size <= (pool.num_threads() <= kFewThreads ? kAloneOfFew : kAlone)) {
    for (int64_t t = 0; t < rows; ++t) compute(t);
    return;
  }
  const int64_t chunk = std::max<int64_t>(1, kRowsAlone / size);
  Run(pool, {(rows + chunk - 1) / chunk, [=](int64_t number) {
               for (int64_t t = number * chunk; t < std::min(rows, (number + 1) * chunk); ++t) compute(t);
             }});
}

}  // namespace palladio
