// Drawing candidates by their scores as loops over independent items, for many threads and several batches: over
// candidates, over batches, or over the numbered draws of batches. Each phase is called for every item, in any order
// and by any number of threads; the next phase begins when all calls have returned. choosing_driver.h has their order.
#pragma once

#include <cstdint>

#include "../atomics.h"
#include "../sample/bulk.h"
#include "ranks.h"
#include "schemes.h"
#include "sum_tree.h"

namespace gnnscale {

// Candidates, batch after batch; those of a batch are distinct nodes, whose positive scores sum to less than 2^62.
struct Candidates {
  int64_t batches;
  const int64_t* begin;  // [batches + 1]: where each batch's candidates begin
  const int64_t* key;    // [batches]
  const int64_t* node;   // [candidates]
  const uint64_t* score;
  double* correction;  // [candidates]: what is found: c_v of a drawn candidate, 0 of the others
  int64_t count;       // to be drawn in each batch; < 0: all
  int hop;
  int node_bits;  // all nodes are below 2^node_bits

  GNNSCALE_HD int64_t batch_of(int64_t i) const { return part_at(begin, batches, i); }
  GNNSCALE_HD bool are_all_taken(int64_t batch) const { return begin[batch + 1] - begin[batch] <= count; }
  GNNSCALE_HD Drawn drawn(int64_t i, int64_t batch) const {
    return {node_draw(static_cast<uint64_t>(key[batch]), hop, node[i]), score[i], node[i]};
  }
};

// For every candidate: it is drawn, or not.
struct ChooseAll {
  Candidates candidates;
  double correction;

  GNNSCALE_HD void operator()(int64_t i) const { candidates.correction[i] = correction; }
};

template <typename T>
struct Clear {
  T* values;

  GNNSCALE_HD void operator()(int64_t i) const { values[i] = 0; }
};

// Priority ############################################################################################################

// Finds for each batch the rank (coarse_rank) of the first candidate that is not drawn, which has q* and r*: first the
// upper bits of this rank, by counting the upper bits of all ranks, then its lower bits. The few candidates of exactly
// this rank are compared with each other.
struct Priorities {
  Candidates candidates;
  int32_t* tally;          // [batches * kLevelSize]: counts of upper or lower bits
  int32_t* before;         // [batches * kLevelSize + 1]: their prefix sums
  uint32_t* upper;         // [batches]: the upper bits of the rank
  uint32_t* rank;          // [batches]: the rank
  int64_t *wanted, *left;  // [batches]: how many candidates of these upper bits, and of this rank, are drawn
  Drawn* next;             // [batches]: r*, q*
  uint64_t* num_tied;      // how many candidates have the rank of their batch
  int32_t* tied;           // [candidates]: these candidates

  GNNSCALE_HD uint32_t rank_of(int64_t i, int64_t batch) const {
    const Drawn drawn = candidates.drawn(i, batch);
    return coarse_rank(drawn.draw, drawn.score);
  }
};

// For every candidate: counts ranks, by their upper bits, then by their lower bits among the ranks of the upper ones
// that were found.
struct TallyRanks {
  Priorities priorities;
  bool is_lower;

  GNNSCALE_HD void operator()(int64_t i) const {
    const int64_t batch = priorities.candidates.batch_of(i);
    if (priorities.candidates.are_all_taken(batch)) return;
    const uint32_t rank = priorities.rank_of(i, batch), upper = rank >> kLevelBits;
    if (is_lower && upper != priorities.upper[batch]) return;
    const int64_t bits = is_lower ? rank % kLevelSize : upper;
    atomic_add(reinterpret_cast<uint32_t&>(priorities.tally[batch * kLevelSize + bits]), uint32_t{1});
  }
};

// For every number of the tally, after the prefix sum: whether the first candidate not drawn is among those it counts.
struct FindRank {
  Priorities priorities;
  bool is_lower;

  GNNSCALE_HD void operator()(int64_t i) const {
    const int64_t batch = i / kLevelSize;
    const int64_t first = priorities.before[batch * kLevelSize],
                  wanted = is_lower ? priorities.wanted[batch] : priorities.candidates.count;
    const int64_t below = priorities.before[i] - first;
    if (wanted < below || priorities.before[i + 1] - first <= wanted) return;
    const uint32_t bits = static_cast<uint32_t>(i % kLevelSize);
    if (is_lower) {
      priorities.rank[batch] = priorities.upper[batch] << kLevelBits | bits;
      priorities.left[batch] = wanted - below;
    } else {
      priorities.upper[batch] = bits;
      priorities.wanted[batch] = wanted - below;
    }
  }
};

// For every candidate: lists it if its rank is that of the first one not drawn.
struct ListTied {
  Priorities priorities;

