// Which neighbors of a node are drawn: the functions that decide a sample, shared by every executor.
#pragma once

#include <cstdint>

#include "philox.h"

namespace gnnscale {

// The counter of a node's draws: node 64 | tree 32 | hop 6 | relation 10 | block of draws 16 bits.
struct Counter {
  uint32_t node_low, node_high, tree, tail;
};

constexpr int kMaxHops = 1 << 6, kMaxRelations = 1 << 10;

GNNSCALE_HD Counter make_counter(int64_t node, int64_t tree, int hop, int relation) {
  return {static_cast<uint32_t>(node), static_cast<uint32_t>(static_cast<uint64_t>(node) >> 32),
          static_cast<uint32_t>(tree), static_cast<uint32_t>(hop) << 26 | static_cast<uint32_t>(relation) << 16};
}

GNNSCALE_HD Philox draw_block(uint64_t key, const Counter& counter, uint32_t block) {
  return philox(key, counter.node_low, counter.node_high, counter.tree, counter.tail | block);
}

// How many of `degree` neighbors are taken. fanout < 0: all of them.
GNNSCALE_HD int64_t pick_count(int64_t degree, int64_t fanout, bool replace) {
  if (fanout < 0 || degree == 0) return degree;
  return replace || fanout < degree ? fanout : degree;
}

// Whether draws decide the picks; if not, every neighbor is taken in stored order.
GNNSCALE_HD bool pick_is_random(int64_t degree, int64_t fanout, bool replace) {
  return fanout >= 0 && degree > 0 && (replace || fanout < degree);
}

// Pick i of `count`, by Floyd's method (Bentley & Floyd, "A sample of brilliance", CACM 1987): i uniform numbers
// without a repeat, one draw each. `taken(p)` says whether position p was picked before i; with replacement the
// draw itself is the pick.
template <typename Taken>
GNNSCALE_HD uint64_t pick(uint64_t random, uint64_t i, uint64_t count, uint64_t degree, bool replace, Taken&& taken) {
  if (replace) return bounded(random, degree);
  const uint64_t last = degree - count + i;
  const uint64_t position = bounded(random, last + 1);
  return taken(position) ? last : position;
}

// Units [start, start + size) that are no longer candidates.
struct Removed {
  uint64_t start, size;
};

// The unit that has number `unit` when the `count` ranges of `removed`, which are sorted and disjoint, are not counted.
GNNSCALE_HD uint64_t skip_removed(uint64_t unit, const Removed* removed, int64_t count) {
  for (int64_t i = 0; i < count && unit >= removed[i].start; ++i) unit += removed[i].size;
  return unit;
}

// Inserts a range among the `count` sorted ones of `removed`, which has room for it.
GNNSCALE_HD void insert_removed(Removed range, Removed* removed, int64_t count) {
  for (; count > 0 && removed[count - 1].start > range.start; --count) removed[count] = removed[count - 1];
  removed[count] = range;
}

// The first of [first, last) whose entry of the ascending `values` exceeds `bound`; `last` if none does.
template <typename Values>
GNNSCALE_HD int64_t first_above(const Values& values, int64_t first, int64_t last, int64_t bound) {
  while (first < last) {
    const int64_t middle = first + (last - first) / 2;
    if (values[middle] > bound) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

// The first of [first, last) whose entry of the ascending `values` is at least `bound`; `last` if none is.
template <typename Values>
GNNSCALE_HD int64_t first_from(const Values& values, int64_t first, int64_t last, int64_t bound) {
  return first < last && values[first] < bound ? first_above(values, first, last, bound - 1) : first;
}

// Where the last `fanout` candidates among the positions [first, last) begin: `first` if there are fewer.
// is_excluded(position) is asked from the last position on.
template <typename IsExcluded>
GNNSCALE_HD int64_t begin_of_last(int64_t first, int64_t last, int64_t fanout, IsExcluded&& is_excluded) {
  for (; fanout > 0 && last > first; --last) {
    if (!is_excluded(last - 1)) --fanout;
  }
  return last;
}

// Pairs of nodes whose edges are not drawn, sorted by destination, then by source.
struct ExcludedPairs {
  const int64_t *src, *dst;
  int64_t begin, end;  // of them in the arrays

  // Those that lead to a node.
  GNNSCALE_HD ExcludedPairs into(int64_t node) const {
    const int64_t from = first_from(dst, begin, end, node);
    return {src, dst, from, first_above(dst, from, end, node)};
  }

  // Whether, of pairs that lead to one node, one comes from `source`.
  GNNSCALE_HD bool has(int64_t source) const {
    const int64_t at = first_from(src, begin, end, source);
    return at < end && src[at] == source;
  }
};

// Candidates that are drawn by weight: the stored positions [first, first + length). sums[p] is the sum of the weights
// of a column up to and with position p; `before` is that sum before the first candidate. A candidate has as many units
// as its weight, numbered from 0 in the order of positions. Unsigned differences: malformed sums do not overflow.
template <typename Sums>
struct WeightedRange {
  Sums sums;
  int64_t before, first, length;

  // length > 0
  GNNSCALE_HD uint64_t units() const { return from_before(sums[first + length - 1]); }

  GNNSCALE_HD Removed units_of(int64_t position) const {
    const int64_t start = position > first ? sums[position - 1] : before;
    return {from_before(start), from_before(sums[position]) - from_before(start)};
  }

  // The candidate with this unit; where sums are malformed, any candidate.
  GNNSCALE_HD int64_t position_of(uint64_t unit) const {
    const int64_t last = first + length - 1;
    return first_above(sums, first, last, sum_before(unit));
  }

  // The sum of the weights of a column before a unit.
  GNNSCALE_HD int64_t sum_before(uint64_t unit) const {
    return static_cast<int64_t>(static_cast<uint64_t>(before) + unit);
  }

 private:
  GNNSCALE_HD uint64_t from_before(int64_t sum) const {
    return static_cast<uint64_t>(sum) - static_cast<uint64_t>(before);
  }
};

// The next pick without replacement: returns its position, adds its units to the `count` ranges of `removed`, which are
// sorted and disjoint, and takes them off `left`, the number of units in no range.
template <typename Sums>
GNNSCALE_HD int64_t pick_by_weight(const WeightedRange<Sums>& range, uint64_t random, uint64_t& left, Removed* removed,
                                   int64_t count) {
  const int64_t position = range.position_of(skip_removed(bounded(random, left), removed, count));
  const Removed picked = range.units_of(position);
  insert_removed(picked, removed, count);
  left -= picked.size;
  return position;
}

}  // namespace gnnscale
