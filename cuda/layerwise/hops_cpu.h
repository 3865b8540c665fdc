// One hop of LADIES or FastGCN on the CPU.
//
// A cell per node of the graph stores the number of a candidate, later of a drawn node, as the relabel map stores local
// ids (relabel.h). LADIES by squares sifts the frontier's edges (sieve_cpu.h), so that only candidates that can be
// drawn are numbered. Otherwise a pass over the edges numbers all candidates and sums their scores, and another one
// writes the edges from drawn nodes: it tests a bit per node, because the bits fit the cache, and reads only the cells
// of drawn nodes. All bits are 0 between hops.
#pragma once

#include <climits>

#include "../prefetch.h"
#include "batch_cpu.h"
#include "choosing_cpu.h"
#include "sieve_cpu.h"
#include "sources_cpu.h"

namespace gnnscale {

constexpr int64_t kBits = 64;           // in a word of bits
constexpr int64_t kCellsAhead = 32;     // how many edges ahead the cells of sources are prefetched
constexpr int64_t kListsAhead = 4;      // how many nodes ahead their lists of edges are prefetched
constexpr int64_t kPointersAhead = 16;  // how many nodes ahead the bounds of their lists are prefetched
constexpr int64_t kBytesAhead = 512;    // of a list; the processor prefetches the others
constexpr int64_t kEdgesToSift = 8;     // edges are sifted if they are at least so many times the nodes to draw

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
    if (request_.method == Method::kLadies) {
      find_frontier();
      if (!choose_sifted(count)) score_sources();
    } else {
      list_all();
    }
    if (!sifted_) choose(candidates_, count, request_.scheme, request_.key, hop_, chosen_);
    candidates_ = Scored();
    if (sifted_) {
      write_kept();
    } else {
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
      if (slots_[node] - base_ >= kept) slots_[node] = base_ + kept++;
      list_of_.push_back(slots_[node] - base_);
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

  // The edges into a node: the stored positions [first, last), how many edges are in lists before it, what an edge adds
  // to a score.
  struct List {
    int64_t first, last, begin;
    uint64_t term;
  };
  // An edge that was kept: its source, the number of that candidate, its stored position.
  struct Kept {
    uint32_t node, number;
    int64_t position;
  };

  // Numbers candidates and sums their scores.
  struct Tally {
    uint32_t* const slots;
    const uint32_t base;
    int64_t* const nodes;
    uint64_t* const scores;
    uint32_t found = 0;

    Tally(uint32_t* slots_of, uint32_t base_of, Scored& scored)
        : slots(slots_of), base(base_of), nodes(scored.nodes()), scores(scored.scores()) {}

    // Returns the candidate's number. Which source is new cannot be predicted, so there is no branch.
    GNNSCALE_INLINE uint32_t add(uint64_t id, uint64_t term) {
      const uint32_t number = slots[id] - base;
      const bool is_new = number >= found;
      const uint32_t slot = is_new ? found : number;
      slots[id] = base + slot;
      nodes[found] = static_cast<int64_t>(id);
      scores[slot] = (is_new ? 0 : scores[slot]) + term;
      found += is_new;
      return slot;
    }
  };

  // Adds the edges of lists_ to the sieve. The lists are prefetched before they are read.
  void add_edges(Sieve& sieve) {
    const Relation& graph = request_.graph;
    for (size_t l = 0; l < lists_.size(); ++l) {
      if (l + kListsAhead < lists_.size()) {
        const List& ahead = lists_[l + kListsAhead];
        prefetch_lines(graph.row + ahead.first * graph.row_stride,
                       std::min((ahead.last - ahead.first) * graph.row_stride, kBytesAhead));
      }
      sieve.add(sources_, lists_[l].first, lists_[l].last - lists_[l].first, lists_[l].term);
    }
  }

  // LADIES by squares, which computes no scores of candidates that the sieve rules out. Chooses nodes, and stores the
  // edges from the other candidates in kept_: those into frontier_[l] at [ends_[l], ends_[l + 1]). Returns false, and
  // chooses nothing, if there are few edges, or the sieve's guess was too low.
  bool choose_sifted(int64_t count) {
    const bool by_threshold = request_.scheme == Scheme::kPriority || request_.scheme == Scheme::kPoisson;
    if (count <= 0 || !by_threshold || request_.scores != Scores::kSquares) return false;
    const int bits = square_bits(request_.graph.num_src);
    int64_t edges = 0;
    uint64_t total = 0;
    const auto expanded = static_cast<int64_t>(frontier_.size());
    lists_.reserve(expanded);
    for (int64_t l = 0; l < expanded; ++l) {
      if (l + kPointersAhead < expanded) GNNSCALE_PREFETCH(request_.graph.pointer_of(frontier_[l + kPointersAhead]));
      const auto [first, last] = batch_.stored(frontier_[l]);
      lists_.push_back(
          {first, last, edges, last == first ? 1 : square_term(bits, static_cast<uint64_t>(last - first))});
      edges += last - first;
      total += static_cast<uint64_t>(last - first) * lists_.back().term;
    }
    if (edges < kEdgesToSift * count || edges >= Sieve::kMostEdges) return false;
    if (request_.graph.num_src > Sieve::kMostNodes) return false;
    const int64_t known = request_.keep_known ? batch_.end : 0;
    Sieve sieve(edges, count + known, total);
    add_edges(sieve);
    if (!sieve.all_below(request_.graph.num_src)) return false;  // score_sources() finds it
    const uint64_t limit = sieve.guess(enough(count), batch_.nodes.id.data(), known);
    if (limit == 0) return false;
    Vector<Sieve::Kept> kept;
    start_numbers();
    sieve.sift(request_.key, hop_, slots_, kept);
    const auto all = static_cast<int64_t>(kept.size());
    Scored scored(all);
    Tally tally(slots_, base_, scored);
    kept_.resize(all);
    int64_t k = 0;
    for (size_t l = 0; l < lists_.size(); ++l) {
      ends_.push_back(k);
      const int64_t end = l + 1 < lists_.size() ? lists_[l + 1].begin : edges;
      for (; k < all && kept[k].edge < end; ++k) {
        const uint32_t number = tally.add(kept[k].source, lists_[l].term);
        kept_[k] = {kept[k].source, number, lists_[l].first + kept[k].edge - lists_[l].begin};
      }
    }
    ends_.push_back(k);
    end_numbers(tally.found);
    scored.set_count(tally.found);
    if (request_.keep_known) total -= choose_known(scored);
    sifted_ = choose_below(scored, limit, count, request_.scheme, request_.key, hop_, total, chosen_);
    if (!sifted_) chosen_.clear();
    numbered_ = tally.found;
    return sifted_;
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
    Tally tally(slots_, base_, scored);
    const auto prefetch = [this](int64_t position) GNNSCALE_INLINE_LAMBDA { prefetch_cell(position); };
    const auto count_list = [&](int64_t, int64_t first, int64_t last) {
      const uint64_t term = counts || last == first ? 1 : square_term(bits, static_cast<uint64_t>(last - first));
      const auto touch = [&](int64_t position)
                             GNNSCALE_INLINE_LAMBDA { tally.add(sources_.checked(position, bad), term); };
      int64_t position = first;
      for (; position + kCellsAhead < last; ++position) {
        prefetch_cell(position + kCellsAhead);
        touch(position);
      }
      for (; position < last; ++position) touch(position);
    };
    each_list(frontier_.data(), static_cast<int64_t>(frontier_.size()), prefetch, count_list);
    batch_.note_bad_row(bad);
    end_numbers(tally.found);
    scored.set_count(tally.found);
    const int shift = count_shift(static_cast<uint64_t>(edges));
    for (uint32_t i = 0; counts && i < tally.found; ++i) tally.scores[i] = count_score(tally.scores[i], shift);
    if (request_.keep_known) choose_known(scored);
    candidates_ = std::move(scored);
  }

  // Moves the candidates that are in the batch to the chosen ones. Returns the sum of their scores.
  uint64_t choose_known(Scored& scored) {
    uint64_t sum = 0;
    Vector<uint32_t> known;
    for (int64_t i = 0; i < batch_.end; ++i) {
      const uint32_t number = slots_[batch_.nodes.id[i]] - base_;
      if (number < scored.count()) known.push_back(number);
    }
    std::sort(known.begin(), known.end(), std::greater<>());
    known.erase(std::unique(known.begin(), known.end()), known.end());
    for (const uint32_t number : known) {
      chosen_.push_back({scored.node(number), 1.0});
      sum += scored.score(number);
      scored.remove(number);
    }
    return sum;
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
    const auto write_list = [&](int64_t, int64_t first, int64_t last) {
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
        const auto id = static_cast<int64_t>(sources_.checked(found[k], bad));
        drawn[k] = {id, found[k], id, chosen_[slots_[id] - base_].correction};
      }
      batch_.add_column<Id>(batch_.cells(), first, last, drawn.data(), count);
    };
    each_list(frontier_.data(), static_cast<int64_t>(frontier_.size()), prefetch, write_list);
    batch_.note_bad_row(bad);
  }

