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
  int64_t positions;        // entries of `position`
  const int64_t* node;      // [count] ids; null: 0 .. count
  const int64_t* position;  // [nodes] where a node is in `node`, or -1; null: where its id says
  const int64_t* weight;    // [count] units up to and with each candidate, increasing; null: one each
  const int64_t* time;      // [count] not decreasing; null: always

  GNNSCALE_HD int64_t id(int64_t at) const { return node == nullptr ? at : node[at]; }
  GNNSCALE_HD int64_t place(int64_t id) const {
    if (position == nullptr) return id;
    return static_cast<uint64_t>(id) < static_cast<uint64_t>(positions) ? position[id] : -1;
  }
  GNNSCALE_HD uint64_t units(int64_t limit) const {
    return weight == nullptr ? limit : limit == 0 ? 0 : static_cast<uint64_t>(weight[limit - 1]);
  }
  GNNSCALE_HD int64_t limit(const int64_t* seed_time) const {
    return time == nullptr || seed_time == nullptr ? count : first_above(time, 0, count, *seed_time);
  }
  GNNSCALE_HD int64_t draw(uint64_t random, int64_t limit) const {
    const uint64_t unit = bounded(random, units(limit));
    if (weight == nullptr) return id(static_cast<int64_t>(unit));
    const int64_t at = first_above(weight, 0, limit, static_cast<int64_t>(unit));
    return id(at < limit ? at : limit - 1);  // the latter where weights do not rise
  }
};

// The true edges by source: no negative is one of them.
template <typename Id>
struct KnownEdges {
  const int64_t* ptr;  // null: there are none
  const Id* dst;       // sorted for each source
  int64_t sources, count;

  struct Range {
    int64_t begin, end;
  };

  // Where the edges of a source are; none if `ptr` does not say it.
  GNNSCALE_HD Range of(int64_t src) const {
    if (static_cast<uint64_t>(src) >= static_cast<uint64_t>(sources)) return {0, 0};
    const Range found{ptr[src], ptr[src + 1]};
    return found.begin >= 0 && found.begin <= found.end && found.end <= count ? found : Range{0, 0};
  }

  GNNSCALE_HD bool has(int64_t src, int64_t id) const {
    if (ptr == nullptr) return false;
    const Range edges = of(src);
    const int64_t found = first_above(dst, edges.begin, edges.end, id);
    return found > edges.begin && dst[found - 1] == id;
  }
};

// The number of units of those among the first `limit` destinations that have no edge from `src`.
template <typename Id>
GNNSCALE_HD uint64_t free_units(const EndCandidates& candidates, int64_t limit, const KnownEdges<Id>& edges,
                                int64_t src) {
  uint64_t units = candidates.units(limit);
  if (edges.ptr == nullptr) return units;
  const auto range = edges.of(src);
  for (int64_t e = range.begin; e < range.end; ++e) {
    if (e > range.begin && edges.dst[e] == edges.dst[e - 1]) continue;
    const int64_t at = candidates.place(edges.dst[e]);
    if (at >= 0 && at < limit) units -= candidates.units(at + 1) - candidates.units(at);
  }
  return units;
}

// The destination that holds unit `unit`, where only destinations without an edge from `src` are counted; -1 if none
// does.
template <typename Id>
GNNSCALE_HD int64_t at_free_unit(const EndCandidates& candidates, const KnownEdges<Id>& edges, int64_t src,
                                 uint64_t unit) {
  for (int64_t at = 0; at < candidates.count; ++at) {
    const int64_t id = candidates.id(at);
    if (edges.has(src, id)) continue;
    const uint64_t units = candidates.units(at + 1) - candidates.units(at);
    if (unit < units) return id;
    unit -= units;
  }
  return -1;
}

}  // namespace gnnscale
