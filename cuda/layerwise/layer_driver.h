// Layer-wise batches, several at once, from their request to their buffers, over an executor (../executor.h): the order
// of the phases of a hop, and what memory they get. The host waits twice per hop, for the number of scanned edges and
// for that of drawn edges (with the scheme `poisson` also for whether more nodes became certain, with `replace` and
// `successive` for that of candidates), and once at the end.
//
// Memory of a hop besides what it returns, in bytes. LADIES, per scanned edge: 32 for the table of scores, 12 for
// columns and slots, 24 for candidates, and 4 (poisson: 8; replace and successive: 24 per candidate) to draw them.
// FastGCN, per node and batch: 32, and the same to draw them. LABOR, per scanned edge: 20. When these are freed, per
// drawn edge: 32 to 64 for the table of nodes, and 28 more; with aggregation `gcn`, per scanned edge 8.
#pragma once

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "../sample/bulk_batches.h"
#include "../sample/bulk_schedule.h"
#include "choosing_driver.h"
#include "labor_phases.h"
#include "options.h"
#include "weighing_phases.h"

namespace gnnscale {

struct LayersRequest : BulkInput {
  LayerOptions options;
  std::vector<int64_t> num_nodes;  // of each hop
  const int64_t* score;            // [nodes], for FastGCN, where the executor works; else null
};

// node, colptr, edge_index, edge_id, weight, counts: see BulkOutput.
using LayersResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// The arguments of the operator; see torch_gnnscale.ops.sample_layers_bulk, which checks them. `address`: see
// tier_table.
template <typename Address>
LayersRequest layers_request(const Tensor& colptr, const std::vector<Tensor>& row, const std::vector<Tensor>& edge_id,
                             const std::vector<int64_t>& spread, const Tensor& seeds,
                             const std::optional<Tensor>& score, std::vector<int64_t> seed_ptr,
                             std::vector<int64_t> num_nodes, std::vector<int64_t> keys,
                             const std::vector<int64_t>& choices, int64_t options, Address&& address) {
  const LayerOptions asked = layer_options("sample_layers_bulk", choices, options);
  STD_TORCH_CHECK((asked.method == Method::kFastGcn) == score.has_value() &&
                      (!score.has_value() || score->numel() == colptr.numel() - 1),
                  "score: expected one for each node with fastgcn, else none");
  const size_t hops = num_nodes.size();
  check_bulk_seeds(seeds, seed_ptr, keys.size(), 1, hops);
  return {{{bulk_relation(colptr, row, edge_id, spread, address)},
           {colptr.numel() - 1},
           seeds,
           std::move(seed_ptr),
           std::move(keys),
           {},
           {}},
          asked,
          std::move(num_nodes),
          score.has_value() ? reinterpret_cast<const int64_t*>(address(*score)) : nullptr};
}

// For every node that moves to a larger array.
struct CopyNodes {
  const int64_t* from;
  int64_t* to;

  GNNSCALE_HD void operator()(int64_t i) const { to[i] = from[i]; }
};

// A phase with a single item.
struct SetWord {
  int64_t* word;
  int64_t value;

  GNNSCALE_HD void operator()(int64_t) const { *word = value; }
};

template <typename Executor>
class LayerDriver : BulkBatches<Executor> {
 public:
  LayerDriver(Executor& executor, const LayersRequest& asked)
      : Base(executor, asked, asked.num_nodes.size()), request_(asked), asked_(asked.options) {}

  LayersResult run() {
    start();
    for (int64_t hop = 0; hop < hops; ++hop) run_hop(hop);
    this->download_state();
    check();
    bulk.table.slots = nullptr;  // sources have local ids in place of slots
    const BulkOutput out = this->write(true, true, true);
    return {out.node, out.colptr, out.edge_index, out.edge_id, *out.weight, out.counts};
  }

 private:
  using Base = BulkBatches<Executor>;
  using Base::batches, Base::bulk, Base::hops, Base::host, Base::memory, Base::num_seeds, Base::executor, Base::parts;
  using Memory = std::vector<Tensor>;

  template <typename T>
  T* make(int64_t count, Memory& owner) {
    return Base::template make<T>(count, owner);
  }

  int64_t num_nodes() const { return request_.sizes[0]; }

  // An empty table for so many nodes.
  BulkTable make_table(int64_t nodes, Memory& owner) {
    const int64_t slots = this->num_slots(nodes, 2);
    return this->free_table(reinterpret_cast<BulkTable::Slot*>(make<int64_t>(2 * slots, owner)), slots);
  }

