// Cache lines of a matrix of bfloat16 that tiles prefetch, each its share.
#pragma once

#include "products.h"

namespace palladio {

// One tile's share. The tile prefetches them one by one: all at once they would delay its own reads.
struct LinesAhead {
  const char* const* first;
  int64_t count;
};

// Lines of at most kOutputs outputs and kInputs inputs.
template <int64_t kOutputs, int64_t kInputs>
class NextLines {
 public:
  // The lines from an output and an input on, as far as the matrix has them.
  // Args: w: [outputs, inputs]. depth: inputs, at most. tiles: how many share the lines.
  NextLines(const uint16_t* w, int64_t outputs, int64_t inputs, int64_t output, int64_t from, int64_t depth, int64_t tiles) {
    for (int64_t o = output; o < std::min(outputs, output + kOutputs); ++o)
      for (int64_t i = from; i < std::min(inputs, from + depth); i += kNumbers)
        lines_[count_++] = reinterpret_cast<const char*>(w + o * inputs + i);
    share_ = (count_ + tiles - 1) / tiles;
  }
  LinesAhead Of(int64_t tile) const {
    const int64_t first = std::min(count_, tile * share_);
    return {lines_ + first, std::min(share_, count_ - first)};
  }

 private:
  static constexpr int64_t kNumbers = kLine / sizeof(uint16_t);
  const char* lines_[kOutputs * ((kInputs + kNumbers - 1) / kNumbers)];
  int64_t count_ = 0, share_;
};

}  // namespace palladio
