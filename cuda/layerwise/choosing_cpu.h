// Draws some of a hop's candidates by their scores, on the CPU.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>

#include "../memory/pool.h"
#include "draws_cpu.h"
#include "schemes.h"
#include "sum_tree.h"

namespace gnnscale {

// Candidates: distinct nodes, whose scores are positive and have a sum below 2^62.
class Scored {
 public:
  explicit Scored(int64_t room = 0) : node_(room + 1), score_(room + 1) {}  // + 1: add_if also writes after the last
  int64_t count() const { return count_; }
  int64_t node(int64_t i) const { return node_[i]; }
  uint64_t score(int64_t i) const { return score_[i]; }
  const int64_t* nodes() const { return node_.data(); }
  const uint64_t* scores() const { return score_.data(); }
  int64_t* nodes() { return node_.data(); }
  uint64_t* scores() { return score_.data(); }
  void set_count(int64_t count) { count_ = count; }
  // Replaces candidate i by the last one.
  void remove(int64_t i) {
    --count_;
    node_[i] = node_[count_];
    score_[i] = score_[count_];
  }
  // Without a branch: the entry is written in any case, and overwritten by the next one if it is no candidate.
  GNNSCALE_INLINE void add_if(bool is_candidate, int64_t node, uint64_t score) {
    node_[count_] = node;
    score_[count_] = score;
    count_ += is_candidate;
  }