  void check() const {
    STD_TORCH_CHECK(host.lowest(BulkState::kBadSeed) == ~uint64_t{0}, "seeds are out of range");
    this->check_graph();
    STD_TORCH_CHECK(host.lowest(BulkState::kTableFull) != 0, "a table of nodes had no room for one of them");
  }

  // Hop 0 finds the seeds.
  void start() {
    bulk.separate = !asked_.include_dst;
    bulk.layers = asked_.layers && asked_.include_dst;
    this->start_state(std::vector<int64_t>(static_cast<size_t>(hops), 0), make<int64_t>(this->state_words(), memory));
    node_room_ = num_seeds;
    bulk.node = make<int64_t>(num_seeds, memory);
    repeated_ = make<int32_t>(num_seeds, memory);
    Memory scratch;
    bulk.table = make_table(num_seeds, scratch);
    executor.each(num_seeds, NumberSeeds{bulk, static_cast<const int64_t*>(request_.seeds.const_data_ptr())});
    executor.each(num_seeds, FindRepeats{bulk, repeated_});
    most_columns_ = num_seeds;
  }

  void run_hop(int64_t hop) {
    Memory of_columns;
    LayerScan scan{};
    BulkHop drawn{};
    drawn.whole = true;
    drawn.hop = hop;
    drawn.column_room = INT64_MAX;
    const int64_t columns = most_columns_;
    drawn.offset = make<int64_t>(columns + 1, memory);
    drawn.count = make<int64_t>(columns, of_columns);
    drawn.first = make<int64_t>(columns, of_columns);
    drawn.degree = make<int64_t>(columns, of_columns);
    scan.bulk = bulk;
    scan.hop = drawn;
    scan.repeated = repeated_;
    scan.offset = make<int64_t>(columns + 1, of_columns);
    scan.begin = make<int64_t>(batches + 1, of_columns);
    scan.batch = make<int32_t>(columns, of_columns);
    scan.term = make<uint64_t>(columns, of_columns);
    of_columns.push_back(executor.upload(std::vector<int64_t>(static_cast<size_t>(batches), 0)));
    scan.left_out = static_cast<uint64_t*>(of_columns.back().mutable_data_ptr());
    scan.shift = make<int32_t>(batches, of_columns);

    const int64_t* const all_columns = bulk.state.columns(hop);
    executor.each(all_columns, columns, CountEdges{bulk, drawn});
    const bool squares = asked_.scores == Scores::kSquares;
    executor.each(all_columns, columns, PrepareColumn{scan, squares ? square_bits(num_nodes()) : -1});
    executor.sum_before(drawn.count, scan.offset, all_columns, columns);
    executor.each(batches + 1, FindScannedBegins{scan});
    this->download_state();
    check();
    const int64_t scanned = *host.needed_edges(hop);
    check_at_once(scanned <= kMostInHop, "hop ", hop, " reads ", scanned, " edges, more than 2^31");

    int64_t edges = 0;
    {
      Memory scratch;
      take_edges(scan, scanned, scratch);
      edges = write_drawn(scan, scanned, columns, scratch, of_columns);
    }
    enter_drawn(scan, edges);
    weigh(scan, scanned, edges, columns, of_columns);
    parts.push_back(scan.hop);
  }

  // Decides which scanned edges are drawn: scan.taken, and in scan.rank their sums.
  void take_edges(LayerScan& scan, int64_t scanned, Memory& scratch) {
    scan.column = make<int32_t>(scanned, scratch);
    scan.taken = make<int32_t>(scanned, scratch);
    executor.each(scanned, FindColumn{scan});
    if (asked_.method == Method::kLabor) {
      take_neighbors(scan, scanned);
    } else {
      if (asked_.method == Method::kLadies) {
        choose_sources(scan, scanned, scratch);
      } else {
        choose_scored(scan, scratch);
      }
      executor.each(scanned, TakeEdge{scan});
    }
    scan.rank = make<int32_t>(scanned + 1, scratch);
    executor.sum_before(scan.taken, scan.rank, scanned);
  }

  // Calls phase(hop) for the nodes of each hop up to `last`.
  template <typename Phase>
  void each_found(int64_t last, Phase&& phase) {
    for (int64_t found = 0; found <= last; ++found) {
      executor.each(bulk.state.node_ptr(found) + batches, host.node_ptr(found)[batches], phase(found));
    }
  }

