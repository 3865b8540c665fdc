// One hop of LABOR-0 on the CPU: each destination draws among its own edges, by the random numbers of their sources.
//
// Columns are processed in blocks, so that numbers are drawn in whole vectors and what is read next is prefetched.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "batch_cpu.h"
#include "draws_cpu.h"
#include "sources_cpu.h"

namespace gnnscale {

// Which edges of a destination are drawn, by the draws r_v of their sources.
class LaborChoice {
 public:
  LaborChoice(int64_t fanout, Scheme scheme) : fanout_(fanout), scheme_(scheme) {}

  // Whether draws decide, of `degree` edges; else all are drawn, or none if fanout is 0.
  bool draws(int64_t degree) const { return fanout_ >= 0 && fanout_ < degree; }

  // Stores in chosen() which of `degree` > fanout > 0 edges are drawn, ascending; returns their number.
  int64_t choose(const uint64_t* draws, int64_t degree) {
    if (std::ssize(chosen_) < degree + kLanes) chosen_.resize(degree + kLanes);
    if (scheme_ == Scheme::kPoisson) {
      const uint64_t limit = labor_limit(static_cast<uint64_t>(degree), static_cast<uint64_t>(fanout_));
      return find_below(draws, degree, limit, chosen_.data());
    }
    for (double guess = wanted_ / static_cast<double>(degree) * 0x1p64;; guess *= 2) {
      const uint64_t limit = guess < 0x1p63 ? static_cast<uint64_t>(guess) : UINT64_MAX;
      const int64_t count = find_below(draws, degree, limit, chosen_.data());
      if (count == fanout_) return count;
      if (count > fanout_) return keep_least(draws, count, limit);
    }
  }
  const int64_t* chosen() const { return chosen_.data(); }

  // c_v of drawn edges of so many.
  double correction(int64_t degree) const {
    return labor_correction(static_cast<uint64_t>(degree), static_cast<uint64_t>(fanout_));
  }

 private:
  static constexpr int kGuesses = 16;  // of keep_least(); then intervals are halved

  // chosen_ has `count` > fanout_ edges, whose draws are at most `limit`. Keeps those of the least draws, and of equal
  // draws the first ones; returns their number.
  int64_t keep_least(const uint64_t* draws, int64_t count, uint64_t limit) {
    few_.clear();
    for (int64_t i = 0; i < count; ++i) few_.push_back(draws[chosen_[i]]);
    // `below` <= fanout_ draws are less than `low`, and `above` > fanout_ draws are at most `high`.
    uint64_t low = 0, high = limit;
    int64_t below = 0, above = count;
    for (int guesses = 0; below < fanout_ && low < high; ++guesses) {
      const double rest = static_cast<double>(fanout_ - below) + 0.5, all = static_cast<double>(above - below) + 1;
      const double step = static_cast<double>(high - low) * (guesses < kGuesses ? rest / all : 0.5);
      const uint64_t middle = low + std::clamp<uint64_t>(static_cast<uint64_t>(step), 1, high - low);
      int64_t less = 0;
      for (const uint64_t draw : few_) less += draw < middle;
      if (less <= fanout_) {
        low = middle;
        below = less;
      } else {
        high = middle - 1;
        above = less;
      }
    }
    int64_t equal = fanout_ - below, kept = 0;  // `equal`: how many of the draws that are `low` are kept
    for (int64_t i = 0; i < count; ++i) {
      chosen_[kept] = chosen_[i];
      const bool is_kept = few_[i] < low || (few_[i] == low && equal > 0);
      equal -= is_kept && few_[i] == low;
      kept += is_kept;
    }
    return kept;
  }

  const int64_t fanout_;
  const Scheme scheme_;
  // How many edges a guessed limit lets pass, in expectation, so that most likely fanout_ do.
  const double wanted_ = static_cast<double>(fanout_) + 2 * std::sqrt(std::max(static_cast<double>(fanout_), 0.0)) + 2;
  Vector<int64_t> chosen_;
  Vector<uint64_t> few_;
};

template <typename Id, int64_t kStride>
class LaborHop {
 public:
  LaborHop(LayerBatch& batch, int hop) : batch_(batch), request_(batch.request), sources_(request_.graph), hop_(hop) {}

