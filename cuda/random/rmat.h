// One edge of an R-MAT graph (Chakrabarti et al., "R-MAT: A Recursive Model for Graph Mining", SDM 2004).
#pragma once

#include <cstdint>

#include "../philox.h"

namespace gnnscale {

struct Edge {
  int64_t src, dst;
};

// Edge number `index`. Each level chooses a quadrant by comparing 16 random bits to `thresholds`: a, a + b, a + b + c
// in units of 2^-16. An edge with an end outside [0, num_nodes) is drawn again, with the next `attempt`.
GNNSCALE_HD Edge rmat_edge(uint64_t key, int64_t index, int64_t num_nodes, int levels, const int64_t* thresholds) {
  for (uint32_t attempt = 0;; ++attempt) {
    int64_t src = 0, dst = 0;
    for (int level = 0; level < levels; level += 8) {
      const Philox bits =
          philox(key, static_cast<uint32_t>(index), static_cast<uint32_t>(static_cast<uint64_t>(index) >> 32), attempt,
                 static_cast<uint32_t>(level / 8));
      int64_t src_bits = 0, dst_bits = 0;  // of 8 levels
      for (int k = 0; k < 8; ++k) {
        const int64_t random = bits.word[k / 2] >> 16 * (k % 2) & 0xFFFF;
        const int below = random >= thresholds[1];                                        // quadrants c, d
        const int right = (random >= thresholds[0]) ^ below ^ (random >= thresholds[2]);  // quadrants b, d
        src_bits = 2 * src_bits + below;
        dst_bits = 2 * dst_bits + right;
      }
      const int used = levels - level < 8 ? levels - level : 8;
      src = src << used | src_bits >> (8 - used);
      dst = dst << used | dst_bits >> (8 - used);
    }
    if (src < num_nodes && dst < num_nodes) return {src, dst};
  }
}

}  // namespace gnnscale
