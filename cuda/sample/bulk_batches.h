// What every bulk is asked for, how its state begins, and how hops become batches, over an executor (../executor.h).
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "../executor.h"
#include "../gather/tier_arguments.h"
#include "bulk_output.h"
#include "bulk_relabelling.h"
#include "bulk_rooms.h"

namespace gnnscale {

struct BulkInput {
  BulkGraph graph;
  BulkEdges stored;
  const Tensor& seeds;  // int64, contiguous
  std::vector<int64_t> seed_ptr, keys;
};

// The arguments that operators of bulks share; their wrappers check them. `address`: see tier_table.
template <typename Address>
BulkInput bulk_input(const Tensor& colptr, const std::vector<Tensor>& row, const std::vector<Tensor>& edge_id,
                     const std::vector<int64_t>& spread, const Tensor& seeds, std::vector<int64_t> seed_ptr,
                     std::vector<int64_t> keys, size_t hops, Address&& address) {
  STD_TORCH_CHECK(seed_ptr.size() == keys.size() + 1 && seed_ptr.front() == 0 && seed_ptr.back() == seeds.numel(),
                  "expected seed_ptr to lead from 0 to the number of seeds in ", keys.size(), " steps");
  STD_TORCH_CHECK(static_cast<int64_t>(keys.size()) <= kMaxBatches && hops <= kMaxHops && seeds.numel() <= kMostInHop,
                  "expected fewer batches, hops or seeds");
  const std::vector<int64_t> of_ids = edge_id.empty() ? std::vector<int64_t>{} : spread;
  const BulkEdges stored{tiered_ids(row, spread, address), tiered_ids(edge_id, of_ids, address)};
  const auto ends = [](const TieredIds& ids) { return ids.table.first[ids.table.num_tiers]; };
  STD_TORCH_CHECK(edge_id.empty() || ends(stored.edge_id) == ends(stored.row), "expected an id for each edge");
  const BulkGraph graph{reinterpret_cast<const int64_t*>(address(colptr)), colptr.numel() - 1, ends(stored.row)};
  return {graph, stored, seeds, std::move(seed_ptr), std::move(keys)};
}

// The buffers of all batches, and in host memory the counts: num_nodes, num_edges and the first wrong seed or -1.
struct BulkOutput {
  Tensor node, colptr, edge_index, edge_id, weight, counts;
};

template <typename Executor>
class BulkBatches {
 protected:
  BulkBatches(Executor& executor, const BulkInput& asked, size_t num_hops)
      : on(executor),
        input(asked),
        batches(static_cast<int64_t>(asked.keys.size())),
        hops(static_cast<int64_t>(num_hops)),
        num_seeds(asked.seeds.numel()) {}

  template <typename T>
  T* make(int64_t count) {
    return make<T>(count, memory);
  }

  // The same, kept by `owner`.
  template <typename T>
  T* make(int64_t count, std::vector<Tensor>& owner) {
    constexpr ScalarType dtype = sizeof(T) == 8 ? ScalarType::Long : ScalarType::Int;
    owner.push_back(on.room(std::max<int64_t>(count, 1), dtype));
    return static_cast<T*>(owner.back().mutable_data_ptr());
  }

  // A table of free slots, as many as a power of two, at least `slots_a_node` for each of so many nodes.
  BulkTable free_table(int64_t nodes, int64_t slots_a_node, std::vector<Tensor>& owner) {
    int64_t slots = 16;
    while (slots < slots_a_node * nodes) slots *= 2;
    STD_TORCH_CHECK(slots <= int64_t{1} << 31, "a bulk of more than 2^30 nodes; sample fewer batches at a time");
    owner.push_back(on.room(2 * slots, ScalarType::Long));
    on.fill(owner.back());
    return {static_cast<BulkTable::Slot*>(owner.back().mutable_data_ptr()), static_cast<uint64_t>(slots - 1)};
  }

  // The state before the first hop, on both sides. most_nodes: that each hop may find.
  void start_state(const std::vector<int64_t>& most_nodes) {
    host = {nullptr, batches, hops};
    const int64_t words = BulkState::size(batches, hops);
    host_words.assign(static_cast<size_t>(words) + 1, 0);
    host.word = host_words.data();
    std::fill_n(host.word, BulkState::kStopped, -1);
    *host.columns(0) = num_seeds;
    int64_t base = num_seeds;
    for (int64_t h = 0; h < hops; ++h) {
      *host.node_base(h + 1) = base;
      base += most_nodes[h];
    }
    std::copy_n(input.keys.data(), batches, host.key());
    std::copy_n(input.seed_ptr.data(), batches + 1, host.node_ptr(0));
    std::copy_n(input.seed_ptr.data(), batches + 1, host.column_ptr(0));
    host_words.back() = batches + 1;
    memory.push_back(on.upload(host_words));
    bulk.state = {static_cast<int64_t*>(memory.back().mutable_data_ptr()), batches, hops};
    every = bulk.state.word + words;
  }

  // What the device knows.
  void download_state() {
    host_words = on.download(bulk.state.word, BulkState::size(batches, hops));
    host.word = host_words.data();
  }

  // Raises a RuntimeError if the state that was downloaded tells of a malformed graph.
  void check_graph() const {
    for (const auto& [word, what] : {std::pair{BulkState::kBadNode, "colptr"}, std::pair{BulkState::kBadEdge, "row"}}) {
      const uint64_t at = host.lowest(word);
      STD_TORCH_CHECK(at == ~uint64_t{0}, "the graph is malformed: ", what, "[", static_cast<int64_t>(at),
                      "] in a graph of ", input.graph.num_nodes, " nodes and ", input.graph.num_edges, " edges");
    }
  }

  // From hops to batches, after the state was downloaded: the common buffers.
  BulkOutput write(bool with_edge_id, bool with_col, bool with_weight) {
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
    Tensor edge_index = on.room(edges * (with_col ? 2 : 1), ScalarType::Long);
    Tensor edge_id = on.room(with_edge_id ? edges : 0, ScalarType::Long);
    Tensor weight = on.room(with_weight ? edges : 0, ScalarType::Float);
    const auto data = [](Tensor& tensor) { return static_cast<int64_t*>(tensor.mutable_data_ptr()); };
    BulkPlaces places{there,
                      there + stride,
                      there + 2 * stride,
                      there + 3 * stride,
                      there + 3 * stride + batches + 1,
                      data(node),
                      data(colptr),
                      data(edge_index),
                      with_edge_id ? data(edge_id) : nullptr,
                      with_col,
                      with_weight ? static_cast<float*>(weight.mutable_data_ptr()) : nullptr};
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
    return {node, colptr, edge_index, edge_id, weight, on_host(num_nodes)};
  }

  Executor& on;
  const BulkInput& input;
  const int64_t batches, hops, num_seeds;
  Bulk bulk{};
  BulkState host{};  // what the device knows, as far as it was downloaded
  std::vector<int64_t> host_words;
  const int64_t* every = nullptr;  // batches + 1
  std::vector<Tensor> memory;      // lives until the work that uses it is queued
  std::vector<BulkHop> parts;
};

}  // namespace gnnscale
