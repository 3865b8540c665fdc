// Numbers of 16 bits from floats, rounded to nearest, ties to even: the way back of widen() in tier.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "macros.h"
#include "tier.h"

namespace gnnscale {

GNNSCALE_HD void narrow(float value, BFloat16& out) {
  const uint32_t bits = bits_of_float(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  out.bits = static_cast<uint16_t>(is_nan ? 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

GNNSCALE_HD void narrow(float value, Half& out) {
  const uint32_t bits = bits_of_float(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
  uint32_t found;
  if (rest >= (143u << 23)) {  // at least 2^16, or a NaN
    found = rest > 0x7f800000u ? 0x7e00u : 0x7c00u;
  } else if (rest < (113u << 23)) {  // below 2^-14: the last bit of 0.5 + x, 2^-24, is the last one of the result
    found = bits_of_float(float_of_bits(rest) + 0.5f) - bits_of_float(0.5f);
  } else {
    found = (rest - (112u << 23) + 0xfffu + (rest >> 13 & 1u)) >> 13;
  }
  out.bits = static_cast<uint16_t>(sign | found);
}

GNNSCALE_HD void narrow(float value, float& out) { out = value; }
GNNSCALE_HD void narrow(double value, double& out) { out = value; }
GNNSCALE_HD float widen(float value) { return value; }
GNNSCALE_HD double widen(double value) { return value; }

}  // namespace gnnscale
