// Additions at random positions in memory.
#pragma once

#include <atomic>
#include <cstdint>

#include "../macros.h"

namespace gnnscale {

constexpr int64_t kScatterAhead = 32;  // how far ahead sums are prefetched

// Adds `share` to sums[id] for the ids [from, to), which are `stride` apart; ids up to `end` may be looked at. The
// position of an id that is not below `limit` is stored in `outside`.
template <typename Id>
GNNSCALE_INLINE void scatter_add(const Id* ids, int64_t stride, int64_t from, int64_t to, int64_t end, uint64_t limit,
                                 int64_t share, int64_t* sums, std::atomic<int64_t>& outside) {
  for (int64_t i = from; i < to; ++i) {
    if (i + kScatterAhead < end) {
      const uint64_t ahead = static_cast<uint64_t>(ids[(i + kScatterAhead) * stride]);
      if (ahead < limit) GNNSCALE_PREFETCH_WRITE(sums + ahead);
    }
    const uint64_t at = static_cast<uint64_t>(ids[i * stride]);
    if (at < limit) {
      sums[at] += share;
    } else {
      outside.store(i);
    }
  }
}

}  // namespace gnnscale
