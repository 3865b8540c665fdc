// A bulk from its request to its batches, over an executor (../executor.h): how much room its hops get, and what is
// done where that was too little.
#pragma once

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "../arena.h"
#include "bulk_batches.h"
#include "bulk_schedule.h"
#include "options.h"

namespace gnnscale {

struct BulkRequest : BulkInput {
  std::vector<int64_t> fanouts;
  bool replace, layers, with_edge_id, with_col;
  std::vector<int64_t> rooms;  // edges and nodes that each hop has room for at first; empty: BulkRooms decides
};

// node, colptr, edge_index, edge_id and counts: see BulkOutput.
using BulkResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// The arguments of the operator; see torch_gnnscale.ops.sample_bulk, which checks them. `address`: see tier_table.
template <typename Address>
BulkRequest bulk_request(const Tensor& colptr, const std::vector<Tensor>& row, const std::vector<Tensor>& edge_id,
                         const std::vector<int64_t>& spread, const Tensor& seeds, std::vector<int64_t> seed_ptr,
                         std::vector<int64_t> fanouts, std::vector<int64_t> keys, int64_t options,
                         std::vector<int64_t> rooms, Address&& address) {
  STD_TORCH_CHECK(rooms.empty() || rooms.size() == 2, "expected fewer rooms");
  using Options = SampleOptions;
  const Options asked("sample_bulk", options,
                      Options::kReplace | Options::kLayers | Options::kWithEdgeId | Options::kWithCol);
  return {
      bulk_input(colptr, row, edge_id, spread, seeds, std::move(seed_ptr), std::move(keys), fanouts.size(), address),
      std::move(fanouts),
      asked.has(Options::kReplace),
      asked.has(Options::kLayers),
      asked.has(Options::kWithEdgeId),
      asked.has(Options::kWithCol),
      std::move(rooms)};
}

template <typename Executor>
class BulkDriver : BulkBatches<Executor> {
 public:
  BulkDriver(Executor& executor, const BulkRequest& asked)
      : Base(executor, asked, asked.fanouts.size()),
        request(asked),
        kind{asked.graph.num_nodes, asked.graph.num_edges, asked.fanouts, asked.replace, asked.layers} {}

  BulkResult run() {
    BulkNeed least{std::vector<int64_t>(hops), std::vector<int64_t>(hops)}, likely;
    bool told = first_guess(likely);
    for (int64_t slots_a_node = 2;;) {
      const BulkRooms rooms(kind, batches, num_seeds, least, told ? &likely : nullptr);
      try {
        attempt(rooms, slots_a_node);
      } catch (const NoRoom&) {
        if (!rooms.halve(least, likely)) throw;
        told = true;
        continue;
      }
      if (host.word[BulkState::kStopped] == 0) break;
      for (int64_t h = 0; h < hops; ++h) {
        least.edges[h] = std::max(least.edges[h], with_margin(*host.needed_edges(h)));
        least.nodes[h] = std::max(least.nodes[h], with_margin(*host.needed_nodes(h + 1)));
      }
      if (host.lowest(BulkState::kTableFull) == 0) slots_a_node *= 2;
    }
    this->check_graph();
    if (request.rooms.empty()) bulk_memory().remember(kind, num_seeds, needed());
    const BulkOutput out = this->write(request.with_edge_id, request.with_col, false);
    return {out.node, out.colptr, out.edge_index, out.edge_id, out.counts};
  }

 private:
  using Base = BulkBatches<Executor>;
  using Base::batches, Base::bulk, Base::hops, Base::host, Base::memory, Base::num_seeds, Base::executor, Base::parts;

  static int64_t with_margin(int64_t count) { return std::max(count, std::min(count + count / 16, kMostInHop)); }

  bool first_guess(BulkNeed& likely) {
    if (request.rooms.empty()) return bulk_memory().recall(kind, num_seeds, likely);
    likely = {std::vector<int64_t>(hops, request.rooms[0]), std::vector<int64_t>(hops, request.rooms[1])};
    return true;
  }

  BulkNeed needed() const {
    BulkNeed need;
    for (int64_t h = 0; h < hops; ++h) {
      need.edges.push_back(*host.needed_edges(h));
      need.nodes.push_back(*host.needed_nodes(h + 1));
    }
    return need;
  }

  // Runs all hops that have room; what came out is in `host`.
  void attempt(const BulkRooms& rooms, int64_t slots_a_node) {
    int64_t all_nodes = num_seeds, most_columns = 0, most_edges = 0, most_draws = 0;
    for (int64_t h = 0; h < hops; ++h) {
      STD_TORCH_CHECK(rooms.columns[h] <= kMostInHop && rooms.edges[h] <= kMostInHop, "sample_bulk: hop ", h,
                      " may draw more than 2^31 edges; sample fewer batches at a time");
      all_nodes += rooms.nodes[h];
      most_columns = std::max(most_columns, rooms.columns[h]);
      most_edges = std::max(most_edges, rooms.edges[h]);
      if (has_table(h)) most_draws = std::max(most_draws, rooms.edges[h]);
    }
    const int64_t slots = this->num_slots(all_nodes, slots_a_node);
    int64_t* word = nullptr;
    BulkTable::Slot* free_slots = nullptr;
    parts.resize(static_cast<size_t>(hops));
    memory.clear();
    memory.push_back(one_piece(executor, [&](Arena& arena) {
      word = arena.take<int64_t>(BulkState::size(batches, hops));
      free_slots = arena.take<BulkTable::Slot>(slots);
      bulk.node = arena.take<int64_t>(all_nodes);
      BulkHop shared{};
      shared.count = arena.take<int64_t>(most_columns);
      shared.first = arena.take<int64_t>(most_columns);
      shared.degree = arena.take<int64_t>(most_columns);
      shared.draw = arena.take<int64_t>(most_edges);
      shared.source = arena.take<int64_t>(most_edges);
      shared.rank = arena.take<int32_t>(most_edges + 1);
      uint32_t* const earliest = arena.take<uint32_t>(2 * most_draws);
      for (int64_t h = 0; h < hops; ++h) {
        BulkHop& part = parts[h] = shared;
        part.hop = h;
        part.fanout = request.fanouts[h];
        part.edge_room = rooms.edges[h];
        part.node_room = rooms.nodes[h];
        part.offset = arena.take<int64_t>(rooms.columns[h] + 1);
        part.column = arena.take<int32_t>(part.edge_room);
        part.slot = arena.take<uint32_t>(part.edge_room);
        part.edge_id = request.with_edge_id ? arena.take<int64_t>(part.edge_room) : nullptr;
        part.earliest = has_table(h) ? earliest : nullptr;
      }
    }));
    bulk.graph = request.graph;
    bulk.replace = request.replace;
    bulk.layers = request.layers;
    this->start_state(rooms.nodes, word);
    bulk.table = this->free_table(free_slots, slots);
    executor.each(num_seeds, NumberSeeds{bulk, static_cast<const int64_t*>(request.seeds.const_data_ptr())});
    if (hops > 0) {
      // The larger one first, unless hops draw few edges.
      executor.reserve_sum(IsFresh{}, parts[0].rank, most_edges);
      executor.reserve_sum(parts[0].count, parts[0].offset, most_columns);
    }
    for (int64_t h = 0; h < hops; ++h) run_hop(executor, bulk, parts[h], request.stored, rooms.columns[h]);
    this->download_state();
  }

  bool has_table(int64_t hop) const { return !request.replace && request.fanouts[hop] > kScannedFanout; }

  const BulkRequest& request;
  const BulkKind kind;
};

}  // namespace gnnscale