  // As write(), but from the edges in kept_. Local ids are looked up by the numbers of candidates, which are few: their
  // cells stay in the caches.
  void write_kept() {
    Vector<double> corrections(numbered_);  // 0 if the candidate is not drawn
    Vector<uint32_t> locals(numbered_);
    for (const Chosen& entry : chosen_) {
      const uint32_t number = slots_[entry.node] - base_;
      corrections[number] = entry.correction;
      locals[number] = batch_.local_id_of(entry.node);
    }
    int64_t most = 0;
    for (size_t l = 0; l < lists_.size(); ++l) most = std::max(most, ends_[l + 1] - ends_[l]);
    Vector<DrawnEdge> drawn(most + 1);
    const int64_t first = batch_.begin, last = batch_.end, known = batch_.nodes.count;
    for (int64_t column = first; column < last; ++column) {
      const int64_t l = list_of_.empty() ? column - first : list_of_[column - first];
      int64_t count = 0;
      for (int64_t k = ends_[l]; k < ends_[l + 1]; ++k) {
        const auto [node, number, position] = kept_[k];
        drawn[count] = {node, position, number, corrections[number]};  // overwritten or not read if it is not drawn
        count += corrections[number] > 0;
      }
      batch_.add_column<Id>({locals.data(), 0}, lists_[l].first, lists_[l].last, drawn.data(), count);
    }
    batch_.enter_since(known);
  }

  LayerBatch& batch_;
  const LayerRequest& request_;
  Workspace& work_;
  const Sources<Id, kStride> sources_;
  const int hop_;
  uint32_t* slots_ = nullptr;
  uint32_t base_ = 0;
  Vector<int64_t> frontier_;
  Vector<uint32_t> list_of_;  // of each node to expand: its position in frontier_; empty: they have the same order
  Vector<List> lists_;
  Vector<Kept> kept_;
  Vector<int64_t> ends_;
  uint32_t numbered_ = 0;  // candidates that choose_sifted() numbered
  bool sifted_ = false;
  Scored candidates_;
  Vector<Chosen> chosen_;
};

}  // namespace gnnscale
