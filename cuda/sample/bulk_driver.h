// A bulk from its request to its batches, over an executor (../executor.h): how much room its hops get, and what is
// done where that was too little.
#pragma once

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

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
    const bool told = first_guess(likely);
    for (int64_t slots_a_node = 2;;) {
      const BulkRooms rooms(kind, batches, num_seeds, least, told ? &likely : nullptr);
      attempt(rooms, slots_a_node);
      if (host.word[BulkState::kStopped] == 0) break;
      for (int64_t h = 0; h < hops; ++h) {
        least.edges[h] = std::max({least.edges[h], rooms.edges[h], with_margin(*host.needed_edges(h))});
        least.nodes[h] = std::max({least.nodes[h], rooms.nodes[h], with_margin(*host.needed_nodes(h + 1))});
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
  using Base::batches, Base::bulk, Base::every, Base::hops, Base::host, Base::memory, Base::num_seeds, Base::on,
      Base::parts;

  template <typename T>
  T* make(int64_t count) {
    return Base::template make<T>(count);
  }

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
    memory.clear();
    parts.clear();
    int64_t all_nodes = num_seeds, most_columns = 0, most_edges = 0, most_draws = 0;
    for (int64_t h = 0; h < hops; ++h) {
      STD_TORCH_CHECK(rooms.columns[h] <= kMostInHop && rooms.edges[h] <= kMostInHop, "sample_bulk: hop ", h,
                      " may draw more than 2^31 edges; sample fewer batches at a time");
      all_nodes += rooms.nodes[h];
      most_columns = std::max(most_columns, rooms.columns[h]);
      most_edges = std::max(most_edges, rooms.edges[h]);
      if (has_table(h)) most_draws = std::max(most_draws, rooms.edges[h]);
    }
    bulk.graph = request.graph;
    bulk.replace = request.replace;
    bulk.layers = request.layers;
    this->start_state(rooms.nodes);
    bulk.table = this->free_table(all_nodes, slots_a_node, memory);
    bulk.node = make<int64_t>(all_nodes);
    const int64_t* const seeds = static_cast<const int64_t*>(request.seeds.const_data_ptr());
    start_hops(on, bulk, seeds, num_seeds);

    int64_t* const count = make<int64_t>(most_columns + 1);
    int64_t *const first = make<int64_t>(most_columns), *const degree = make<int64_t>(most_columns);
    int64_t *const draw = make<int64_t>(most_edges), *const source = make<int64_t>(most_edges);
    int32_t *const fresh = make<int32_t>(most_edges + 1), *const rank = make<int32_t>(most_edges + 1);
    Tensor earliest = on.room(std::max<int64_t>(2 * most_draws, 1), ScalarType::Int);
    memory.push_back(earliest);
    for (int64_t h = 0; h < hops; ++h) {
      const int64_t columns = rooms.columns[h], edges = rooms.edges[h];
      parts.push_back(
          {h, request.fanouts[h], edges, rooms.nodes[h], make<int64_t>(columns + 1), make<int32_t>(edges),
           make<uint32_t>(edges), request.with_edge_id ? make<int64_t>(edges) : nullptr, nullptr, count, first, degree,
           draw, has_table(h) ? static_cast<uint32_t*>(earliest.mutable_data_ptr()) : nullptr, source, fresh, rank});
      run_hop(on, bulk, parts.back(), request.stored, columns, earliest, every);
    }
    this->download_state();
  }

  bool has_table(int64_t hop) const { return !request.replace && request.fanouts[hop] > kScannedFanout; }

  const BulkRequest& request;
  const BulkKind kind;
};

}  // namespace gnnscale
