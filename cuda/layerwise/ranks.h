// The order of r_v / q_v in few bits: most candidates are ruled out by these alone, without exact comparisons.
#pragma once

#include <cstdint>

#include "../macros.h"
#include "scores.h"

namespace gnnscale {

constexpr int kLevelBits = 12, kMantissaBits = 17;  // 2 * kLevelBits: 7 bits of the exponent, then the mantissa
constexpr uint32_t kLevelSize = uint32_t{1} << kLevelBits;

// The binary exponent of draw / score and the first kMantissaBits bits after its leading one: never less for a larger
// quotient. 0 if the draw is 0. score: positive, below 2^62.
GNNSCALE_HD uint32_t coarse_rank(uint64_t draw, uint64_t score) {
  if (draw == 0) return 0;
  const int draw_bits = bit_length(draw), score_bits = bit_length(score);
  uint64_t rest = draw << (64 - draw_bits);
  const uint64_t unit = score << (64 - score_bits);
  int exponent = 63 + draw_bits - score_bits;
  if (rest < unit) {  // 2 rest has a 65th bit, which the subtraction of `unit` removes again
    rest <<= 1;
    --exponent;
  }
  rest -= unit;
  uint32_t mantissa = 0;
  for (int bit = 0; bit < kMantissaBits; ++bit) {
    const bool is_above = rest >> 63 != 0 || rest << 1 >= unit;
    rest = (rest << 1) - (is_above ? unit : 0);
    mantissa = mantissa << 1 | static_cast<uint32_t>(is_above);
  }
  return static_cast<uint32_t>(exponent) << kMantissaBits | mantissa;
}

}  // namespace gnnscale