  void choose_sources(LayerScan& scan, int64_t scanned, Memory& scratch) {
    int64_t known = 0;
    for (int64_t found = 0; found <= scan.hop.hop && asked_.keep_known; ++found) {
      known += host.node_ptr(found)[batches];
    }
    check_at_once(scanned + known <= kMostInHop, "a hop of more than 2^31 edges");
    const int64_t slots = 2 * (scanned + known) + 1;
    int64_t* const free_slots = make<int64_t>(2 * slots, scratch);
    executor.fill(free_slots, 2 * slots);
    scan.table = {reinterpret_cast<ScoreTable::Slot*>(free_slots), static_cast<uint64_t>(slots)};
    scan.slot = make<uint32_t>(scanned, scratch);
    if (asked_.keep_known) each_found(scan.hop.hop, [&](int64_t found) { return KeepKnown{scan, found}; });
    executor.each(scanned, ScoreSource{scan});

    Memory of_candidates;
    CandidateLists lists = make_lists(scanned, of_candidates);
    {
      Memory of_ranks;
      scan.rank = make<int32_t>(scanned + 1, of_ranks);
      executor.sum_before(scan.taken, scan.rank, scanned);
      executor.each(batches + 1, FindCandidateBegins{lists, scan.rank, scan.begin});
      executor.each(batches, FindShift{scan});
      executor.each(scanned, ListSource{scan, lists, asked_.scores == Scores::kCounts});
    }
    choose(scan, lists, scanned, of_candidates);
  }

  void choose_scored(LayerScan& scan, Memory& scratch) {
    const int64_t nodes = num_nodes(), items = bounded_product(batches, nodes);
    check_at_once(items <= kMostInHop, batches, " batches of ", nodes, " nodes that may all be drawn, more than 2^31");
    scan.dense = make<double>(items, scratch);
    executor.each(items, Clear<double>{scan.dense});
    if (asked_.keep_known) {
      each_found(scan.hop.hop, [&](int64_t found) { return KeepScored{scan, request_.score, found}; });
    }
    Memory of_candidates;
    CandidateLists lists = make_lists(items, of_candidates);
    {
      Memory of_ranks;
      int32_t *const taken = make<int32_t>(items, of_ranks), *const rank = make<int32_t>(items + 1, of_ranks);
      std::vector<int64_t> begins(static_cast<size_t>(batches + 1));
      for (int64_t b = 0; b <= batches; ++b) begins[b] = b * nodes;
      of_ranks.push_back(executor.upload(begins));
      const auto* const begin = static_cast<const int64_t*>(of_ranks.back().const_data_ptr());
      executor.each(items, TakeScored{scan, request_.score, taken});
      executor.sum_before(taken, rank, items);
      executor.each(batches + 1, FindCandidateBegins{lists, rank, begin});
      executor.each(items, ListNode{scan, lists, request_.score, taken, rank});
    }
    choose(scan, lists, items, of_candidates);
  }

  CandidateLists make_lists(int64_t most, Memory& owner) {
    return {make<int64_t>(batches + 1, owner), make<int64_t>(most, owner), make<uint64_t>(most, owner)};
  }

  void choose(const LayerScan& scan, const CandidateLists& lists, int64_t most, Memory& owner) {
    const int64_t hop = scan.hop.hop;
    const Candidates candidates{batches,
                                lists.begin,
                                bulk.state.key(),
                                lists.node,
                                lists.score,
                                make<double>(most, owner),
                                request_.num_nodes[hop],
                                static_cast<int>(hop),
                                bit_length(static_cast<uint64_t>(num_nodes()))};
    ChoosingDriver<Executor>(executor, candidates, most).run(asked_.scheme);
    executor.each(lists.begin + batches, most, ReturnCorrection{scan, lists, candidates.correction});
  }

  void take_neighbors(LayerScan& scan, int64_t scanned) {
    const int64_t hop = scan.hop.hop, fanout = request_.num_nodes[hop];
    Memory scratch;
    LaborScan labor{scan,
                    fanout,
                    static_cast<int>(asked_.layer_dependency ? 0 : hop),
                    asked_.scheme == Scheme::kPoisson,
                    make<uint32_t>(most_columns_, scratch),
                    nullptr,
                    nullptr};
    executor.each(bulk.state.columns(hop), most_columns_, Clear<uint32_t>{labor.few});
    executor.each(scanned, TakeNeighbor{labor});
    if (labor.is_poisson || fanout <= 0) return;
    executor.each(scanned, TakeMore{labor});
    int32_t* const rank = make<int32_t>(scanned + 1, scratch);
    executor.sum_before(scan.taken, rank, scanned);
    labor.rank = rank;
    labor.few_draw = make<uint64_t>(scanned, scratch);
    executor.each(scanned, ListDraw{labor});
    executor.each(scanned, KeepLeast{labor});
  }

