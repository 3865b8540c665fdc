// A hash of 64 bits, for tables. No result depends on which hash it is.
#pragma once

#include <cstdint>

#include "macros.h"

namespace gnnscale {

// Two odd multipliers, with a shift that brings the high bits down between them: the high bits of the result are mixed.
GNNSCALE_HD uint64_t mix64(uint64_t key) {
  key *= 0x9E3779B97F4A7C15ull;
  return (key ^ key >> 32) * 0xD6E8FEB86659FD93ull;
}

}  // namespace gnnscale
