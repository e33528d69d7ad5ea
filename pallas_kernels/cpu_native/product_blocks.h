// Blocks of products: the functions of a kernel, one for each number of rows.
//
// A kernel says how numbers are loaded, multiplied and added up; a block says in which order. Sums are fields of structs,
// not arrays, and passed to functions that are inlined early: so compilers keep them in registers. Of a kernel whose
// numbers take several vectors when they are widened (kVectors), a block multiplies one after the other, for the same reason.

#pragma once

#include "products.h"

namespace palladio {

// Adds the sums of one part of the inputs, of whole numbers as far as there are factors, to y: of one row, or of two.
// Args: sums: of two outputs of a row, and of two of the next one.
template <int R, int O>
__attribute__((always_inline)) inline void Store(const Product& p, int64_t row, int64_t output, int64_t part,
                                                 __m128 sums) {
  float* y = p.y + row * p.outputs + output;
  float* next = R == 1 ? nullptr : y + p.outputs;
  const auto few = [](const float* from) {
    return O == 1 ? _mm_load_ss(from) : _mm_castpd_ps(_mm_load_sd(reinterpret_cast<const double*>(from)));
  };
  const auto load = [few](const float* first, const float* second) {
    return R == 1 ? few(first) : _mm_movelh_ps(few(first), few(second));
  };
  if (p.factors) {
    const float factor = p.factors[row], other = R == 1 ? 0 : p.factors[row + 1];
    if (p.zeros) {
      const float of_x = p.sums[row * p.parts + part], of_other = R == 1 ? 0 : p.sums[(row + 1) * p.parts + part];
      sums = _mm_fnmadd_ps(load(p.zeros + output, p.zeros + output), _mm_setr_ps(of_x, of_x, of_other, of_other), sums);
    }
    sums = _mm_mul_ps(sums, _mm_setr_ps(factor, factor, other, other));
    const __m128 scales = load(p.scales + output, p.scales + output);
    sums = part ? _mm_fmadd_ps(sums, scales, load(y, next)) : _mm_mul_ps(sums, scales);
  } else if (part) {
    sums = _mm_add_ps(sums, load(y, next));
  }
  const __m128 high = _mm_movehl_ps(sums, sums);
  if (O == 1) {
    _mm_store_ss(y, sums);
    if (R > 1) _mm_store_ss(next, high);
  } else {
    _mm_store_sd(reinterpret_cast<double*>(y), _mm_castps_pd(sums));
    if (R > 1) _mm_store_sd(reinterpret_cast<double*>(next), _mm_castps_pd(high));
  }
}

// The same for four outputs of a row.
__attribute__((always_inline)) inline void StoreFour(const Product& p, int64_t row, int64_t output, int64_t part,
                                                     __m128 sums) {
  float* y = p.y + row * p.outputs + output;
  if (p.factors) {
    if (p.zeros) sums = _mm_fnmadd_ps(_mm_loadu_ps(p.zeros + output), _mm_set1_ps(p.sums[row * p.parts + part]), sums);
    sums = _mm_mul_ps(sums, _mm_set1_ps(p.factors[row]));
    const __m128 scales = _mm_loadu_ps(p.scales + output);
    sums = part ? _mm_fmadd_ps(sums, scales, _mm_loadu_ps(y)) : _mm_mul_ps(sums, scales);
  } else if (part) {
    sums = _mm_add_ps(sums, _mm_loadu_ps(y));
  }
  _mm_storeu_ps(y, sums);
}

// Sums of R rows and up to four outputs, from a row on.
template <typename Kernel, int R>
struct Sums {
  typename Kernel::Sum first, second, third, fourth;
  Sums<Kernel, R - 1> rest;