  GNNSCALE_HD void operator()(int64_t i) const {
    const int64_t batch = priorities.candidates.batch_of(i);
    if (priorities.candidates.are_all_taken(batch) || priorities.rank_of(i, batch) != priorities.rank[batch]) return;
    priorities.tied[atomic_add(*priorities.num_tied, uint64_t{1})] = static_cast<int32_t>(i);
  }
};

// For every listed candidate: whether it is drawn, written to its correction as 1 or 0.
struct SettleTied {
  Priorities priorities;

  GNNSCALE_HD void operator()(int64_t t) const {
    const int64_t i = priorities.tied[t], batch = priorities.candidates.batch_of(i),
                  first = priorities.candidates.begin[batch], last = priorities.candidates.begin[batch + 1];
    const Drawn own = priorities.candidates.drawn(i, batch);
    const int64_t count = static_cast<int64_t>(*priorities.num_tied);
    int64_t before = 0;
    for (int64_t other = 0; other < count; ++other) {
      const int64_t j = priorities.tied[other];
      before += first <= j && j < last && comes_before(priorities.candidates.drawn(j, batch), own);
    }
    priorities.candidates.correction[i] = before < priorities.left[batch] ? 1 : 0;
    if (before == priorities.left[batch]) priorities.next[batch] = own;
  }
};

// For every candidate: its correction, once the first one not drawn is known.
struct CorrectPriority {
  Priorities priorities;

  GNNSCALE_HD void operator()(int64_t i) const {
    const int64_t batch = priorities.candidates.batch_of(i);
    double& correction = priorities.candidates.correction[i];
    if (priorities.candidates.are_all_taken(batch)) {
      correction = 1;
      return;
    }
    const uint32_t rank = priorities.rank_of(i, batch);
    const bool is_drawn = rank < priorities.rank[batch] || (rank == priorities.rank[batch] && correction == 1);
    correction = is_drawn ? priority_correction(priorities.candidates.score[i], priorities.next[batch]) : 0;
  }
};

// Poisson #############################################################################################################

// Nodes that are certain leave smaller sums to the others, which may make more nodes certain: rounds are repeated until
// no further node is.
struct Poissons {
  Candidates candidates;
  const uint64_t* sums;             // [candidates + 1]: of scores, modulo 2^64
  uint64_t *left, *rest;            // [batches]: as in is_certain
  uint64_t *certain, *certain_sum;  // [batches]: how many nodes are certain by these, and the sum of their scores
  uint64_t* changed;                // whether more nodes became certain

  GNNSCALE_HD uint64_t total(int64_t batch) const {
    return sums[candidates.begin[batch + 1]] - sums[candidates.begin[batch]];
  }
};

// For every batch: before the first round, no node is certain.
struct StartRounds {
  Poissons poissons;

  GNNSCALE_HD void operator()(int64_t batch) const {
    poissons.left[batch] = static_cast<uint64_t>(poissons.candidates.count);
    poissons.rest[batch] = poissons.total(batch);
    poissons.certain[batch] = poissons.certain_sum[batch] = 0;
  }
};

// For every candidate: counts it if it is certain by what is left to the others.
struct CountCertain {
  Poissons poissons;

  GNNSCALE_HD void operator()(int64_t i) const {
    const int64_t batch = poissons.candidates.batch_of(i);
    if (poissons.candidates.are_all_taken(batch) ||
        !is_certain(poissons.candidates.score[i], poissons.left[batch], poissons.rest[batch]))
      return;
    atomic_add(poissons.certain[batch], uint64_t{1});
    atomic_add(poissons.certain_sum[batch], poissons.candidates.score[i]);
  }
};

// For every batch: what the nodes that are certain now leave to the others.
struct NextRound {
  Poissons poissons;

  GNNSCALE_HD void operator()(int64_t batch) const {
    const uint64_t left = static_cast<uint64_t>(poissons.candidates.count) - poissons.certain[batch];
    if (left != poissons.left[batch]) atomic_add(*poissons.changed, uint64_t{1});
    poissons.left[batch] = left;
    poissons.rest[batch] = poissons.total(batch) - poissons.certain_sum[batch];
    poissons.certain[batch] = poissons.certain_sum[batch] = 0;
  }
};

// For every candidate, after the last round: draws it, and writes its correction.
struct CorrectPoisson {
  Poissons poissons;

  GNNSCALE_HD void operator()(int64_t i) const {
    const int64_t batch = poissons.candidates.batch_of(i);
    double& correction = poissons.candidates.correction[i];
    if (poissons.candidates.are_all_taken(batch)) {
      correction = 1;
      return;
    }
    const uint64_t left = poissons.left[batch], rest = poissons.rest[batch], score = poissons.candidates.score[i];
    const bool is_drawn =
        is_certain(score, left, rest) || poisson_draws(poissons.candidates.drawn(i, batch).draw, score, left, rest);
    correction = is_drawn ? poisson_correction(score, left, rest) : 0;
  }
};

// By numbered draws: with replacement, or of the candidates not drawn yet #############################################

// For every candidate: a key by which candidates are sorted by batch, then by node.
struct WriteOrder {
  Candidates candidates;
  int64_t* keys;
  int32_t* numbers;

