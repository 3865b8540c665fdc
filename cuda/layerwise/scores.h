// The scores q_v by which nodes are drawn layer by layer: integers, whose sum stays below 2^62.
#pragma once

#include <bit>
#include <cstdint>

#include "../macros.h"

namespace gnnscale {

enum class Scores : int64_t { kSquares, kCounts };

constexpr int kMostSquareBits = 40;

// The number of bits of `value`, without leading zeros; 0 for 0.
GNNSCALE_HD int bit_length(uint64_t value) {
#ifdef __CUDA_ARCH__
  return 64 - __clzll(static_cast<long long>(value));
#else
  return 64 - std::countl_zero(value);
#endif
}

// B: the terms of `squares` are stored in units of 2^-B.
GNNSCALE_HD int square_bits(int64_t num_nodes) {
  const int bits = 61 - bit_length(static_cast<uint64_t>(num_nodes));
  return bits < kMostSquareBits ? bits : kMostSquareBits;
}

// What an edge into a node of `degree` > 0 edges adds to its source's score: max(1, floor(2^B / degree^2)).
GNNSCALE_HD uint64_t square_term(int bits, uint64_t degree) {
  if (degree >> kMostSquareBits / 2 != 0) return 1;
  const uint64_t term = (uint64_t{1} << bits) / (degree * degree);
  return term > 1 ? term : 1;
}

// The bits by which the squares of numbers that sum to `edges` are shifted right.
GNNSCALE_HD int count_shift(uint64_t edges) {
  const int shift = 2 * bit_length(edges) - 61;
  return shift > 0 ? shift : 0;
}

// The score of a source with `count` > 0 edges into the frontier: max(1, floor(count^2 / 2^shift)).
GNNSCALE_HD uint64_t count_score(uint64_t count, int shift) {
  const uint64_t score = static_cast<uint64_t>((static_cast<unsigned __int128>(count) * count) >> shift);
  return score > 1 ? score : 1;
}

}  // namespace gnnscale
