// Weighted reverse PageRank (Data Tiering, section 3.1, algorithm 1) in integers, so that the scores do not depend on
// the order in which they are summed.
#pragma once

#include <cstdint>

#include "../macros.h"

namespace gnnscale {

// What a node of score `score` and `in_degree` > 0 gives to each node that points to it: damping / 2^32 of its score,
// divided by its in-degree, rounded down.
GNNSCALE_HD int64_t passed_on(int64_t score, uint64_t damping, int64_t in_degree) {
  const uint64_t value = static_cast<uint64_t>(score);
  // score * damping / 2^32 in halves, for scores below 2^62.
  const uint64_t damped = (value >> 32) * damping + ((value & 0xFFFFFFFFu) * damping >> 32);
  return static_cast<int64_t>(damped / static_cast<uint64_t>(in_degree));
}

}  // namespace gnnscale