 private:
  PooledArray<int64_t> node_;
  PooledArray<uint64_t> score_;
  int64_t count_ = 0;
};

// A drawn node and its correction c_v.
struct Chosen {
  int64_t node;
  double correction;
};

// How many candidates a guessed threshold lets pass, in expectation, so that most likely more than `count` do.
inline double enough(int64_t count) {
  return static_cast<double>(count) + 4 * std::sqrt(static_cast<double>(count)) + 8;
}

// Moves the candidates with r_v / q_v < limit to the front; returns their number. Which these are cannot be predicted,
// so there is no branch.
inline int64_t move_below(Vector<Drawn>& all, uint64_t limit) {
  int64_t found = 0;
  for (Drawn& entry : all) {
    const Drawn one = entry;
    entry = all[found];
    all[found] = one;
    found += is_below(one.draw, one.score, limit);
  }
  return found;
}

// The `count` candidates of least r_v / q_v. `below` has all candidates with r_v / q_v < limit, more than `count`. Most
// of those that are drawn are found without comparing two of them: those below a limit that `count` most likely reach.
inline void choose_first(Vector<Drawn>& below, uint64_t limit, int64_t count, Vector<Chosen>& chosen) {
  const double few = std::max(static_cast<double>(count) - 2 * std::sqrt(static_cast<double>(count)), 0.0);
  const double part = few / static_cast<double>(below.size());
  int64_t sure = move_below(below, static_cast<uint64_t>(part * static_cast<double>(limit)));
  if (sure > count) sure = 0;
  std::nth_element(below.begin() + sure, below.begin() + count, below.end(),
                   [](const Drawn& a, const Drawn& b) { return comes_before(a, b); });
  const Drawn next = below[count];
  for (int64_t i = 0; i < count; ++i) {
    chosen.push_back({below[i].node, priority_correction(below[i].score, next)});
  }
}

// The `count` candidates of least r_v / q_v. Only those below a guessed threshold are compared; if these are too few,
// the threshold is raised.
inline void choose_by_priority(const Scored& from, int64_t count, uint64_t key, int hop, uint64_t total,
                               Vector<Chosen>& chosen) {
  const int64_t all = from.count();
  PooledArray<uint64_t> draws(all);
  draw_nodes(key, hop, from.nodes(), all, draws.data());
  Vector<Drawn> few;
  uint64_t limit = 0;
  double guess = std::ldexp(enough(count) / static_cast<double>(total), kDrawBits);  // above r* / q*, most likely
  for (;; guess *= 4) {
    const bool last = guess > 0x1p63;
    limit = last ? UINT64_MAX : static_cast<uint64_t>(guess) + 1;
    few.clear();
    for (int64_t i = 0; i < all; ++i) {
      if (last || is_below(draws[i], from.score(i), limit)) few.push_back({draws[i], from.score(i), from.node(i)});
    }
    if (static_cast<int64_t>(few.size()) > count) break;
  }
  choose_first(few, limit, count, chosen);
}

// Besides the certain candidates: how many are drawn in expectation, and the sum of the scores of those not certain.
struct Uncertain {
  uint64_t left, rest;
};

// total: the sum of the scores of all candidates. `from` has all those that are certain, and more than `count`.
inline Uncertain find_certain(const Scored& from, int64_t count, uint64_t total) {
  Uncertain found{static_cast<uint64_t>(count), total};
  Vector<uint64_t> largest(from.scores(), from.scores() + from.count());  // certain are at most count - 1
  std::nth_element(largest.begin(), largest.begin() + count, largest.end(), std::greater<>());
  std::sort(largest.begin(), largest.begin() + count, std::greater<>());
  for (int64_t i = 0; is_certain(largest[i], found.left, found.rest); ++i) {
    --found.left;
    found.rest -= largest[i];
  }
  return found;
}

inline void choose_by_poisson(const Scored& from, const Uncertain& others, uint64_t key, int hop,
                              Vector<Chosen>& chosen) {
  PooledArray<uint64_t> draws(from.count());
  draw_nodes(key, hop, from.nodes(), from.count(), draws.data());
  for (int64_t i = 0; i < from.count(); ++i) {
    const uint64_t score = from.score(i);
    if (is_certain(score, others.left, others.rest) || poisson_draws(draws[i], score, others.left, others.rest)) {
      chosen.push_back({from.node(i), poisson_correction(score, others.left, others.rest)});
    }
  }
}

// Draws as choose() does, if `from`, which has all candidates with r_v < q_v limit, suffices; else chooses none and
// returns false. total: the sum of the scores of all candidates. scheme: kPriority or kPoisson.
inline bool choose_below(const Scored& from, uint64_t limit, int64_t count, Scheme scheme, uint64_t key, int hop,
                         uint64_t total, Vector<Chosen>& chosen) {
  if (from.count() <= count) return false;
  if (scheme == Scheme::kPoisson) {
    // A candidate with r_v >= q_v limit has r_v rest >= 2^64 left q_v: it is neither certain nor drawn.
    const Uncertain others = find_certain(from, count, total);
    if (static_cast<Wide>(limit) * others.rest < static_cast<Wide>(others.left) << kDrawBits) return false;
    choose_by_poisson(from, others, key, hop, chosen);
    return true;
  }
  PooledArray<uint64_t> draws(from.count());
  draw_nodes(key, hop, from.nodes(), from.count(), draws.data());
  Vector<Drawn> below(from.count());
  int64_t found = 0;
  for (int64_t i = 0; i < from.count(); ++i) {  // which are below cannot be predicted, so there is no branch
    below[found] = {draws[i], from.score(i), from.node(i)};
    found += is_below(draws[i], from.score(i), limit);
  }
  if (found <= count) return false;
  below.resize(found);
  choose_first(below, limit, count, chosen);
  return true;
}

// `count` numbered draws, each from prefix sums in id order: of all scores (with replacement), or of the scores of
// candidates that were not drawn yet.
inline void choose_by_numbers(const Scored& from, int64_t count, bool replace, uint64_t key, int hop, uint64_t total,
                              Vector<Chosen>& chosen) {
  Vector<uint32_t> order(from.count());  // candidates have local ids, which are less than 2^32
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return from.node(a) < from.node(b); });
  const auto score_of = [&](size_t place) { return from.score(order[place]); };
  const int64_t all = from.count();
  Vector<uint64_t> numbers(2 * all + 1 + SumTree::room(all, 1));
  uint64_t *const sums = numbers.data(), *const leaves = sums + all + 1;
  sums[0] = 0;
  for (int64_t place = 0; place < all; ++place) sums[place + 1] = sums[place] + score_of(place);
  const SumTree tree(leaves, leaves + all, all);
  for (int64_t place = 0; place < all; ++place) tree.grow(sums, place);
  uint64_t left = total;
  Vector<size_t> places(count);
  for (int64_t j = 0; j < count; ++j) {
    places[j] = tree.find(bounded(numbered_draw(key, hop, j), left), OneLane{});
    if (replace) continue;
    tree.remove(places[j], score_of(places[j]), OneLane{});
    left -= score_of(places[j]);
  }
  std::sort(places.begin(), places.end());
  for (size_t first = 0, last; first < places.size(); first = last) {
    for (last = first; last < places.size() && places[last] == places[first];) ++last;
    const size_t place = places[first];
    chosen.push_back({from.node(order[place]),
                      counted_correction(last - first, total, static_cast<uint64_t>(count), score_of(place))});
  }
}

// Appends the drawn candidates to `chosen`; count < 0: all of them.
inline void choose(const Scored& from, int64_t count, Scheme scheme, uint64_t key, int hop, Vector<Chosen>& chosen) {
  const int64_t all = from.count();
  if (count < 0 || (all <= count && scheme != Scheme::kReplace)) {
    for (int64_t i = 0; i < all; ++i) chosen.push_back({from.node(i), 1.0});
    return;
  }
  if (count == 0 || all == 0) return;
  const uint64_t total = std::accumulate(from.scores(), from.scores() + all, uint64_t{0});
  switch (scheme) {
    case Scheme::kPriority:
      return choose_by_priority(from, count, key, hop, total, chosen);
    case Scheme::kPoisson:
      return choose_by_poisson(from, find_certain(from, count, total), key, hop, chosen);
    default:
      return choose_by_numbers(from, count, scheme == Scheme::kReplace, key, hop, total, chosen);
  }
}

}  // namespace gnnscale
