// The softmax, over the edges into a destination, of scores leaky_relu(s + d + e): of a source, of the destination and
// of the edge itself. CPU and GPU compute an edge and a head alike, and add those of a column in stored order, kPiece
// at a time, so their results are equal bit for bit.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "columns.h"

namespace gnnscale {

// What exponentials need of a type: the bits of 1.5 * 2^m, m being the number of bits of the mantissa, to which a whole
// number is added by rounding; ln 2 in two parts, of which the first times a whole number is exact; kLeast, at which n
// is so small that 2^n becomes 0; and the coefficients of the polynomial (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2,
// the highest one first.
struct ExponentialOfFloat {
  using Bits = uint32_t;
  static constexpr int kMantissa = 23;
  static constexpr float kRounding = 12582912.0f, kLog2High = 0.693359375f, kLog2Low = -2.12194440e-4f, kLeast = -88.0f;
  static constexpr Bits kOne = 0x3f800000u;
  static constexpr int kTerms = 6;  // 1/7! to 1/2!
  GNNSCALE_HD static constexpr float term(int i) {
    constexpr float terms[kTerms] = {1.9841270e-4f, 1.3888889e-3f, 8.3333333e-3f, 4.1666667e-2f, 1.6666667e-1f, 0.5f};
    return terms[i];
  }
};

struct ExponentialOfDouble {
  using Bits = uint64_t;
  static constexpr int kMantissa = 52;
  static constexpr double kRounding = 6755399441055744.0, kLog2High = 0.693145751953125,
                          kLog2Low = 1.42860682030941723212e-6, kLeast = -709.0;
  static constexpr Bits kOne = 0x3ff0000000000000u;
  static constexpr int kTerms = 12;  // 1/13! to 1/2!
  GNNSCALE_HD static constexpr double term(int i) {
    constexpr double terms[kTerms] = {1.6059043836821613e-10, 2.0876756987868099e-9, 2.5052108385441720e-8,
                                      2.7557319223985893e-7,  2.7557319223985888e-6, 2.4801587301587302e-5,
                                      1.9841269841269841e-4,  1.3888888888888889e-3, 8.3333333333333333e-3,
                                      4.1666666666666664e-2,  1.6666666666666666e-1, 0.5};
    return terms[i];
  }
};

template <typename T>
using Exponential = std::conditional_t<std::is_same_v<T, float>, ExponentialOfFloat, ExponentialOfDouble>;

// The polynomial of its first I + 1 coefficients.
template <int I, typename T>
GNNSCALE_HD T polynomial(T r) {
  using E = Exponential<T>;
  if constexpr (I == 0) {
    return E::term(0);
  } else {
    return product(polynomial<I - 1>(r), r) + E::term(I);
  }
}

// exp(x) for x <= 0, with a relative error of a few units in the last place; NaN for NaN. With n the nearest whole
// number to x / ln 2 and r = x - n ln 2, it is 2^n exp(r).
template <typename T>
GNNSCALE_HD T exp_below_one(T x) {
  using E = Exponential<T>;
  x = x < E::kLeast ? E::kLeast : x;
  const T rounded = product(x, T{1.4426950408889634}) + E::kRounding, n = rounded - E::kRounding;
  const T r = (x - product(n, E::kLog2High)) - product(n, E::kLog2Low);
  const T sum = (product(product(r, r), polynomial<E::kTerms - 1>(r)) + r) + T{1};
  typename E::Bits bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  bits = (bits << E::kMantissa) + E::kOne;
  T power;
  std::memcpy(&power, &bits, sizeof power);
  return product(sum, power);
}

// Of a NaN any: it makes the whole column NaN.
template <typename T>
GNNSCALE_HD T larger(T best, T score) {
  return score > best ? score : best;
}

template <typename T>
GNNSCALE_HD T leaky(T score, T slope) {
  return score > T{0} ? score : product(score, slope);
}

// The gradient of a score before it is made leaky, which is `score`. `mean` is the sum over the column of weight *
// grad.
template <typename T>
GNNSCALE_HD T score_gradient(T weight, T grad, T mean, T score, T slope) {
  const T gradient = product(weight, grad - mean);
  return score > T{0} ? gradient : product(gradient, slope);
}

// What an attention reads, of H heads.
template <typename T>
struct AttentionScores {
  const T *of_sources, *of_columns,
      *of_entries;  // [N, H], [columns, H], [entries, H]; null for zeros but for the first
  T slope;
  int64_t heads;

  // Before it is made leaky, of an entry from `node` into `column`.
  GNNSCALE_HD T of(int64_t entry, int64_t node, int64_t column, int64_t head) const {
    T score = of_sources[node * heads + head];
    if (of_columns != nullptr) score += of_columns[column * heads + head];
    if (of_entries != nullptr) score += of_entries[entry * heads + head];
    return score;
  }
};

}  // namespace gnnscale
