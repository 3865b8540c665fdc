// One hop of a layer-wise batch on the CPU.
//
// A cell per node of the graph stores the number of a candidate, later of a drawn node, as the relabel map stores local
// ids (relabel.h). The first pass over the frontier's edges numbers the candidates and sums their scores. The second
// writes the edges from drawn nodes: it tests a bit per node, as the bits fit the cache, and reads the cells of drawn
// nodes alone. All bits are 0 between hops.
#pragma once

#include <climits>

#include "batch_cpu.h"
#include "choosing_cpu.h"

namespace gnnscale {

constexpr int64_t kBits = 64;        // in a word of bits
constexpr int64_t kCellsAhead = 32;  // how many edges ahead the cells of sources are prefetched
constexpr int64_t kListsAhead = 4;   // how many nodes ahead their lists of edges are prefetched

// The sources of stored edges. kStride: bytes from one to the next; 0 if only `stride` has them.
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
  // The same; if it is not below num_src, returns 0 and stores the position in `bad`.
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
      : batch_(batch), request_(batch.request), work_(*batch.work), sources_(request_.graph), hop_(hop) {}
  ~LayerHop() {
    for (const Chosen& entry : chosen_) work_.bits[entry.node / kBits] = 0;
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
      } else {
        list_all();
      }
      choose(candidates_, count, request_.scheme, request_.key, hop_, chosen_);
      candidates_ = Scored();
      mark();
      write();
    }
    batch_.end_hop();
  }

 private:
  // Starts a new numbering, of at most num_src nodes: a cell holds base_ + i if its node has number i.
  void start_numbers() {
    work_.prepare_slots(request_.graph.num_src);
    base_ = work_.slot_base;
    slots_ = work_.slots;
  }
  void end_numbers(int64_t count) { work_.slot_base = base_ + static_cast<uint32_t>(count); }

  bool has_bit(int64_t node) const { return (work_.bits[node / kBits] >> node % kBits & 1) != 0; }
  void set_bit(int64_t node) { work_.bits[node / kBits] |= uint64_t{1} << node % kBits; }

  // The distinct nodes to expand, in order.
  void find_frontier() {
    const int64_t* const ids = batch_.nodes.id.data();
    frontier_.assign(ids + batch_.begin, ids + batch_.end);
    if (batch_.begin > 0) return;  // seeds, which begin at 0, may be repeated; later nodes are not
    start_numbers();
    uint32_t kept = 0;
    for (const int64_t node : frontier_) {
      frontier_[kept] = node;
      if (slots_[node] - base_ < kept) continue;
      slots_[node] = base_ + kept++;
    }
    frontier_.resize(kept);
    end_numbers(kept);
  }

  GNNSCALE_INLINE void prefetch_cell(int64_t position) const {
    GNNSCALE_PREFETCH_WRITE(
        reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(slots_) + sources_.at(position) * sizeof(uint32_t)));
  }

  GNNSCALE_INLINE void prefetch_bit(int64_t position) const {
    GNNSCALE_PREFETCH(
        reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(work_.bits) + sources_.at(position) / CHAR_BIT));
  }

  // Calls f(i, first, last) for each node i, whose edges are at the stored positions [first, last); shortly before it,
  // prefetch(position) for the first kCellsAhead of these positions.
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

  // LADIES: candidates are the sources of the frontier's edges. With keep_known, those in the batch are chosen at once.
  void score_sources() {
    int64_t edges = 0;
    for (const int64_t node : frontier_) {
      const auto [first, last] = batch_.stored(node);
      edges += last - first;
    }
    Scored scored(std::min(edges, request_.graph.num_src));
    start_numbers();
    const bool counts = request_.scores == Scores::kCounts;
    const int bits = square_bits(request_.graph.num_src);
    int64_t bad = -1;
    uint32_t found = 0;
    uint32_t* const slots = slots_;
    const uint32_t base = base_;
    int64_t* const nodes = scored.nodes();
    uint64_t* const scores = scored.scores();
    const auto prefetch = [this](int64_t position) GNNSCALE_INLINE_LAMBDA { prefetch_cell(position); };
    const auto count_list = [&](int64_t, int64_t first, int64_t last) {
      const uint64_t term = counts || last == first ? 1 : square_term(bits, static_cast<uint64_t>(last - first));
      // Which source is new cannot be predicted, so there is no branch.
      const auto touch = [&](int64_t position) GNNSCALE_INLINE_LAMBDA {
        const uint64_t id = sources_.checked(position, bad);
        const uint32_t number = slots[id] - base;
        const bool is_new = number >= found;
        const uint32_t slot = is_new ? found : number;
        slots[id] = base + slot;
        nodes[found] = static_cast<int64_t>(id);
        scores[slot] = (is_new ? 0 : scores[slot]) + term;
        found += is_new;
      };
      int64_t position = first;
      for (; position + kCellsAhead < last; ++position) {
        prefetch_cell(position + kCellsAhead);
        touch(position);
      }
      for (; position < last; ++position) touch(position);
    };
    each_list(frontier_.data(), static_cast<int64_t>(frontier_.size()), prefetch, count_list);
    end_numbers(found);
    batch_.note_bad_row(bad);
    scored.set_count(found);
    const int shift = count_shift(static_cast<uint64_t>(edges));
    for (uint32_t i = 0; counts && i < found; ++i) scores[i] = count_score(scores[i], shift);
    if (request_.keep_known) choose_known(scored);
    candidates_ = std::move(scored);
  }

  void choose_known(Scored& scored) {
    Vector<uint32_t> known;
    for (int64_t i = 0; i < batch_.end; ++i) {
      const uint32_t number = slots_[batch_.nodes.id[i]] - base_;
      if (number < scored.count()) known.push_back(number);
    }
    std::sort(known.begin(), known.end(), std::greater<>());
    known.erase(std::unique(known.begin(), known.end()), known.end());
    for (const uint32_t number : known) {
      chosen_.push_back({scored.node(number), 1.0});
      scored.remove(number);
    }
  }

  // FastGCN: candidates are all nodes of positive score. With keep_known, those in the batch are chosen at once.
  void list_all() {
    work_.prepare_slots(request_.graph.num_src);
    const int64_t num_nodes = request_.graph.num_src;
    for (int64_t i = 0; request_.keep_known && i < batch_.end; ++i) {
      const int64_t node = batch_.nodes.id[i];
      if (request_.score[node] <= 0 || has_bit(node)) continue;
      chosen_.push_back({node, 1.0});
      set_bit(node);
    }
    Scored scored(num_nodes);
    for (int64_t node = 0; node < num_nodes; ++node) {
      const int64_t score = request_.score[node];
      scored.add_if(score > 0 && !has_bit(node), node, static_cast<uint64_t>(score));
    }
    candidates_ = std::move(scored);
  }

  // Sets the bits of the chosen nodes, and numbers them.
  void mark() {
    start_numbers();
    for (size_t i = 0; i < chosen_.size(); ++i) {
      slots_[chosen_[i].node] = base_ + static_cast<uint32_t>(i);
      set_bit(chosen_[i].node);
    }
    end_numbers(static_cast<int64_t>(chosen_.size()));
  }

  // Adds a column for each node to expand, with its edges from chosen nodes.
  void write() {
    const int64_t* const nodes = batch_.nodes.id.data() + batch_.begin;
    frontier_.assign(nodes, nodes + (batch_.end - batch_.begin));  // the nodes may move while columns are added
    Vector<int64_t> positions;
    Vector<DrawnEdge> drawn;
    int64_t bad = -1;
    const uint64_t* const bits = work_.bits;
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
        const uint32_t number = slots_[sources_.checked(found[k], bad)] - base_;
        drawn[k] = {found[k], chosen_[number].correction};
      }
      batch_.add_column<Id>(frontier_[i], drawn);
    };
    each_list(frontier_.data(), static_cast<int64_t>(frontier_.size()), prefetch, write_list);
    batch_.note_bad_row(bad);
  }

  // LABOR-0: each destination draws among its own edges.
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

  // Stores in positions_ the stored positions of a node's drawn edges, ascending.
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
  Workspace& work_;
  const Sources<Id, kStride> sources_;
  const int hop_;
  uint32_t* slots_ = nullptr;
  uint32_t base_ = 0;
  Vector<int64_t> frontier_, positions_;
  Scored candidates_;
  Vector<Chosen> chosen_;
};

}  // namespace gnnscale
