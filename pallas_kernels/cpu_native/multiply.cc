// Products of rows with bfloat16 and int8 matrices: rows as a kernel takes them, and which kernel. The largest part of the
// inputs (kPartBytes) times the largest numbers of a lane fits in 32 bits.
#include "multiply.h"

#include "dense.h"
#include "products_avx2.h"
#include "products_avx512.h"

namespace palladio {

constexpr int32_t kLargestShort = 127 * 256, kLargestByte = 127;
static_assert(kPartBytes / 8 * kLargestShort * 128 < (int64_t{1} << 31), "a lane's sum would not fit");

inline bool HasAvx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

// Where a row lies among those of a product as blocks take them.
struct Place {
  int64_t first = 0;   // its first number
  int64_t stride = 0;  // numbers from one vector of it to the next; 0: it is not there
};

// Args: start: first number of the product's rows. vector: numbers of one.
inline Place PlaceOf(int64_t row, const RowBlocks& blocks, int64_t start, int64_t padded, int64_t vector) {
  const int64_t first = blocks.FirstOf(row);
  return {start + first * padded + (row - first) * vector, blocks.SizeAt(first) * vector};
}

// On Intel's cores the instruction for 32 products of bfloat16 is slower than two for 16 of float32, on AMD's it is not.
inline Bfloat16By BestBfloat16() {
  if (!HasAvx512()) return Bfloat16By::kAvx2;
  const bool has_fast_dot = __builtin_cpu_supports("avx512bf16") && !__builtin_cpu_is("intel");
  return has_fast_dot ? Bfloat16By::kDot : Bfloat16By::kWidening;
}

inline const Blocks& Bfloat16Blocks(Bfloat16By by) {
  if (by == Bfloat16By::kDot) return avx512::kBlocksOfTwelve<avx512::Bfloat16>;
  if (by == Bfloat16By::kWidening) return avx512::kBlocksOfTwelve<avx512::WidenedBfloat16>;
  return avx2::kBlocksOfFive<avx2::Bfloat16>;
}

void MultiplyBfloat16(xla::ffi::ThreadPool pool, const Bfloat16Products& of, Bfloat16By by) {
  const bool lacks_dot = by == Bfloat16By::kDot && !__builtin_cpu_supports("avx512bf16");
  if (by == Bfloat16By::kBest || lacks_dot || (by == Bfloat16By::kWidening && !HasAvx512())) by = BestBfloat16();
  const Blocks& blocks = Bfloat16Blocks(by);
  const int64_t inputs = of.inputs, padded = (inputs + 31) / 32 * 32, size = by == Bfloat16By::kDot ? 2 : 4;
  const int64_t vector = by == Bfloat16By::kAvx2 ? 16 : 32;
  const PackedRows packed(of.rows * padded * size);
  const int64_t part = PartOf(inputs, by == Bfloat16By::kWidening ? 4 : 2);  // by the larger number, a row's
  const int64_t parts = std::max<int64_t>(1, (inputs + part - 1) / part);
  std::vector<Product> products;
  std::vector<Place> places(of.rows);
  int64_t start = 0, number = 0;
  for (int64_t all : of.sizes) {
    const auto row_blocks = RowBlocks::Of(RowsBeforeRepeats(of.x + start * inputs, all, inputs), blocks.usual, blocks.most);
    const int64_t rows = row_blocks.rows;
    const uint16_t* w = of.w + number++ * of.outputs * inputs;
    if (rows)
      products.push_back({packed.get() + start * padded * size, w, of.y + start * of.outputs, rows, row_blocks, all - rows,
                          inputs, padded, of.outputs, part, parts, 2});
    for (int64_t row = 0; row < all; ++row)
      places[start + row] = row < rows ? PlaceOf(row, row_blocks, start * padded, padded, vector) : Place{};
    start += all;
  }
  PackRows(pool, of.rows, padded, [=, &places, x = of.x, to = packed.get()](int64_t row) {
    const Place place = places[row];
    char* own = to + place.first * size;
    if (place.stride == 0) return;
    if (by == Bfloat16By::kDot)
      avx512::Round(x + row * inputs, inputs, padded, place.stride, reinterpret_cast<uint16_t*>(own));
    else
      (by == Bfloat16By::kWidening ? avx512::RoundWidened : avx2::Round)(x + row * inputs, inputs, padded, place.stride,
                                                                        reinterpret_cast<float*>(own));
  });
  RunProducts(pool, products, blocks);
}

inline const Blocks& Int8Blocks(bool is_wide, bool is_bytes) {
  if (!is_wide) return avx2::kBlocksOfFive<avx2::Int8>;
  return is_bytes ? avx512::kBlocksOfTwelve<avx512::Int8> : avx512::kBlocksOfTwelve<avx512::Int8OfShorts>;
}

void MultiplyInt8(xla::ffi::ThreadPool pool, const Int8Product& of, int64_t bits, bool only_avx2) {
  const bool is_wide = HasAvx512() && __builtin_cpu_supports("avx512vnni") && !only_avx2;
  const bool is_bytes = is_wide && bits == 8;
  const Blocks& blocks = Int8Blocks(is_wide, is_bytes);
  const int64_t rows = RowsBeforeRepeats(of.x, of.rows, of.inputs);
  const RowBlocks row_blocks = RowBlocks::Of(rows, blocks.usual, blocks.most);
  const int64_t padded = (of.inputs + 63) / 64 * 64, part = PartOf(of.inputs, 1);
  const int64_t parts = std::max<int64_t>(1, (of.inputs + part - 1) / part);
  const int64_t size = is_bytes ? 1 : 2, lanes = avx512::kLanes, vector = is_bytes ? 64 : is_wide ? 32 : 16;
  const PackedRows packed(rows * padded * size);
  const auto starts = Lines<int32_t>(is_bytes ? rows * parts * lanes : 0);
  std::vector<float> factors(rows);
  std::vector<int32_t> sums(of.zeros ? rows * parts : 0);
  PackRows(pool, rows, padded, [&, to = packed.get()](int64_t row) {
    const auto numbers = Lines<int16_t>(padded);
    const int32_t largest = bits == 8 ? kLargestByte : kLargestShort;
    factors[row] = avx2::WholeNumbers(of.x + row * of.inputs, of.inputs, padded, largest, numbers.get());
    const Place place = PlaceOf(row, row_blocks, 0, padded, vector);
    char* own = to + place.first * size;
    if (is_bytes)
      avx512::BytesOf(numbers.get(), padded, part, place.stride, reinterpret_cast<int8_t*>(own),
                      starts.get() + row * parts * lanes);
    else
      (is_wide ? avx512::Spread : avx2::Spread)(numbers.get(), padded, place.stride, reinterpret_cast<int16_t*>(own));
    if (of.zeros)
      for (int64_t i = 0; i < of.inputs; ++i) sums[row * parts + i / part] += numbers[i];
  });
  Product product = {packed.get(), of.w,       of.y, rows,  row_blocks, of.rows - rows, of.inputs,
                     padded,       of.outputs, part, parts, 1};
  product.factors = factors.data();
  product.starts = starts.get();
  product.sums = sums.data();
  product.scales = of.scales;
  product.zeros = of.zeros;
  if (rows) RunProducts(pool, {product}, blocks);
}

void MultiplyDense(xla::ffi::ThreadPool pool, const DenseProduct& p, bool only_avx2) {
  const bool is_wide = __builtin_cpu_supports("x86-64-v4") && !only_avx2;
  Run(pool, {(p.outputs + kStrip - 1) / kStrip, [&](int64_t strip) {
               (is_wide ? DenseWide : DenseNarrow)(p, strip * kStrip, std::min(p.outputs, (strip + 1) * kStrip));
             }});
}

}  // namespace palladio