  __attribute__((always_inline)) void Start(const Product& p, int64_t row, int64_t part) {
    first = second = third = fourth = Kernel::Start(p, row, part);
    rest.Start(p, row + 1, part);
  }
  // Args: x: vectors of the rows, `kStep` from one row to the next. w: of the first O outputs.
  template <int O, typename V>
  __attribute__((always_inline)) void Add(const typename Kernel::Row* x, const Four<V>& w) {
    const V own = Kernel::LoadRow(x);
    Kernel::Add(first, w.a, own);
    if constexpr (O > 1) Kernel::Add(second, w.b, own);
    if constexpr (O > 2) Kernel::Add(third, w.c, own);
    if constexpr (O > 2) Kernel::Add(fourth, w.d, own);
    rest.template Add<O>(x + Kernel::kStep, w);
  }
  template <int O>
  __attribute__((always_inline)) void StoreAll(const Product& p, int64_t row, int64_t output, int64_t part) const {
    if constexpr (O == 4) {
      StoreFour(p, row, output, part, Kernel::Totals({first, second, third, fourth}));
      rest.template StoreAll<O>(p, row + 1, output, part);
    } else if constexpr (R == 1) {
      Store<1, O>(p, row, output, part, Kernel::Totals({first, second, first, second}));
    } else {
      Store<2, O>(p, row, output, part, Kernel::Totals({first, second, rest.first, rest.second}));
      rest.rest.template StoreAll<O>(p, row + 2, output, part);
    }
  }
};
template <typename Kernel>
struct Sums<Kernel, 0> {
  __attribute__((always_inline)) void Start(const Product&, int64_t, int64_t) {}
  template <int O, typename V>
  __attribute__((always_inline)) void Add(const typename Kernel::Row*, const Four<V>&) {}
  template <int O>
  __attribute__((always_inline)) void StoreAll(const Product&, int64_t, int64_t, int64_t) const {}
};

template <typename Kernel, int V, typename Rest>
__attribute__((always_inline)) inline typename Kernel::Vector LoadVector(const typename Kernel::Number* w, Rest rest) {
  if constexpr (Kernel::kVectors == 1)
    return Kernel::Load(w, rest);
  else
    return Kernel::template Load<V>(w, rest);
}

// Numbers of O outputs, from some on. Args: V: which of their vectors. rest: how many numbers there are, or All.
template <typename Kernel, int O, int V, typename Rest>
__attribute__((always_inline)) inline Four<typename Kernel::Vector> LoadOutputs(const typename Kernel::Number* w,
                                                                                int64_t inputs, Rest rest) {
  Four<typename Kernel::Vector> all;
  all.a = LoadVector<Kernel, V>(w, rest);
  if constexpr (O > 1) all.b = LoadVector<Kernel, V>(w + inputs, rest);
  if constexpr (O > 2) all.c = LoadVector<Kernel, V>(w + 2 * inputs, rest);
  if constexpr (O > 2) all.d = LoadVector<Kernel, V>(w + 3 * inputs, rest);
  return all;
}

// Multiplies rows and O outputs, from some inputs on, one of their vectors after the other. Args: as above.
template <typename Kernel, int R, int O, typename Rest, int V = 0>
__attribute__((always_inline)) inline void AddStep(Sums<Kernel, R>& sums, const typename Kernel::Row* x,
                                                   const typename Kernel::Number* w, int64_t inputs, Rest rest) {
  sums.template Add<O>(x + V * Kernel::kStep / Kernel::kVectors, LoadOutputs<Kernel, O, V>(w, inputs, rest));
  if constexpr (V + 1 < Kernel::kVectors) AddStep<Kernel, R, O, Rest, V + 1>(sums, x, w, inputs, rest);
}

template <typename Kernel, int R, int O>
void Compute(const Product& p, int64_t row, int64_t output, int64_t part, Ahead ahead) {
  const int64_t from = part * p.part, stop = std::min(p.inputs, from + p.part);
  const int64_t whole = from + (stop - from) / Kernel::kStep * Kernel::kStep;
  const auto* x = static_cast<const typename Kernel::Row*>(p.x) + row * p.padded + from * R;
  const auto* w = static_cast<const typename Kernel::Number*>(p.w) + output * p.inputs;
  Sums<Kernel, R> sums;
  sums.Start(p, row, part);
  for (int64_t i = from; i < whole; i += Kernel::kStep, x += R * Kernel::kStep) {
    if constexpr (O == 4) {  // these are consecutive: lines are prefetched in their order
      const char* asked = reinterpret_cast<const char*>(w + ahead.soon + O * i);
      const int64_t bytes = O * Kernel::kStep * sizeof(typename Kernel::Number);
      for (int64_t line = 0; line < bytes; line += kLine) _mm_prefetch(asked + line, _MM_HINT_T0);
    } else {
      for (int64_t o = 0; o < O; ++o)
        _mm_prefetch(reinterpret_cast<const char*>(w + i + ahead.soon + o * p.inputs), _MM_HINT_T0);
      if (ahead.later) _mm_prefetch(reinterpret_cast<const char*>(w + i + ahead.later), _MM_HINT_T1);
    }
    AddStep<Kernel, R, O>(sums, x, w + i, p.inputs, All{});
  }
  if (whole < stop) AddStep<Kernel, R, O>(sums, x, w + whole, p.inputs, stop - whole);
  sums.template StoreAll<O>(p, row, output, part);
}

// The same for one output, which is the last one where their number is odd: one row after the other.
template <typename Kernel>
void ComputeOne(const Product& p, int64_t row, int64_t rows, int64_t output, int64_t part) {
  const int64_t from = part * p.part, stop = std::min(p.inputs, from + p.part);
  const int64_t whole = from + (stop - from) / Kernel::kStep * Kernel::kStep;
  const auto* w = static_cast<const typename Kernel::Number*>(p.w) + output * p.inputs;
  for (int64_t r = 0; r < rows; ++r) {
    const auto* x = static_cast<const typename Kernel::Row*>(p.x) + row * p.padded + from * rows + r * Kernel::kStep;
    Sums<Kernel, 1> sums;
    sums.Start(p, row + r, part);
    for (int64_t i = from; i < whole; i += Kernel::kStep, x += rows * Kernel::kStep)
      AddStep<Kernel, 1, 1>(sums, x, w + i, p.inputs, All{});
    if (whole < stop) AddStep<Kernel, 1, 1>(sums, x, w + whole, p.inputs, stop - whole);
    sums.template StoreAll<1>(p, row + r, output, part);
  }
}

template <typename Kernel>
constexpr Blocks kBlocksOfFive = {
    5,
    6,
    Kernel::kFewRows,
    ComputeOne<Kernel>,
    {Compute<Kernel, 1, 2>, Compute<Kernel, 2, 2>, Compute<Kernel, 3, 2>, Compute<Kernel, 4, 2>, Compute<Kernel, 5, 2>,
     Compute<Kernel, 6, 2>},
    {Compute<Kernel, 1, 4>, Compute<Kernel, 2, 4>}};
template <typename Kernel>
constexpr Blocks kBlocksOfTwelve = {
    12,
    12,
    Kernel::kFewRows,
    ComputeOne<Kernel>,
    {Compute<Kernel, 1, 2>, Compute<Kernel, 2, 2>, Compute<Kernel, 3, 2>, Compute<Kernel, 4, 2>, Compute<Kernel, 5, 2>,
     Compute<Kernel, 6, 2>, Compute<Kernel, 7, 2>, Compute<Kernel, 8, 2>, Compute<Kernel, 9, 2>, Compute<Kernel, 10, 2>,
     Compute<Kernel, 11, 2>, Compute<Kernel, 12, 2>},
    {Compute<Kernel, 1, 4>, Compute<Kernel, 2, 4>, Compute<Kernel, 3, 4>, Compute<Kernel, 4, 4>, Compute<Kernel, 5, 4>,
     Compute<Kernel, 6, 4>}};

}  // namespace palladio
