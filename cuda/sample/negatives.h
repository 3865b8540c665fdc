// Negative links: the functions that decide which links they are, shared by every executor. An attempt draws a link
// from all candidates, valid or not. If kAttempts attempts have drawn no valid link, one more draw chooses among the
// valid links alone. Either way, each valid link has the probability of a draw that is made from the valid links alone.
#pragma once

#include <cstdint>

#include "../pick.h"

namespace gnnscale {

constexpr uint32_t kAttempts = 64;
using uint128 = unsigned __int128;

// floor(random * range / 2^128).
GNNSCALE_HD uint128 bounded128(uint128 random, uint128 range) {
  const uint64_t a1 = static_cast<uint64_t>(random >> 64), a0 = static_cast<uint64_t>(random);
  const uint64_t b1 = static_cast<uint64_t>(range >> 64), b0 = static_cast<uint64_t>(range);
  const uint128 cross = static_cast<uint128>(a1) * b0, other = static_cast<uint128>(a0) * b1;
  const uint128 carry =
      (static_cast<uint128>(a0) * b0 >> 64) + static_cast<uint64_t>(cross) + static_cast<uint64_t>(other);
  return static_cast<uint128>(a1) * b1 + (cross >> 64) + (other >> 64) + (carry >> 64);
}

// The block of negative `number`'s attempt: draw 0 is for the source, draw 1 for the destination.
GNNSCALE_HD Philox negative_block(uint64_t key, int64_t number, uint32_t attempt) {
  return philox(key, static_cast<uint32_t>(number), static_cast<uint32_t>(static_cast<uint64_t>(number) >> 32), attempt,
                0);
}

// The nodes that may be one end of a negative, a node that weighs w being w units. A time allows the first `limit` of
// them.
struct EndCandidates {
  int64_t count;
  const int64_t* node;      // [count] ids; null: 0 .. count
  const int64_t* position;  // [nodes] where a node is in `node`, or -1; null: where its id says
  const int64_t* weight;    // [count] units up to and with each candidate, increasing; null: one each
  const int64_t* time;      // [count] not decreasing; null: always

  GNNSCALE_HD int64_t id(int64_t at) const { return node == nullptr ? at : node[at]; }
  GNNSCALE_HD int64_t place(int64_t id) const { return position == nullptr ? id : position[id]; }
  GNNSCALE_HD uint64_t units(int64_t limit) const {
    return weight == nullptr ? limit : limit == 0 ? 0 : static_cast<uint64_t>(weight[limit - 1]);
  }
  GNNSCALE_HD int64_t limit(const int64_t* seed_time) const {
    return time == nullptr || seed_time == nullptr ? count : first_above(time, 0, count, *seed_time);
  }
  GNNSCALE_HD int64_t draw(uint64_t random, int64_t limit) const {
    const uint64_t unit = bounded(random, units(limit));
    return id(weight == nullptr ? static_cast<int64_t>(unit)
                                : first_above(weight, 0, limit, static_cast<int64_t>(unit)));
  }
};

// The true edges by source: no negative is one of them.
template <typename Id>
struct KnownEdges {
  const int64_t* ptr;  // null: there are none
  const Id* dst;       // sorted for each source

  GNNSCALE_HD bool has(int64_t src, int64_t id) const {
    if (ptr == nullptr) return false;
    const int64_t found = first_above(dst, ptr[src], ptr[src + 1], id);
    return found > ptr[src] && dst[found - 1] == id;
  }
};

// The number of units of those among the first `limit` destinations that have no edge from `src`.
template <typename Id>
GNNSCALE_HD uint64_t free_units(const EndCandidates& candidates, int64_t limit, const KnownEdges<Id>& edges,
                                int64_t src) {
  uint64_t units = candidates.units(limit);
  if (edges.ptr == nullptr) return units;
  for (int64_t e = edges.ptr[src]; e < edges.ptr[src + 1]; ++e) {
    if (e > edges.ptr[src] && edges.dst[e] == edges.dst[e - 1]) continue;
    const int64_t at = candidates.place(edges.dst[e]);
    if (at >= 0 && at < limit) units -= candidates.units(at + 1) - candidates.units(at);
  }
  return units;
}

// The destination that holds unit `unit`, where only destinations without an edge from `src` are counted.
template <typename Id>
GNNSCALE_HD int64_t at_free_unit(const EndCandidates& candidates, const KnownEdges<Id>& edges, int64_t src,
                                 uint64_t unit) {
  for (int64_t at = 0;; ++at) {
    const int64_t id = candidates.id(at);
    if (edges.has(src, id)) continue;
    const uint64_t units = candidates.units(at + 1) - candidates.units(at);
    if (unit < units) return id;
    unit -= units;
  }
}

}  // namespace gnnscale
