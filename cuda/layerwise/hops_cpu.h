// One hop of a layer-wise batch on the CPU.
//
// A cell for each node of the graph counts or scores the sources of the frontier in one pass over its lists. The cells
// are read and set to 0 again; those of drawn nodes then hold kChosen + their number, and a second pass writes the
// edges from them. It looks at a bit for each node, for bits stay in the cache. Cells and bits are 0 between hops.
#pragma once

#include <climits>

#include "batch_cpu.h"
#include "choosing_cpu.h"

namespace gnnscale {

constexpr uint64_t kChosen = uint64_t{1} << 63;
constexpr int64_t kBits = 64;        // of a cell
constexpr int64_t kCellsAhead = 32;  // distance at which the cells of a list's sources are prefetched
constexpr int64_t kListsAhead = 4;   // and lists

// The sources of stored edges. kStride: bytes from one to the next, 0 for any.
template <typename Id, int64_t kStride>
struct Sources {
  const char* row;
  int64_t stride;
  uint64_t num_src;

  explicit Sources(const Relation& graph)
      : row(graph.row), stride(graph.row_stride), num_src(static_cast<uint64_t>(graph.num_src)) {}

  GNNSCALE_INLINE uint64_t at(int64_t position) const {
    return static_cast<uint64_t>(*reinterpret_cast<const Id*>(row + position * (kStride > 0 ? kStride : stride)));
  }
  // The same, or 0 and its position in `bad` if it is no node.
  GNNSCALE_INLINE uint64_t checked(int64_t position, int64_t& bad) const {
    const uint64_t id = at(position);
    if (id < num_src) [[likely]]
      return id;
    bad = position;
    return 0;
  }
};

template <typename Id, int64_t kStride>
class LayerHop {
 public:
  LayerHop(LayerBatch& batch, int hop)
      : batch_(batch),
        request_(batch.request),
        sources_(request_.graph),
        hop_(hop),
        cells_(batch.work->scores(request_.graph.num_src)),
        bits_(cells_ + request_.graph.num_src) {}
  ~LayerHop() {
    for (int64_t i = 0; i < touched_count_; ++i) cells_[touched_[i]] = 0;
    for (const Chosen& entry : chosen_) cells_[entry.node] = bits_[entry.node / kBits] = 0;
  }

  void run() {
    batch_.begin_hop();
    const int64_t count = request_.num_nodes[hop_];
    if (request_.method == Method::kLabor) {
      run_labor(count);
    } else {
      if (request_.method == Method::kLadies) {
        find_frontier();
        score_sources();
        keep_known([&](int64_t node) { return cells_[node] != 0; });
        list_scored();
      } else {
        keep_known([&](int64_t node) { return request_.score[node] > 0; });
        list_all();
      }
      choose(candidates_, count, request_.scheme, request_.key, hop_, chosen_);
      for (size_t i = 0; i < chosen_.size(); ++i) {
        const int64_t node = chosen_[i].node;
        cells_[node] = kChosen | i;
        bits_[node / kBits] |= uint64_t{1} << node % kBits;
      }
      write();
    }
    batch_.end_hop();
  }

 private:
  // The distinct nodes to expand, in order.
  void find_frontier() {
    const int64_t* const ids = batch_.nodes.id.data();
    frontier_.assign(ids + batch_.begin, ids + batch_.end);
    if (batch_.begin > 0) return;  // only seeds repeat
    for (int64_t& node : frontier_) {
      uint64_t& cell = cells_[node];
      node = cell == 0 ? node : -1;
      cell = 1;
    }
    for (int64_t i = batch_.begin; i < batch_.end; ++i) cells_[ids[i]] = 0;
    std::erase(frontier_, -1);
  }

  GNNSCALE_INLINE void prefetch_cell(int64_t position) const {
    GNNSCALE_PREFETCH_WRITE(
        reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(cells_) + sources_.at(position) * sizeof(uint64_t)));
  }

