// The picks of a node in two phases, so that each draw and each pick may be made by a thread of its own: first all
// draws are made, then each is settled: picked() returns the pick that Floyd's method makes of it.
#pragma once

#include "../earliest.h"
#include "../mix.h"
#include "../pick.h"

namespace gnnscale {

constexpr int64_t kScannedFanout = 32;  // up to so many draws are compared one by one; more are entered into a table

// Random number j of a node.
GNNSCALE_HD uint64_t random_at(uint64_t key, const Counter& counter, int64_t j) {
  return philox_draw(draw_block(key, counter, static_cast<uint32_t>(j / 2)), static_cast<int>(j % 2));
}

// Draw j of `count` out of `degree`: with replacement the pick itself, else a draw to be settled.
GNNSCALE_HD int64_t draw_at(uint64_t key, const Counter& counter, int64_t j, int64_t count, int64_t degree,
                            bool replace) {
  return static_cast<int64_t>(pick(random_at(key, counter, j), static_cast<uint64_t>(j), static_cast<uint64_t>(count),
                                   static_cast<uint64_t>(degree), replace, [](uint64_t) { return false; }));
}

// The draws of a node, without replacement.
struct ParallelDraws {
  const int64_t* draw;  // [count]
  uint32_t* earliest;   // [2 * count] if fanouts exceed kScannedFanout, all bits set before the first add(), or null
  int64_t count, degree;

  // Enters draw j, which is `drawn`, into the table. draw_of(i) computes draw i again, because other threads may
  // be writing `draw`.
  template <typename DrawOf>
  GNNSCALE_HD void add(int64_t j, int64_t drawn, DrawOf&& draw_of) const {
    table().add(static_cast<uint32_t>(j), hash(drawn), [&](uint32_t i) { return draw_of(int64_t{i}) == drawn; });
  }

  // Pick j of Floyd's method, when all draws are made, and entered if there is a table. Step j picks draw[j], or, if
  // that was picked before, its last position degree - count + j. draw[j] was picked before if an earlier draw is equal
  // to it, or if it is the last position of an earlier step whose own draw was picked before. So `step` only decreases.
  GNNSCALE_HD int64_t picked(int64_t j) const {
    const int64_t last = degree - count;  // of step 0
    for (int64_t step = j;;) {
      if (is_repeated(step)) return last + j;
      const int64_t before = draw[step] - last;
      if (before < 0 || before >= step) return draw[j];
      step = before;
    }
  }

 private:
  GNNSCALE_HD bool is_repeated(int64_t j) const {
    if (earliest != nullptr) {
      return table().find(hash(draw[j]), [this, j](uint32_t i) { return draw[i] == draw[j]; }) < j;
    }
    for (int64_t i = 0; i < j; ++i) {
      if (draw[i] == draw[j]) return true;
    }
    return false;
  }
  GNNSCALE_HD EarliestTable table() const { return {earliest, 2 * static_cast<uint64_t>(count)}; }
  static GNNSCALE_HD uint64_t hash(int64_t value) { return mix64(static_cast<uint64_t>(value)); }
};

}  // namespace gnnscale
