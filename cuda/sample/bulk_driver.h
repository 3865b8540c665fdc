// A bulk from its request to its batches, over an executor (../executor.h): how much room its hops get, and what is
// done where that was too little.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "../executor.h"
#include "../gather/tier_arguments.h"
#include "bulk_output.h"
#include "bulk_rooms.h"
#include "bulk_schedule.h"
#include "options.h"

namespace gnnscale {

struct BulkRequest {
  BulkGraph graph;
  BulkEdges stored;
  const Tensor& seeds;  // int64, contiguous
  std::vector<int64_t> seed_ptr, keys;
  std::vector<int64_t> fanouts;
  bool replace, layers, with_edge_id, with_col;
  std::vector<int64_t> rooms;  // edges and nodes that each hop has room for at first; empty: BulkRooms decides
};

// node, colptr, edge_index, edge_id, and counts: num_nodes, num_edges and the first wrong seed or -1, in host memory.
using BulkResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// The arguments of the operator; see torch_gnnscale.ops.sample_bulk, which checks them. `address`: see tier_table.
template <typename Address>
BulkRequest bulk_request(const Tensor& colptr, const std::vector<Tensor>& row, const std::vector<Tensor>& edge_id,
                         const Tensor& seeds, std::vector<int64_t> seed_ptr, std::vector<int64_t> fanouts,
                         std::vector<int64_t> keys, int64_t options, std::vector<int64_t> rooms, Address&& address) {
  STD_TORCH_CHECK(seed_ptr.size() == keys.size() + 1 && seed_ptr.front() == 0 && seed_ptr.back() == seeds.numel(),
                  "expected seed_ptr to lead from 0 to the number of seeds in ", keys.size(), " steps");
  STD_TORCH_CHECK(static_cast<int64_t>(keys.size()) <= kMaxBatches && fanouts.size() <= kMaxHops &&
                      (rooms.empty() || rooms.size() == 2) && seeds.numel() <= kMostInHop,
                  "expected fewer batches, hops, rooms or seeds");
  using Options = SampleOptions;
  const Options asked("sample_bulk", options,
                      Options::kReplace | Options::kLayers | Options::kWithEdgeId | Options::kWithCol);
  const BulkEdges stored{tiered_ids(row, address), tiered_ids(edge_id, address)};
  const auto ends = [](const TieredIds& ids) { return ids.table.first[ids.table.num_tiers]; };
  STD_TORCH_CHECK(edge_id.empty() || ends(stored.edge_id) == ends(stored.row), "expected an id for each edge");
  const BulkGraph graph{reinterpret_cast<const int64_t*>(address(colptr)), colptr.numel() - 1, ends(stored.row)};
  return {graph,
          stored,
          seeds,
          std::move(seed_ptr),
          std::move(keys),
          std::move(fanouts),
          asked.has(Options::kReplace),
          asked.has(Options::kLayers),
          asked.has(Options::kWithEdgeId),
          asked.has(Options::kWithCol),
          std::move(rooms)};
}

template <typename Executor>
class BulkDriver {
 public:
  BulkDriver(Executor& executor, const BulkRequest& asked)
      : on(executor),
        request(asked),
        kind{asked.graph.num_nodes, asked.graph.num_edges, asked.fanouts, asked.replace, asked.layers},
        batches(static_cast<int64_t>(asked.keys.size())),
        hops(static_cast<int64_t>(asked.fanouts.size())),
        num_seeds(asked.seeds.numel()) {}

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
    check_graph();
    if (request.rooms.empty()) bulk_memory().remember(kind, num_seeds, needed());
    return write();
  }

 private:
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

