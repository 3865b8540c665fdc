// Dropout whose mask is a function of (key, row's id, column), so that it need not be stored.
#pragma once

#include <cstdint>

#include "../float16.h"
#include "../philox.h"

namespace gnnscale {

constexpr int kColumnsPerBlock = 4;

// Columns [4 block, 4 block + count) of a row: item * scale where the column's 32 random bits are at least `threshold`,
// else 0. Bits of the counter: id 64, block 32.
template <typename T, typename Scale>
GNNSCALE_HD void dropout_items(uint64_t key, int64_t id, int64_t block, int count, uint64_t threshold, Scale scale,
                               const T* __restrict x, T* __restrict out) {
  const uint64_t node = static_cast<uint64_t>(id);
  const Philox bits =
      philox(key, static_cast<uint32_t>(node), static_cast<uint32_t>(node >> 32), static_cast<uint32_t>(block), 0);
  for (int n = 0; n < kColumnsPerBlock; ++n) {
    if (n >= count) break;
    const Scale kept = bits.word[n] >= threshold ? widen(x[n]) * scale : Scale{0};
    narrow(kept, out[n]);
  }
}

}  // namespace gnnscale
