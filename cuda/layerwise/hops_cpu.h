// One hop of a layer-wise batch on the CPU.
//
// A cell for each node of the graph counts or scores the sources of the frontier in one pass over its lists. Then the
// cells of drawn nodes hold kChosen + their number, and a second pass writes the edges from them. Cells are 0 between
// batches.
#pragma once

#include "batch_cpu.h"
#include "choosing_cpu.h"

namespace gnnscale {

constexpr uint64_t kChosen = uint64_t{1} << 63;
constexpr int64_t kCellsAhead = 24;  // distance at which the cells of a list's sources are prefetched
constexpr int64_t kListsAhead = 4;   // and of lists

template <typename Id>
class LayerHop {
 public:
  LayerHop(LayerBatch& batch, int hop)
      : batch_(batch), request_(batch.request), hop_(hop), cells_(batch.work->scores(request_.graph.num_src)) {}
  ~LayerHop() {
    for (const int64_t node : touched_) cells_[node] = 0;
  }

  void run() {
    batch_.begin_hop();
    find_frontier();
    const int64_t count = request_.num_nodes[hop_];
    if (request_.method == Method::kLabor) {
      run_labor(count);
    } else {
      if (request_.method == Method::kLadies) {
        score_sources();
      } else {
        list_scored();
      }
      choose(candidates_, count, request_.scheme, request_.key, hop_, chosen_);
      mark();
      write();
    }
    batch_.end_hop();
  }

 private:
  int64_t node_at(int64_t column) const { return batch_.nodes.id[column]; }

  // The distinct nodes to expand, in order.
  void find_frontier() {
    const int64_t* const ids = batch_.nodes.id.data();
    frontier_.assign(ids + batch_.begin, ids + batch_.end);
    if (batch_.begin > 0 || request_.method == Method::kLabor) return;  // only seeds repeat
    for (int64_t& node : frontier_) {
      uint64_t& cell = cells_[node];
      node = cell == 0 ? node : -1;
      cell = 1;
    }
    for (int64_t i = batch_.begin; i < batch_.end; ++i) cells_[ids[i]] = 0;
    std::erase(frontier_, -1);
  }

  // Calls f(place in the frontier, first, last) for each list, whose cells are prefetched shortly before.
  template <typename F>
  void each_list(F&& f) {
    const Relation& graph = request_.graph;
    const size_t count = frontier_.size();
    for (size_t i = 0; i < count; ++i) {
      if (i + 2 * kListsAhead < count) GNNSCALE_PREFETCH(graph.pointer_of(frontier_[i + 2 * kListsAhead]));
      if (i + kListsAhead < count) {
        GNNSCALE_PREFETCH(graph.row + *graph.pointer_of(frontier_[i + kListsAhead]) * graph.row_stride);
      }
      const auto [first, last] = batch_.stored(frontier_[i]);
      f(first, last);
    }
  }

  // LADIES: candidates are the sources of the frontier's edges.
  void score_sources() {
    int64_t edges = 0;
    each_list([&](int64_t first, int64_t last) { edges += last - first; });
    touched_.resize(std::min(edges, request_.graph.num_src) + 1);
    const bool counts = request_.scores == Scores::kCounts;
    const int bits = square_bits(request_.graph.num_src);
    int64_t found = 0;
    each_list([&](int64_t first, int64_t last) {
      const uint64_t term = counts || last == first ? 1 : square_term(bits, static_cast<uint64_t>(last - first));
      const auto touch = [&](int64_t position) GNNSCALE_INLINE_LAMBDA {
        const int64_t id = batch_.source_at<Id>(position);
        uint64_t& cell = cells_[id];
        touched_[found] = id;
        found += cell == 0;
        cell += term;
      };
      int64_t position = first;
      for (; position + kCellsAhead < last; ++position) {
        GNNSCALE_PREFETCH_WRITE(&cells_[batch_.source_at<Id>(position + kCellsAhead)]);
        touch(position);
      }
      for (; position < last; ++position) touch(position);
    });
    touched_.resize(found);
    const int shift = count_shift(static_cast<uint64_t>(edges));
    candidates_.node.reserve(found);
    candidates_.score.reserve(found);
    for (const int64_t node : touched_) {
      if (request_.keep_known && batch_.is_known(node)) {
        chosen_.push_back({node, 1.0});
        continue;
      }
      candidates_.node.push_back(node);
      candidates_.score.push_back(counts ? count_score(cells_[node], shift) : cells_[node]);
    }
  }