  GNNSCALE_INLINE void prefetch_bit(int64_t position) const {
    GNNSCALE_PREFETCH(
        reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(bits_) + sources_.at(position) / CHAR_BIT));
  }

  // Calls f(i, first, last) for the lists of nodes; prefetch(position) is called for the first ones of each list
  // shortly before.
  template <typename Prefetch, typename F>
  void each_list(const int64_t* nodes, int64_t count, Prefetch&& prefetch, F&& f) {
    const Relation& graph = request_.graph;
    std::pair<int64_t, int64_t> list{0, 0};
    if (count > 0) list = batch_.stored(nodes[0]);
    for (int64_t i = 0; i < count; ++i) {
      if (i + 2 * kListsAhead < count) GNNSCALE_PREFETCH(graph.pointer_of(nodes[i + 2 * kListsAhead]));
      if (i + kListsAhead < count) {
        GNNSCALE_PREFETCH(graph.row + *graph.pointer_of(nodes[i + kListsAhead]) * graph.row_stride);
      }
      std::pair<int64_t, int64_t> next{0, 0};
      if (i + 1 < count) next = batch_.stored(nodes[i + 1]);
      for (int64_t position = next.first; position < std::min(next.first + kCellsAhead, next.second); ++position) {
        prefetch(position);
      }
      f(i, list.first, list.second);
      list = next;
    }
  }

  // LADIES: candidates are the sources of the frontier's edges.
  void score_sources() {
    for (const int64_t node : frontier_) {
      const auto [first, last] = batch_.stored(node);
      frontier_edges_ += last - first;
    }
    touched_.reserve(0, std::min(frontier_edges_, request_.graph.num_src) + 1);
    const bool counts = request_.scores == Scores::kCounts;
    const int bits = square_bits(request_.graph.num_src);
    int64_t bad = -1, found = 0;
    uint64_t* const cells = cells_;
    int64_t* const touched = touched_.data();
    const auto prefetch = [this](int64_t position) GNNSCALE_INLINE_LAMBDA { prefetch_cell(position); };
    const auto count_list = [&](int64_t, int64_t first, int64_t last) {
      const uint64_t term = counts || last == first ? 1 : square_term(bits, static_cast<uint64_t>(last - first));
      const auto touch = [&](int64_t position) GNNSCALE_INLINE_LAMBDA {
        const uint64_t id = sources_.checked(position, bad);
        const uint64_t cell = cells[id];
        touched[found] = static_cast<int64_t>(id);
        found += cell == 0;
        cells[id] = cell + term;
      };
      int64_t position = first;
      for (; position + kCellsAhead < last; ++position) {
        prefetch_cell(position + kCellsAhead);
        touch(position);
      }
      for (; position < last; ++position) touch(position);
    };
    each_list(frontier_.data(), static_cast<int64_t>(frontier_.size()), prefetch, count_list);
    touched_count_ = found;
    batch_.note_bad_row(bad);
  }

  // With keep_known, the nodes of the batch that are candidates are chosen, and no candidates any more.
  template <typename F>
  void keep_known(F&& is_candidate) {
    if (!request_.keep_known) return;
    for (int64_t i = 0; i < batch_.end; ++i) {
      const int64_t node = batch_.nodes.id[i];
      if (cells_[node] >= kChosen || !is_candidate(node)) continue;
      chosen_.push_back({node, 1.0});
      cells_[node] = kChosen;
    }
  }

  // The candidates with their scores, from the cells.
  void list_scored() {
    const bool counts = request_.scores == Scores::kCounts;
    const int shift = count_shift(static_cast<uint64_t>(frontier_edges_));
    Scored found(touched_count_);
    const int64_t* const touched = touched_.data();
    uint64_t* const cells = cells_;
    const int64_t count = std::exchange(touched_count_, 0);
    for (int64_t i = 0; i < count; ++i) {
      if (i + kCellsAhead < count) GNNSCALE_PREFETCH_WRITE(cells + touched[i + kCellsAhead]);
      const uint64_t cell = cells[touched[i]];
      cells[touched[i]] = 0;
      found.add_if(cell < kChosen, touched[i], !counts ? cell : shift == 0 ? cell * cell : count_score(cell, shift));
    }
    candidates_ = std::move(found);
  }

  // FastGCN: candidates are all nodes with a score.
  void list_all() {
    const int64_t num_nodes = request_.graph.num_src;
    Scored found(num_nodes);
    for (int64_t node = 0; node < num_nodes; ++node) {
      const int64_t score = request_.score[node];
      found.add_if(score > 0 && cells_[node] < kChosen, node, static_cast<uint64_t>(score));
    }
    candidates_ = std::move(found);
  }

  // The edges from the chosen nodes.
  void write() {
    const int64_t* const nodes = batch_.nodes.id.data() + batch_.begin;
    frontier_.assign(nodes, nodes + (batch_.end - batch_.begin));  // the nodes may move while columns are added
    Vector<int64_t> positions;
    Vector<DrawnEdge> drawn;
    int64_t bad = -1;
    const uint64_t* const bits = bits_;
    const auto prefetch = [this](int64_t position) GNNSCALE_INLINE_LAMBDA { prefetch_bit(position); };
    const auto write_list = [&](int64_t i, int64_t first, int64_t last) {
      if (static_cast<int64_t>(positions.size()) <= last - first) positions.resize(2 * (last - first) + 1);
      int64_t* const found = positions.data();
      int64_t count = 0, position = first;
      const auto look = [&](int64_t at) GNNSCALE_INLINE_LAMBDA {
        found[count] = at;
        const uint64_t id = sources_.checked(at, bad);
        count += static_cast<int64_t>(bits[id / kBits] >> id % kBits & 1);
      };
      for (; position + kCellsAhead < last; ++position) {
        prefetch_bit(position + kCellsAhead);
        look(position);
      }
      for (; position < last; ++position) look(position);
      drawn.resize(count);
      for (int64_t k = 0; k < count; ++k) {
        const uint64_t number = cells_[sources_.checked(found[k], bad)] - kChosen;
        drawn[k] = {found[k], chosen_[number].correction};
      }
      batch_.add_column<Id>(frontier_[i], drawn);
    };
    each_list(frontier_.data(), static_cast<int64_t>(frontier_.size()), prefetch, write_list);
    batch_.note_bad_row(bad);
  }

  // LABOR-0: each destination draws of its own edges.
  void run_labor(int64_t fanout) {
    const int draws_of = request_.layer_dependency ? 0 : hop_;
    Vector<DrawnEdge> drawn;
    Vector<int64_t> ids;
    Vector<uint64_t> draws;
    int64_t bad = -1;
    for (int64_t column = batch_.begin; column < batch_.end; ++column) {
      const int64_t node = batch_.nodes.id[column];
      const auto [first, last] = batch_.stored(node);
      const int64_t degree = last - first;
      drawn.clear();
      if (fanout < 0 || fanout >= degree) {
        for (int64_t position = first; position < last; ++position) drawn.push_back({position, 1.0});
      } else if (fanout > 0) {
        ids.resize(degree);
        draws.resize(degree);
        for (int64_t at = 0; at < degree; ++at) ids[at] = static_cast<int64_t>(sources_.checked(first + at, bad));
        draw_nodes(request_.key, draws_of, ids.data(), degree, draws.data());
        const double correction = labor_correction(static_cast<uint64_t>(degree), static_cast<uint64_t>(fanout));
        choose_neighbors(first, draws, fanout);
        for (const int64_t position : positions_) drawn.push_back({position, correction});
      }
      batch_.add_column<Id>(node, drawn);
    }
    batch_.note_bad_row(bad);
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
  const Sources<Id, kStride> sources_;
  const int hop_;
  uint64_t *const cells_, *const bits_;
  Vector<int64_t> frontier_, positions_;
  PooledArray<int64_t> touched_;  // nodes whose cells are set, touched_count_ of them
  int64_t touched_count_ = 0, frontier_edges_ = 0;
  Scored candidates_;
  Vector<Chosen> chosen_;
};

}  // namespace gnnscale