  GNNSCALE_HD void operator()(int64_t i) const {
    numbers[i] = static_cast<int32_t>(i);
    keys[i] = candidates.batch_of(i) << candidates.node_bits | candidates.node[i];
  }
};

struct NumberedDraws {
  Candidates candidates;
  const int32_t* at;     // [candidates]: the candidate at each place of the sorted order
  uint64_t* ordered;     // [candidates]: the scores in this order; later the leaves of the batches' trees of these
  uint64_t* upper;       // their upper levels, SumTree::room() numbers; null with replacement
  const uint64_t* sums;  // [candidates + 1]: their sums, modulo 2^64
  uint32_t* times;       // [candidates]: how often each candidate was drawn

  GNNSCALE_HD uint64_t total(int64_t batch) const {
    return sums[candidates.begin[batch + 1]] - sums[candidates.begin[batch]];
  }

  // The tree of the scores of a batch.
  GNNSCALE_HD SumTree tree(int64_t batch) const {
    const int64_t first = candidates.begin[batch];
    return {ordered + first, upper + SumTree::room(first, batch), candidates.begin[batch + 1] - first};
  }
};

// For every place of the sorted order: the score of the candidate there, which is not drawn yet.
struct OrderScores {
  NumberedDraws draws;

  GNNSCALE_HD void operator()(int64_t i) const {
    draws.ordered[i] = draws.candidates.score[draws.at[i]];
    draws.times[i] = 0;
  }
};

// For every numbered draw of every batch, with replacement: counts it for the candidate that it finds in the sums.
struct DrawUnits {
  NumberedDraws draws;

  GNNSCALE_HD void operator()(int64_t item) const {
    const int64_t batch = item / draws.candidates.count, first = draws.candidates.begin[batch];
    int64_t low = first, high = draws.candidates.begin[batch + 1];
    if (low == high) return;
    const uint64_t draw = numbered_draw(static_cast<uint64_t>(draws.candidates.key[batch]), draws.candidates.hop,
                                        item % draws.candidates.count);
    const uint64_t unit = bounded(draw, draws.total(batch));
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (draws.sums[middle] - draws.sums[first] <= unit ? low : high) = middle;
    }
    atomic_add(draws.times[draws.at[low]], uint32_t{1});
  }
};

// For every place of the sorted order: its entries in the batch's tree of scores.
struct GrowTrees {
  NumberedDraws draws;

  GNNSCALE_HD void operator()(int64_t i) const {
    const int64_t batch = draws.candidates.batch_of(i), first = draws.candidates.begin[batch];
    draws.tree(batch).grow(draws.sums + first, i - first);
  }
};

// For every batch: its draws, one after the other, for each is bounded by what the earlier ones left. The lanes of a
// warp search together.
struct DrawSuccessively {
  NumberedDraws draws;

  template <typename Lanes>
  GNNSCALE_HD void operator()(int64_t batch, const Lanes& lanes) const {
    if (draws.candidates.are_all_taken(batch)) return;
    const int64_t first = draws.candidates.begin[batch];
    const SumTree tree = draws.tree(batch);
    uint64_t left = draws.total(batch);
    for (int64_t j = 0; j < draws.candidates.count; ++j) {
      const uint64_t draw = numbered_draw(static_cast<uint64_t>(draws.candidates.key[batch]), draws.candidates.hop, j);
      const int64_t place = tree.find(bounded(draw, left), lanes), i = draws.at[first + place];
      const uint64_t score = draws.candidates.score[i];
      tree.remove(place, score, lanes);
      left -= score;
      lanes.each(0, 1, [&](int) { draws.times[i] = 1; });
    }
  }
};

// For every candidate, after all draws: its correction, by how often it was drawn.
struct CorrectNumbered {
  NumberedDraws draws;
  bool replace;

  GNNSCALE_HD void operator()(int64_t i) const {
    const int64_t batch = draws.candidates.batch_of(i);
    const uint64_t times = draws.times[i], count = static_cast<uint64_t>(draws.candidates.count);
    if (!replace && draws.candidates.are_all_taken(batch)) {
      draws.candidates.correction[i] = 1;
    } else {
      draws.candidates.correction[i] =
          times == 0 ? 0 : counted_correction(times, draws.total(batch), count, draws.candidates.score[i]);
    }
  }
};

}  // namespace gnnscale