  // FastGCN: candidates are all nodes with a score.
  void list_scored() {
    const int64_t num_nodes = request_.graph.num_src;
    candidates_.node.reserve(num_nodes);
    candidates_.score.reserve(num_nodes);
    for (int64_t node = 0; node < num_nodes; ++node) {
      if (request_.score[node] <= 0) continue;
      if (request_.keep_known && batch_.is_known(node)) {
        chosen_.push_back({node, 1.0});
        continue;
      }
      candidates_.node.push_back(node);
      candidates_.score.push_back(static_cast<uint64_t>(request_.score[node]));
    }
  }

  void mark() {
    for (const int64_t node : touched_) cells_[node] = 0;
    if (request_.method == Method::kFastGcn) {
      touched_.reserve(chosen_.size());
      for (const Chosen& entry : chosen_) touched_.push_back(entry.node);
    }
    for (size_t i = 0; i < chosen_.size(); ++i) cells_[chosen_[i].node] = kChosen | i;
  }

  // The edges from the chosen nodes.
  void write() {
    Vector<DrawnEdge> drawn;
    for (int64_t column = batch_.begin; column < batch_.end; ++column) {
      const int64_t node = node_at(column);
      const auto [first, last] = batch_.stored(node);
      drawn.clear();
      for (int64_t position = first; position < last; ++position) {
        if (position + kCellsAhead < last) {
          GNNSCALE_PREFETCH(&cells_[batch_.source_at<Id>(position + kCellsAhead)]);
        }
        const uint64_t cell = cells_[batch_.source_at<Id>(position)];
        if (cell >= kChosen) drawn.push_back({position, chosen_[cell - kChosen].correction});
      }
      batch_.add_column<Id>(node, drawn);
    }
  }

  // LABOR-0: each destination draws of its own edges.
  void run_labor(int64_t fanout) {
    const int draws_of = request_.layer_dependency ? 0 : hop_;
    Vector<DrawnEdge> drawn;
    Vector<int64_t> ids;
    Vector<uint64_t> draws;
    for (int64_t column = batch_.begin; column < batch_.end; ++column) {
      const int64_t node = node_at(column);
      const auto [first, last] = batch_.stored(node);
      const int64_t degree = last - first;
      drawn.clear();
      if (fanout < 0 || fanout >= degree) {
        for (int64_t position = first; position < last; ++position) drawn.push_back({position, 1.0});
      } else if (fanout > 0) {
        ids.resize(degree);
        draws.resize(degree);
        for (int64_t at = 0; at < degree; ++at) ids[at] = batch_.source_at<Id>(first + at);
        draw_nodes(request_.key, draws_of, ids.data(), degree, draws.data());
        const double correction = labor_correction(static_cast<uint64_t>(degree), static_cast<uint64_t>(fanout));
        choose_neighbors(first, draws, fanout);
        for (const int64_t position : positions_) drawn.push_back({position, correction});
      }
      batch_.add_column<Id>(node, drawn);
    }
  }

  // Stored positions of the drawn neighbors of a node, ascending.
  void choose_neighbors(int64_t first, const Vector<uint64_t>& draws, int64_t fanout) {
    const auto degree = static_cast<int64_t>(draws.size());
    positions_.clear();
    if (request_.scheme == Scheme::kPoisson) {
      for (int64_t at = 0; at < degree; ++at) {
        if (labor_draws(draws[at], static_cast<uint64_t>(degree), static_cast<uint64_t>(fanout))) {
          positions_.push_back(first + at);
        }
      }
      return;
    }
    const auto before = [&](int64_t a, int64_t b) { return draws[a] < draws[b] || (draws[a] == draws[b] && a < b); };
    const double wanted = static_cast<double>(fanout) + 4 * std::sqrt(static_cast<double>(fanout)) + 4;
    const double guess = std::ldexp(wanted / static_cast<double>(degree), kDrawBits);
    const uint64_t limit = guess < 0x1p63 ? static_cast<uint64_t>(guess) : UINT64_MAX;
    for (int64_t at = 0; at < degree; ++at) {
      if (draws[at] <= limit) positions_.push_back(at);
    }
    if (static_cast<int64_t>(positions_.size()) < fanout) {
      positions_.resize(degree);
      std::iota(positions_.begin(), positions_.end(), 0);
    }
    if (static_cast<int64_t>(positions_.size()) > fanout) {
      std::nth_element(positions_.begin(), positions_.begin() + fanout, positions_.end(), before);
    }
    positions_.resize(fanout);
    std::sort(positions_.begin(), positions_.end());
    for (int64_t& position : positions_) position += first;
  }

  LayerBatch& batch_;
  const LayerRequest& request_;
  const int hop_;
  uint64_t* const cells_;
  Vector<int64_t> frontier_, touched_, positions_;  // touched: nodes whose cells may be set
  Scored candidates_;
  Vector<Chosen> chosen_;
};

}  // namespace gnnscale
