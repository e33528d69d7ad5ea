// Products of rows with bfloat16 matrices.
#include "multiply.h"

#ifdef __AVX512F__
#include "products_avx512.h"
#ifndef __AVX512BF16__
#include "row_lanes.h"
#define PALLADIO_LANES
#endif
#else
#include "output_lanes.h"
#include "products_avx2.h"
#define PALLADIO_LANES
#endif

namespace palladio {

#ifdef __AVX512F__
using Bfloat16 = avx512::Bfloat16;
constexpr const Blocks& kBlocks = kBlocksOfTwelve<Bfloat16>;
#else
using Bfloat16 = avx2::Bfloat16;
constexpr const Blocks& kBlocks = kBlocksOfFive<Bfloat16>;
#endif

void MultiplyBfloat16(const Pool& pool, const Bfloat16Products& of) {
  const int64_t inputs = of.inputs, padded = (inputs + 31) / 32 * 32;
#ifdef PALLADIO_LANES
  if (of.sizes.size() == 1 && of.sizes[0] >= kLeastRows) {
    const int64_t all = of.sizes[0], rows = RowsBeforeRepeats(of.x, all, inputs);
    if (AreLanesFaster(rows))
      return MultiplyByLanes(pool, of.x, of.w, of.y, rows, all - rows, inputs, of.outputs);
  }
#endif
  const PackedRows packed(of.rows * padded * sizeof(Bfloat16::Row));
  auto* const all_rows = reinterpret_cast<Bfloat16::Row*>(packed.get());
  const int64_t part = PartOf(inputs, Bfloat16::kPartNumberBytes);
  const int64_t parts = std::max<int64_t>(1, (inputs + part - 1) / part);
  std::vector<Product> products;
  std::vector<Place> places(of.rows);
  int64_t start = 0, number = 0;
  for (int64_t all : of.sizes) {
    const int64_t rows = RowsBeforeRepeats(of.x + start * inputs, all, inputs);
    const auto row_blocks = RowBlocks::Of(rows, kBlocks.usual, kBlocks.most);
    const uint16_t* w = of.w + number++ * of.outputs * inputs;
    if (rows)
      products.push_back({all_rows + start * padded, w, of.y + start * of.outputs, rows, row_blocks, all - rows, inputs,
                          padded, of.outputs, part, parts, 2});
    for (int64_t row = 0; row < rows; ++row)
      places[start + row] = PlaceOf(row, row_blocks, start * padded, padded, Bfloat16::kStep);
    start += all;
  }
  PackRows(pool, of.rows, padded, [=, &places, x = of.x](int64_t row) {
    const Place place = places[row];
    if (place.stride) Bfloat16::PackRow(x + row * inputs, inputs, padded, place.stride, all_rows + place.first);
  });
  RunProducts(pool, products, kBlocks);
}

}  // namespace palladio
