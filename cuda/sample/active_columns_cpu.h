// For each relation, the nodes of a frontier that have edges. Where many relations lead to a node type, most of them
// have no edges into most nodes; reading each relation's colptr for each node would be nearly all of a hop's work.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../macros.h"
#include "held_graph.h"

namespace gnnscale {

class ActiveColumns {
 public:
  // Looks up the frontier nodes node[0..count).
  void find(const IncomingRelations& incoming, const int64_t* node, int64_t count) {
    begin_.assign(incoming.numbers.size() + 2, 0);
    each(incoming, node, count, [this](int64_t, int64_t relation) { ++begin_[relation + 2]; });
    for (size_t i = 1; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
    position_.resize(static_cast<size_t>(begin_.back()));
    each(incoming, node, count, [this](int64_t k, int64_t relation) { position_[begin_[relation + 1]++] = k; });
  }

  // For relation incoming.numbers[i]: the positions in the frontier of the nodes with edges, ascending.
  int64_t count(int64_t i) const { return begin_[i + 1] - begin_[i]; }
  const int64_t* positions(int64_t i) const { return position_.data() + begin_[i]; }

 private:
  static constexpr int64_t kAhead = 16;  // distance at which words are prefetched

  template <typename F>
  static void each(const IncomingRelations& incoming, const int64_t* node, int64_t count, F&& f) {
    const uint64_t* const bits = incoming.bits.data();
    const int64_t words = incoming.words;
    for (int64_t k = 0; k < count; ++k) {
      if (k + kAhead < count) GNNSCALE_PREFETCH(bits + node[k + kAhead] * words);
      for (int64_t w = 0; w < words; ++w) {
        for (uint64_t left = bits[node[k] * words + w]; left != 0; left &= left - 1) {
          f(k, w * 64 + __builtin_ctzll(left));
        }
      }
    }
  }

  Vector<int64_t> begin_;  // where each relation's positions begin; find() shifts it by one while it writes them
  Vector<int64_t> position_;
};

}  // namespace gnnscale
