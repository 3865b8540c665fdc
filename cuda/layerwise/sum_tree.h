// A Fenwick tree (1994) of scores, stored in an array of as many numbers: finds the place of a unit, and removes
// scores. Numbers are modulo 2^64.
#pragma once

#include <cstdint>

#include "../macros.h"
#include "scores.h"

namespace gnnscale {

// How many scores, those of the last places up to `place`, tree[place] is the sum of.
GNNSCALE_HD int64_t summed_at(int64_t place) { return (place + 1) & -(place + 1); }

// The first of `count` > 0 places i with scores[0] + ... + scores[i] > unit.
GNNSCALE_HD int64_t find_place(const uint64_t* tree, int64_t count, uint64_t unit) {
  int64_t place = 0;
  for (int64_t step = int64_t{1} << (bit_length(static_cast<uint64_t>(count)) - 1); step > 0; step /= 2) {
    if (place + step <= count && tree[place + step - 1] <= unit) {
      place += step;
      unit -= tree[place - 1];
    }
  }
  return place;
}

GNNSCALE_HD void remove_score(uint64_t* tree, int64_t count, int64_t place, uint64_t score) {
  for (; place < count; place += summed_at(place)) tree[place] -= score;
}

}  // namespace gnnscale
