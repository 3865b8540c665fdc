// A hash table of items that several threads enter: of items that are equal, it keeps the least.
#pragma once

#include <cstdint>

#include "atomics.h"
#include "macros.h"
#include "philox.h"

namespace gnnscale {

// Items are numbers. A slot's item only changes to a lesser one that is equal to it, in what `is_same(item)` compares.
struct EarliestTable {
  static constexpr uint32_t kFree = ~uint32_t{0};

  uint32_t* slots;  // all kFree at first
  uint64_t size;    // more than there are items that differ

  template <typename IsSame>
  GNNSCALE_HD void add(uint32_t item, uint64_t hash, IsSame&& is_same) const {
    for (uint64_t at = start(hash);; at = next(at)) {
      uint32_t seen = atomic_read(slots[at]);
      if (seen == kFree) seen = atomic_replace(slots[at], kFree, item);
      if (seen == kFree) return;
      if (!is_same(seen)) continue;
      if (item < seen) atomic_lower(slots[at], item);
      return;
    }
  }

  // The least of the items that were added and are the same; there is one.
  template <typename IsSame>
  GNNSCALE_HD uint32_t find(uint64_t hash, IsSame&& is_same) const {
    uint64_t at = start(hash);
    while (!is_same(slots[at])) at = next(at);
    return slots[at];
  }

 private:
  GNNSCALE_HD uint64_t start(uint64_t hash) const { return bounded(hash, size); }
  GNNSCALE_HD uint64_t next(uint64_t at) const { return at + 1 == size ? 0 : at + 1; }
};

}  // namespace gnnscale
