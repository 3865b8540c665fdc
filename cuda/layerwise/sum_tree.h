// Sums of scores in a tree whose nodes have 32 children, as many as a warp has lanes: finds the place of a unit, and
// removes scores. Numbers are modulo 2^64.
#pragma once

#include <cstdint>

#include "../executor.h"
#include "../macros.h"
#include "scores.h"

namespace gnnscale {

constexpr int kTreeBits = 5;    // of a node's children
constexpr int kTreeLevels = 7;  // at most: of fewer than 2^35 places

// Over `count` > 0 places. Entry q of level l is the sum of the scores of the places from the first one below its
// parent, (q / 32) 32^(l + 1), to the last one below itself, (q + 1) 32^l - 1.
class SumTree {
 public:
  // leaves: the entries of level 0, one for each place; upper: room() numbers.
  GNNSCALE_HD SumTree(uint64_t* leaves, uint64_t* upper, int64_t count)
      : leaves_(leaves), upper_(upper), count_(count), levels_(levels_of(count)) {}

  // Enough for the upper levels of `trees` trees of so many places in all.
  GNNSCALE_HD static int64_t room(int64_t count, int64_t trees) { return count / 31 + (kTreeLevels - 1) * trees; }

  // Writes the entries whose last place is `place`. sums[i]: of the scores of the places before i.
  GNNSCALE_HD void grow(const uint64_t* sums, int64_t place) const {
    uint64_t* level = leaves_;
    for (int l = 0, last = levels_; l < last; level = above(level, l), ++l) {
      const int64_t q = place >> kTreeBits * l;
      if (place + 1 != count_ && (place + 1) >> kTreeBits * l == q) return;  // others are below it
      level[q] = sums[place + 1] - sums[q >> kTreeBits << kTreeBits * (l + 1)];
    }
  }

  // The first place whose score and those before it exceed `unit`, which is below the sum of all.
  template <typename Lanes>
  GNNSCALE_HD int64_t find(uint64_t unit, const Lanes& lanes) const {
    const uint64_t* level = upper_;
    for (int l = 1; l < levels_ - 1; ++l) level += entries(l);
    int64_t place = 0;
    for (int l = levels_ - 1; l >= 0; --l) {
      place <<= kTreeBits;
      place += lanes.descend((l == 0 ? leaves_ : level) + place, children_from(l, place), unit);
      if (l > 1) level -= entries(l - 1);
    }
    return place;
  }

  template <typename Lanes>
  GNNSCALE_HD void remove(int64_t place, uint64_t score, const Lanes& lanes) const {
    uint64_t* level = leaves_;
    for (int l = 0, last = levels_; l < last; level = above(level, l), ++l, place >>= kTreeBits) {
      const int64_t first = place >> kTreeBits << kTreeBits;
      uint64_t* const sums = level + first;
      lanes.each(static_cast<int>(place - first), children_from(l, first), [=](int k) { sums[k] -= score; });
    }
  }

 private:
  GNNSCALE_HD static int levels_of(int64_t count) {
    const int bits = bit_length(static_cast<uint64_t>(count - 1));
    return bits <= kTreeBits ? 1 : (bits + kTreeBits - 1) / kTreeBits;
  }

  GNNSCALE_HD int64_t entries(int level) const { return ((count_ - 1) >> kTreeBits * level) + 1; }

  // The level above `level`, which is number l.
  GNNSCALE_HD uint64_t* above(uint64_t* level, int l) const { return l == 0 ? upper_ : level + entries(l); }

  // How many entries of a level have the parent that `first` is the first child of.
  GNNSCALE_HD int children_from(int level, int64_t first) const {
    const int64_t left = entries(level) - first;
    return left < 1 << kTreeBits ? static_cast<int>(left) : 1 << kTreeBits;
  }

  uint64_t *const leaves_, *const upper_;
  const int64_t count_;
  const int levels_;
};

}  // namespace gnnscale
