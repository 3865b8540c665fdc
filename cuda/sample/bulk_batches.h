// What every bulk is asked for, how its state begins, and how hops become batches, over an executor (../executor.h).
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <optional>
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
  check_int64("colptr", colptr);
  check_contiguous_ids("seeds", seeds);
  STD_TORCH_CHECK(colptr.numel() > 0 && std::is_sorted(seed_ptr.begin(), seed_ptr.end()),
                  "expected column pointers, and seed_ptr in rising order");
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
  Tensor node, colptr, edge_index, edge_id;
  std::optional<Tensor> weight;
  Tensor counts;
};

template <typename Executor>
class BulkBatches {
 protected:
  BulkBatches(Executor& executor, const BulkInput& asked, size_t num_hops)
      : executor(executor),
        input(asked),
        batches(static_cast<int64_t>(asked.keys.size())),
        hops(static_cast<int64_t>(num_hops)),
        num_seeds(asked.seeds.numel()) {}

  // Memory for so many items, kept by `owner`.
  template <typename T>
  T* make(int64_t count, std::vector<Tensor>& owner) {
    constexpr ScalarType dtype = sizeof(T) == 8 ? ScalarType::Long : ScalarType::Int;
    owner.push_back(executor.room(std::max<int64_t>(count, 1), dtype));
    return static_cast<T*>(owner.back().mutable_data_ptr());
  }

  // How many slots the table of so many nodes gets: a power of two, at least `slots_a_node` for each.
  static int64_t num_slots(int64_t nodes, int64_t slots_a_node) {
    int64_t slots = 16;
    while (slots < slots_a_node * nodes) slots *= 2;
    STD_TORCH_CHECK(slots <= int64_t{1} << 31, "a bulk of more than 2^30 nodes; sample fewer batches at a time");
    return slots;
  }

  // A table of so many free slots.
  BulkTable free_table(BulkTable::Slot* slots, int64_t count) {
    executor.fill(slots, count);
    return {slots, static_cast<uint64_t>(count - 1)};
  }

  // The state before the first hop, on both sides. most_nodes: that each hop may find; word: room for it on the device.
  void start_state(const std::vector<int64_t>& most_nodes, int64_t* word) {
    host = {nullptr, batches, hops};
    host_words.assign(static_cast<size_t>(BulkState::size(batches, hops)), 0);
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
    executor.upload(host_words, word);
    bulk.state = {word, batches, hops};
  }

  // What the device knows.
  void download_state() {
    host_words = executor.download(bulk.state.word, BulkState::size(batches, hops));
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
    BulkBuffers to{};
    to.bulk.state = host;
    const int64_t nodes = to.nodes().all(), columns = to.columns().all() + batches, edges = to.edges().all();
    std::vector<int64_t> counts;
    for (const BulkLists& lists : {to.nodes(), to.edges()}) {
      for (int64_t b = 0; b < batches; ++b) {
        for (int64_t h = 0; h < lists.hops; ++h) counts.push_back(lists.of(h)[b + 1] - lists.of(h)[b]);
      }
    }
    counts.push_back(static_cast<int64_t>(host.lowest(BulkState::kBadSeed)));

    Tensor node = executor.room(nodes, ScalarType::Long), colptr = executor.room(columns, ScalarType::Long);
    Tensor edge_index = executor.room(edges * (with_col ? 2 : 1), ScalarType::Long);
    Tensor edge_id = executor.room(with_edge_id ? edges : 0, ScalarType::Long);
    std::optional<Tensor> weight;
    if (with_weight) weight = executor.room(edges, ScalarType::Float);
    const auto data = [](Tensor& tensor) { return static_cast<int64_t*>(tensor.mutable_data_ptr()); };
    to.bulk = bulk;
    to.node = data(node);
    to.colptr = data(colptr);
    to.edge_index = data(edge_index);
    to.edge_id = with_edge_id ? data(edge_id) : nullptr;
    to.weight = with_weight ? static_cast<float*>(weight->mutable_data_ptr()) : nullptr;
    to.with_col = with_col;
    for (size_t h = 0; h < parts.size(); ++h) {
      to.arrays[h] = {parts[h].offset, parts[h].column, parts[h].slot, parts[h].edge_id, parts[h].weight};
    }
    executor.each(nodes, WriteNodes{to});
    executor.each(columns, WriteColumns{to});
    executor.each(edges, WriteEdges{to});
    return {node, colptr, edge_index, edge_id, weight, executor.on_host(counts)};
  }

  Executor& executor;
  const BulkInput& input;
  const int64_t batches, hops, num_seeds;
  Bulk bulk{};
  BulkState host{};  // what the device knows, as far as it was downloaded
  std::vector<int64_t> host_words;
  std::vector<Tensor> memory;  // lives until the work that uses it is queued
  std::vector<BulkHop> parts;
};

}  // namespace gnnscale
