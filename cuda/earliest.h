// A hash table into which several threads enter items; of equal items it keeps the least.
#pragma once

#include <cstdint>

#include "atomics.h"
#include "macros.h"
#include "philox.h"

namespace gnnscale {

// Items are numbers; is_same(other) tells whether `other` is equal to the item at hand. The item in a slot is only ever
// replaced by an equal item that is less.
struct EarliestTable {
  static constexpr uint32_t kFree = ~uint32_t{0};

  uint32_t* slots;  // all kFree at first
  uint64_t size;    // more than the number of different items

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

  // The least added item that is equal; at least one must have been added.
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