  template <typename T>
  T* make(int64_t count) {
    constexpr ScalarType dtype = sizeof(T) == 8 ? ScalarType::Long : ScalarType::Int;
    memory.push_back(on.room(std::max<int64_t>(count, 1), dtype));
    return static_cast<T*>(memory.back().mutable_data_ptr());
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
    int64_t slots = 16;
    while (slots < slots_a_node * all_nodes) slots *= 2;
    STD_TORCH_CHECK(slots <= int64_t{1} << 31, "sample_bulk: more than 2^30 nodes; sample fewer batches at a time");

    bulk.graph = request.graph;
    bulk.replace = request.replace;
    bulk.layers = request.layers;
    start_state(rooms);
    memory.push_back(on.room(2 * slots, ScalarType::Long));
    on.fill(memory.back());
    bulk.table = {static_cast<BulkTable::Slot*>(memory.back().mutable_data_ptr()), static_cast<uint64_t>(slots - 1)};
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
      parts.push_back({h, request.fanouts[h], edges, rooms.nodes[h], make<int64_t>(columns + 1), make<int32_t>(edges),
                       make<uint32_t>(edges), request.with_edge_id ? make<int64_t>(edges) : nullptr, count, first,
                       degree, draw, has_table(h) ? static_cast<uint32_t*>(earliest.mutable_data_ptr()) : nullptr,
                       source, fresh, rank});
      run_hop(on, bulk, parts.back(), request.stored, columns, earliest, every);
    }
    host_words = on.download(bulk.state.word, BulkState::size(batches, hops));
    host.word = host_words.data();
  }

  bool has_table(int64_t hop) const { return !request.replace && request.fanouts[hop] > kScannedFanout; }

  // The state before the first hop, on both sides.
  void start_state(const BulkRooms& rooms) {
    host = {nullptr, batches, hops};
    const int64_t words = BulkState::size(batches, hops);
    host_words.assign(static_cast<size_t>(words) + 1, 0);
    host.word = host_words.data();
    std::fill_n(host.word, BulkState::kStopped, -1);
    *host.columns(0) = num_seeds;
    int64_t base = num_seeds;
    for (int64_t h = 0; h < hops; ++h) {
      *host.node_base(h + 1) = base;
      base += rooms.nodes[h];
    }
    std::copy_n(request.keys.data(), batches, host.key());
    std::copy_n(request.seed_ptr.data(), batches + 1, host.node_ptr(0));
    std::copy_n(request.seed_ptr.data(), batches + 1, host.column_ptr(0));
    host_words.back() = batches + 1;
    memory.push_back(on.upload(host_words));
    bulk.state = {static_cast<int64_t*>(memory.back().mutable_data_ptr()), batches, hops};
    every = bulk.state.word + words;
  }

  void check_graph() const {
    for (const auto& [word, what] : {std::pair{BulkState::kBadNode, "colptr"}, std::pair{BulkState::kBadEdge, "row"}}) {
      const uint64_t at = host.lowest(word);
      STD_TORCH_CHECK(at == ~uint64_t{0}, "the graph is malformed: ", what, "[", static_cast<int64_t>(at),
                      "] in a graph of ", request.graph.num_nodes, " nodes and ", request.graph.num_edges, " edges");
    }
  }

  // From hops to batches: the common buffers.
  BulkResult write() {
    std::vector<int64_t> num_nodes, num_edges, place_node, place_column, place_edge, first_edge{0}, first_column{0};
    const auto place = [&](int64_t hop) { return static_cast<size_t>(hop * batches); };
    for (std::vector<int64_t>* places : {&place_node, &place_column, &place_edge}) places->resize(place(hops + 1));
    int64_t nodes = 0;
    for (int64_t b = 0; b < batches; ++b) {
      int64_t edges = first_edge.back(), columns = first_column.back();
      for (int64_t h = 0; h <= hops; ++h) {
        place_node[place(h) + b] = nodes;
        num_nodes.push_back(host.node_ptr(h)[b + 1] - host.node_ptr(h)[b]);
        nodes += num_nodes.back();
        if (h == hops) break;
        place_column[place(h) + b] = columns;
        place_edge[place(h) + b] = edges;
        num_edges.push_back(host.edge_ptr(h)[b + 1] - host.edge_ptr(h)[b]);
        edges += num_edges.back();
        columns += host.column_ptr(h)[b + 1] - host.column_ptr(h)[b];
      }
      first_edge.push_back(edges);
      first_column.push_back(columns + 1);
    }
    std::vector<int64_t> all;
    for (const std::vector<int64_t>* list : {&place_node, &place_column, &place_edge, &first_edge, &first_column}) {
      all.insert(all.end(), list->begin(), list->end());
    }
    memory.push_back(on.upload(all));
    const int64_t* const there = static_cast<const int64_t*>(memory.back().const_data_ptr());
    const int64_t stride = (hops + 1) * batches, edges = first_edge.back();

    Tensor node = on.room(nodes, ScalarType::Long), colptr = on.room(first_column.back(), ScalarType::Long);
    Tensor edge_index = on.room(edges * (request.with_col ? 2 : 1), ScalarType::Long);
    Tensor edge_id = on.room(request.with_edge_id ? edges : 0, ScalarType::Long);
    const auto data = [](Tensor& tensor) { return static_cast<int64_t*>(tensor.mutable_data_ptr()); };
    BulkPlaces places{there,
                      there + stride,
                      there + 2 * stride,
                      there + 3 * stride,
                      there + 3 * stride + batches + 1,
                      data(node),
                      data(colptr),
                      data(edge_index),
                      request.with_edge_id ? data(edge_id) : nullptr,
                      request.with_col};
    on.each(every, batches, WriteEnds{places});
    for (int64_t h = 0; h <= hops; ++h) {
      on.each(bulk.state.node_ptr(h) + batches, host.node_ptr(h)[batches], WriteNodes{bulk, h, places});
      if (h == hops) break;
      on.each(bulk.state.columns(h), *host.columns(h), WriteColumns{bulk, parts[h], places});
      on.each(bulk.state.edges(h), *host.edges(h), WriteEdges{bulk, parts[h], places});
      places.node += batches;
      places.column += batches;
      places.edge += batches;
    }
    num_nodes.insert(num_nodes.end(), num_edges.begin(), num_edges.end());
    num_nodes.push_back(static_cast<int64_t>(host.lowest(BulkState::kBadSeed)));
    return {node, colptr, edge_index, edge_id, on_host(num_nodes)};
  }

  Executor& on;
  const BulkRequest& request;
  const BulkKind kind;
  const int64_t batches, hops, num_seeds;
  Bulk bulk{};
  BulkState host{};  // what the device knows, as far as it was downloaded
  std::vector<int64_t> host_words;
  const int64_t* every = nullptr;  // batches + 1
  std::vector<Tensor> memory;      // lives until the work that uses it is queued
  std::vector<BulkHop> parts;
};

}  // namespace gnnscale