  void run() {
    batch_.begin_hop();
    for (int64_t column = batch_.begin; column < batch_.end;) {
      column = read_lists(column);
      choose_edges();
      for (const Column& entry : columns_) {
        batch_.add_column<Id>(batch_.cells(), entry.first, entry.last, drawn_.data() + entry.begin,
                              entry.end - entry.begin);
      }
    }
    batch_.note_bad_row(bad_);
    batch_.end_hop();
  }

 private:
  static constexpr int64_t kBlockColumns = 64, kBlockEdges = 1024;  // a block ends when it has one or the other
  static constexpr int64_t kListsAhead = 8, kPointersAhead = 16;    // how many columns ahead they are prefetched
  static constexpr int64_t kBytesAhead = 512;                       // of a list; the processor prefetches the others
  static constexpr int64_t kVectors = 32;                           // draws are made for a multiple of this many edges

  // A list of edges at the stored positions [first, last), and its drawn edges at drawn_[begin, end). If draws
  // decide, its sources are at ids_[read, read + last - first).
  struct Column {
    int64_t first, last, read, begin, end;
  };

  // Reads the lists of the next block, from a column on; returns the column after it.
  int64_t read_lists(int64_t column) {
    const Relation& graph = request_.graph;
    const int64_t* const nodes = batch_.nodes.id.data();
    columns_.clear();
    int64_t edges = 0;
    filled_ = 0;
    for (; column < batch_.end && edges < kBlockEdges && std::ssize(columns_) < kBlockColumns; ++column) {
      if (column + kPointersAhead < batch_.end) GNNSCALE_PREFETCH(graph.pointer_of(nodes[column + kPointersAhead]));
      if (column + kListsAhead < batch_.end) {
        const auto [first, last] = batch_.stored(nodes[column + kListsAhead]);
        prefetch_lines(graph.row + first * graph.row_stride, std::min((last - first) * graph.row_stride, kBytesAhead));
      }
      const auto [first, last] = batch_.stored(nodes[column]);
      columns_.push_back({first, last, filled_, 0, 0});
      edges += last - first;
      if (!choice_.draws(last - first) || fanout_ == 0) continue;
      make_room(ids_, filled_ + last - first + kVectors);
      sources_.read(first, last - first, ids_.data() + filled_, bad_);
      filled_ += last - first;
    }
    return column;
  }

  // Stores in drawn_ the drawn edges of the block.
  void choose_edges() {
    drawn_.clear();
    const int64_t size = (filled_ + kVectors - 1) / kVectors * kVectors;
    if (size > 0) std::fill(ids_.data() + filled_, ids_.data() + size, 0);
    make_room(draws_, size);
    draw_nodes(request_.key, request_.layer_dependency ? 0 : hop_, ids_.data(), size, draws_.data());
    for (Column& column : columns_) {
      const int64_t degree = column.last - column.first;
      column.begin = std::ssize(drawn_);
      if (!choice_.draws(degree)) {
        for (int64_t position = column.first; position < column.last; ++position) {
          add(static_cast<int64_t>(sources_.checked(position, bad_)), position, 1.0);
        }
      } else if (fanout_ > 0) {
        const int64_t count = choice_.choose(draws_.data() + column.read, degree);
        const int64_t* const chosen = choice_.chosen();
        const double correction = choice_.correction(degree);
        for (int64_t k = 0; k < count; ++k) add(ids_[column.read + chosen[k]], column.first + chosen[k], correction);
      }
      column.end = std::ssize(drawn_);
    }
  }

  GNNSCALE_INLINE void add(int64_t source, int64_t position, double correction) {
    drawn_.push_back({source, position, source, correction});
    batch_.prefetch(source);
  }

  template <typename T>
  static void make_room(Vector<T>& array, int64_t size) {
    if (std::ssize(array) < size) array.resize(size);
  }

  LayerBatch& batch_;
  const LayerRequest& request_;
  const Sources<Id, kStride> sources_;
  const int hop_;
  const int64_t fanout_ = request_.num_nodes[hop_];
  LaborChoice choice_{fanout_, request_.scheme};
  int64_t bad_ = -1;
  int64_t filled_ = 0;  // how many entries of ids_ the block uses
  Vector<Column> columns_;
  Vector<int64_t> ids_;
  Vector<uint64_t> draws_;
  Vector<DrawnEdge> drawn_;
};

}  // namespace gnnscale
