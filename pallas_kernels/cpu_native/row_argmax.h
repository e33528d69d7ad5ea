// The largest number of each row.
#pragma once

#include <cstdint>

#include "chunks.h"

namespace palladio {

// Finds the place of each row's largest number, the first of equals, where NaN is larger than all; and whether that
// number is finite.
void LargestOfRows(const Pool& pool, const float* x, int64_t rows, int64_t size, int32_t* ids, bool* finite);

}  // namespace palladio
