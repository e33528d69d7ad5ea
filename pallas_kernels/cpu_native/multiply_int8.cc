// Products of rows with int8 matrices, a library of its own. The largest part of the inputs (kPartBytes) times the
// largest numbers of a lane fits in 32 bits.
#include "multiply.h"

#include "products_avx2.h"
#ifdef __AVX512VNNI__
#include "products_avx512.h"
#endif

namespace palladio {

constexpr int32_t kLargestShort = 127 * 256, kLargestByte = 127;
static_assert(kPartBytes / 8 * kLargestShort * 128 < (int64_t{1} << 31), "a lane's sum would not fit");

// Args: lanes: of a kernel that starts its sums with numbers of the row; 0: it does not.
template <typename Kernel>
void MultiplyBy(const Pool& pool, const Int8Product& of, const Blocks& blocks, int32_t largest, int64_t lanes) {
  using Row = typename Kernel::Row;
  const int64_t rows = RowsBeforeRepeats(of.x, of.rows, of.inputs);
  const RowBlocks row_blocks = RowBlocks::Of(rows, blocks.usual, blocks.most);
  const int64_t padded = (of.inputs + 63) / 64 * 64, part = PartOf(of.inputs, 1);
  const int64_t parts = std::max<int64_t>(1, (of.inputs + part - 1) / part);
  const PackedRows packed(rows * padded * sizeof(Row));
  auto* const all_rows = reinterpret_cast<Row*>(packed.get());
  const auto starts = Lines<int32_t>(rows * parts * lanes);
  std::vector<float> factors(rows);
  std::vector<int32_t> sums(of.zeros ? rows * parts : 0);
  PackRows(pool, rows, padded, [&](int64_t row) {
    const auto numbers = Lines<int16_t>(padded);
    factors[row] = avx2::WholeNumbers(of.x + row * of.inputs, of.inputs, padded, largest, numbers.get());
    const Place place = PlaceOf(row, row_blocks, 0, padded, Kernel::kStep);
    Kernel::PackRow(numbers.get(), padded, part, place.stride, all_rows + place.first,
                    starts.get() + row * parts * lanes);
    if (of.zeros)
      for (int64_t i = 0; i < of.inputs; ++i) sums[row * parts + i / part] += numbers[i];
  });
  Product product = {all_rows, of.w,       of.y, rows,  row_blocks, of.rows - rows, of.inputs,
                     padded,   of.outputs, part, parts, 1};
  product.factors = factors.data();
  product.starts = starts.get();
  product.sums = sums.data();
  product.scales = of.scales;
  product.zeros = of.zeros;
  if (rows) RunProducts(pool, {product}, blocks);
}

extern "C" void PalladioMultiplyInt8(const Pool& pool, const Int8Product& of, int64_t bits) {
#ifdef __AVX512VNNI__
  using avx512::Int8, avx512::Int8OfShorts;
  if (bits == 8)
    MultiplyBy<Int8>(pool, of, kBlocksOfTwelve<Int8>, kLargestByte, avx512::kLanes);
  else
    MultiplyBy<Int8OfShorts>(pool, of, kBlocksOfTwelve<Int8OfShorts>, kLargestShort, 0);
#else
  MultiplyBy<avx2::Int8>(pool, of, kBlocksOfFive<avx2::Int8>, bits == 8 ? kLargestByte : kLargestShort, 0);
#endif
}

}  // namespace palladio