  // From taken edges to drawn ones; returns their number.
  int64_t write_drawn(LayerScan& scan, int64_t scanned, int64_t columns, Memory& scratch, Memory& of_hop) {
    const int64_t hop = scan.hop.hop;
    scan.hop.edge_room = kMostInHop;
    executor.each(*host.columns(hop) + 1, FindDrawnBegins{scan});
    executor.each(batches + 1, FindEdgeBegins{bulk, scan.hop});
    this->download_state();
    check();
    const int64_t edges = *host.edges(hop);
    scan.hop.column = make<int32_t>(edges, memory);
    scan.hop.draw = make<int64_t>(edges, of_hop);
    scan.correction = make<double>(edges, of_hop);
    executor.each(scanned, WriteDrawn{scan, asked_.method == Method::kLabor, request_.num_nodes[hop]});
    return edges;
  }

  // Numbers the sources of drawn edges: the nodes that the hop finds.
  void enter_drawn(LayerScan& scan, int64_t edges) {
    const int64_t hop = scan.hop.hop;
    Memory scratch;
    int64_t known = 0;
    for (int64_t found = 0; found <= hop && !bulk.separate; ++found) known += host.node_ptr(found)[batches];
    bulk.table = make_table(known + edges, scratch);
    make_room_for_nodes(hop, edges);
    scan.bulk = bulk;
    scan.hop.edge_room = edges;
    scan.hop.node_room = edges;
    scan.hop.slot = make<uint32_t>(edges, memory);
    scan.hop.edge_id = make<int64_t>(edges, memory);
    scan.hop.source = make<int64_t>(edges, scratch);
    scan.hop.rank = make<int32_t>(edges + 1, scratch);
    if (!bulk.separate) each_found(hop, [&](int64_t found) { return EnterNode{bulk, found}; });
    executor.each(edges, EnterDrawn{scan});
    executor.sum_before(IsFresh{scan.hop.slot, bulk.table.slots}, scan.hop.rank, edges);
    executor.each(num_begins(bulk.state), FindHopBegins{bulk, scan.hop});
    executor.each(bulk.state.numbered(hop), edges, NumberNodes{bulk, scan.hop});
    executor.each(edges, SettleSource{bulk, scan.hop});
    most_columns_ = edges + (bulk.layers ? known : 0);
  }

  // Makes room for `more` nodes that the hop finds, after those of earlier hops.
  void make_room_for_nodes(int64_t hop, int64_t more) {
    int64_t* const node = make<int64_t>(node_room_ + more, memory);
    executor.each(node_room_, CopyNodes{bulk.node, node});
    executor.each(1, SetWord{bulk.state.node_base(hop + 1), node_room_});
    bulk.node = node;
    node_room_ += more;
  }

  void weigh(LayerScan& scan, int64_t scanned, int64_t edges, int64_t columns, Memory& of_hop) {
    const int64_t hop = scan.hop.hop;
    scan.hop.weight = make<float>(edges, memory);
    const bool unbiased = asked_.weights == Weights::kUnbiased;
    const bool by_source = !unbiased && asked_.aggregation == Aggregation::kGcn;
    const Weighing weighing{scan,
                            asked_.aggregation,
                            unbiased ? nullptr : make<double>(columns, of_hop),
                            unbiased ? nullptr : make<double>(columns, of_hop),
                            by_source ? make<double>(scanned, of_hop) : nullptr,
                            unbiased ? nullptr : make<double>(num_windows(edges), of_hop),
                            by_source ? make<double>(num_windows(scanned), of_hop) : nullptr,
                            edges,
                            by_source ? scanned : 0};
    executor.each(edges, WeighEdge{weighing});
    if (by_source) executor.each(scanned, FindFactor{weighing});
    if (!unbiased) {
      const SumLaterPieces pieces{weighing};
      executor.each(pieces.count(), pieces);
      executor.each(bulk.state.columns(hop), columns, SumWeights{weighing});
    }
    executor.each(edges, RoundWeight{weighing});
  }

  const LayersRequest& request_;
  const LayerOptions asked_;
  int32_t* repeated_ = nullptr;  // [seeds]: see LayerScan
  int64_t most_columns_ = 0;     // the most columns that the next hop may have
  int64_t node_room_ = 0;        // room for nodes, in all hops so far
};

}  // namespace gnnscale
