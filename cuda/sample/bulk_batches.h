// What every bulk is asked for, how its state begins, and how hops become batches, over an executor (../executor.h).
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../executor.h"
#include "../gather/tier_arguments.h"
#include "bulk_output.h"
#include "bulk_relabelling.h"
#include "bulk_rooms.h"

namespace gnnscale {

struct BulkInput {
  std::vector<BulkRelation> relations;  // by the type of their sources
  std::vector<int64_t> sizes;           // nodes of each type
  const Tensor& seeds;                  // int64, contiguous, group after group
  std::vector<int64_t> seed_ptr, keys;  // seed_ptr: [groups + 1]
  std::vector<int64_t> fanouts;         // of each relation's hops
  std::vector<int64_t> exclude_ptr;     // of excluded pairs: [segments + 1]
};

// The seeds, and the keys of batches, as operators of bulks take them; their wrappers check them.
inline void check_bulk_seeds(const Tensor& seeds, const std::vector<int64_t>& seed_ptr, size_t batches, size_t types,
                             size_t hops) {
  check_contiguous_ids("seeds", seeds);
  STD_TORCH_CHECK(seed_ptr.size() == types * batches + 1 && std::is_sorted(seed_ptr.begin(), seed_ptr.end()) &&
                      seed_ptr.front() == 0 && seed_ptr.back() == seeds.numel(),
                  "expected seed_ptr to lead from 0 to the number of seeds in ", types * batches, " steps");
  STD_TORCH_CHECK(static_cast<int64_t>(batches) <= kMaxBatches && hops <= kMaxHops && seeds.numel() <= kMostInHop,
                  "expected fewer batches, hops or seeds");
}

// A relation between nodes of the types 0, of tensors; `address`: see tier_table.
template <typename Address>
BulkRelation bulk_relation(const Tensor& colptr, const std::vector<Tensor>& row, const std::vector<Tensor>& edge_id,
                           const std::vector<int64_t>& spread, Address&& address) {
  check_int64("colptr", colptr);
  STD_TORCH_CHECK(colptr.numel() > 0, "expected column pointers");
  const auto ends = [](const TieredIds& ids) { return ids.table.first[ids.table.num_tiers]; };
  BulkRelation relation{};
  relation.colptr = reinterpret_cast<const int64_t*>(address(colptr));
  relation.num_dst = relation.num_src = colptr.numel() - 1;
  relation.row = tiered_ids(row, spread, address);
  relation.num_edges = ends(relation.row);
  if (!edge_id.empty()) relation.edge_id = tiered_ids(edge_id, spread, address);
  STD_TORCH_CHECK(edge_id.empty() || ends(relation.edge_id) == relation.num_edges, "expected an id for each edge");
  relation.siblings = 1;
  return relation;
}

// The buffers of all batches, and in host memory the counts: of each group the nodes of each hop, of each segment the
// edges of each hop, of induced subgraphs the edges of each segment, and the first wrong seed or -1.
struct BulkOutput {
  Tensor node, colptr, edge_index, edge_id;
  std::optional<Tensor> tree, weight;
  Tensor counts;
};

// A phase with a single item: the pointers of a node, or the source of an edge, which are malformed.
struct ReadMalformed {
  const BulkRelation* relation;
  int64_t at;
  bool is_edge;
  int64_t* out;

  GNNSCALE_HD void operator()(int64_t) const {
    out[0] = is_edge ? relation->row[at] : relation->colptr[at];
    out[1] = is_edge ? 0 : relation->colptr[at + 1];
  }
};

template <typename Executor>
class BulkBatches {
 protected:
  BulkBatches(Executor& executor, const BulkInput& asked, size_t num_hops)
      : executor(executor),
        input(asked),
        of{static_cast<int64_t>(asked.keys.size()), static_cast<int64_t>(num_hops),
           static_cast<int64_t>(asked.sizes.size()), static_cast<int64_t>(asked.relations.size())},
        batches(of.batches),
        hops(of.hops),
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
    check_at_once(slots <= int64_t{1} << 31, "a bulk of up to ", nodes, " nodes, more than 2^30");
    return slots;
  }

  // A table of `count` free slots, which is a power of two; `more` after them are made free, too.
  BulkTable free_table(BulkTable::Slot* slots, int64_t count, int64_t more = 0) {
    executor.fill(slots, count + more);
    return {slots, static_cast<uint64_t>(count - 1)};
  }

  // How many words the relations and the state take.
  int64_t state_words() const { return relation_words() + BulkState::size(of); }

  // The relations, and the state before the first hop. most_nodes: that each hop may find; words: room for both on the
  // device.
  void start_state(const std::vector<int64_t>& most_nodes, int64_t* words) {
    host_words.assign(static_cast<size_t>(relation_words() + BulkState::given(of)), 0);
    std::copy_n(reinterpret_cast<const char*>(input.relations.data()), input.relations.size() * sizeof(BulkRelation),
                reinterpret_cast<char*>(host_words.data()));
    host = {of, host_words.data() + relation_words()};
    std::fill_n(host.word, BulkState::kStopped, -1);
    int64_t base = num_seeds;
    for (int64_t h = 0; h < hops; ++h) {
      *host.node_base(h + 1) = base;
      base += most_nodes[h];
    }
    std::copy(input.keys.begin(), input.keys.end(), host.key());
    std::copy(input.fanouts.begin(), input.fanouts.end(), host.fanout(0));
    std::copy(input.exclude_ptr.begin(), input.exclude_ptr.end(), host.exclude_ptr());
    std::copy(input.seed_ptr.begin(), input.seed_ptr.end(), host.node_ptr(0));
    for (const BulkRelation& relation : input.relations) ++host.first_relation()[relation.src + 1];
    for (int64_t t = 0; t < of.types; ++t) {
      host.first_relation()[t + 1] += host.first_relation()[t];
      host.first_node()[t + 1] = host.first_node()[t] + input.sizes[t];
    }
    for (int64_t s = 0; s < of.segments(); ++s) {
      const auto [relation, batch] = segment_at(host, s);
      const int64_t* const seeds = host.node_ptr(0) + input.relations[relation].dst * batches + batch;
      host.column_ptr(0)[s + 1] = host.column_ptr(0)[s] + seeds[1] - seeds[0];
    }
    *host.columns(0) = host.column_ptr(0)[of.segments()];
    executor.upload(host_words, words);
    bulk.relation = reinterpret_cast<const BulkRelation*>(words);
    bulk.state = {of, words + relation_words()};
  }

  // What the device knows.
  void download_state() {
    host_words = executor.download(bulk.state.word, BulkState::size(of));
    host.word = host_words.data();
  }

  // Raises a RuntimeError if the state that was downloaded tells of a malformed graph.
  void check_graph() const {
    for (const auto word : {BulkState::kBadNode, BulkState::kBadEdge}) {
      const uint64_t noted = host.lowest(word);
      if (noted == ~uint64_t{0}) continue;
      const int64_t at = static_cast<int64_t>(noted & ((uint64_t{1} << BulkState::kPositionBits) - 1));
      const int64_t place = static_cast<int64_t>(noted >> BulkState::kPositionBits);
      const bool is_edge = word == BulkState::kBadEdge;
      executor.each(1, ReadMalformed{bulk.relation + place, at, is_edge, bulk.state.word});
      const std::vector<int64_t> found = executor.download(bulk.state.word, 2);
      const BulkRelation& relation = input.relations[static_cast<size_t>(place)];
      std::string of = of_relations();
      if (!of.empty()) of += std::to_string(relation.number);
      STD_TORCH_CHECK(!is_edge, "the graph is malformed: row[", at, "] = ", found[0], " in a graph of ",
                      relation.num_src, " nodes", of);
      STD_TORCH_CHECK(false, "the graph is malformed: colptr[", at, "] = ", found[0], ", colptr[", at + 1,
                      "] = ", found[1], " with ", relation.num_edges, " edges", of);
    }
  }

  // How errors lead to the number of a relation, where there are several.
  std::string of_relations() const { return input.relations.size() > 1 ? ", of relation " : ""; }

  // From hops to batches, after the state was downloaded: the common buffers. The columns and edges are those of
  // `parts`: of all hops, or of the induced subgraphs.
  BulkOutput write(bool with_edge_id, bool with_col, bool with_weight, bool induced = false) {
    BulkBuffers to{};
    to.bulk.state = host;
    to.first_hop = induced ? hops : 0;
    to.hops = static_cast<int64_t>(parts.size());
    const int64_t nodes = to.nodes().all(), columns = to.columns().all() + of.segments(), edges = to.edges().all();
    std::vector<int64_t> counts;
    const BulkLists drawn = to.lists(host.edge_ptr(0), hops, of.segments());
    for (const BulkLists& lists : {to.nodes(), drawn, induced ? to.edges() : BulkLists{}}) {
      for (int64_t p = 0; p < lists.parts; ++p) {
        for (int64_t h = 0; h < lists.hops; ++h) counts.push_back(lists.of(h)[p + 1] - lists.of(h)[p]);
      }
    }
    counts.push_back(static_cast<int64_t>(host.lowest(BulkState::kBadSeed)));

    Tensor node = executor.room(nodes, ScalarType::Long), colptr = executor.room(columns, ScalarType::Long);
    Tensor edge_index = executor.room(edges * (with_col ? 2 : 1), ScalarType::Long);
    Tensor edge_id = executor.room(with_edge_id ? edges : 0, ScalarType::Long);
    std::optional<Tensor> tree, weight;
    if (bulk.tree != nullptr) tree = executor.room(nodes, ScalarType::Long);
    if (with_weight) weight = executor.room(edges, ScalarType::Float);
    const auto data = [](Tensor& tensor) { return static_cast<int64_t*>(tensor.mutable_data_ptr()); };
    to.bulk = bulk;
    to.node = data(node);
    to.colptr = data(colptr);
    to.edge_index = data(edge_index);
    to.edge_id = with_edge_id ? data(edge_id) : nullptr;
    to.tree = tree.has_value() ? data(*tree) : nullptr;
    to.weight = with_weight ? static_cast<float*>(weight->mutable_data_ptr()) : nullptr;
    to.with_col = with_col;
    for (size_t h = 0; h < parts.size(); ++h) {
      to.arrays[h] = {parts[h].offset, parts[h].column, parts[h].slot, parts[h].edge_id, parts[h].weight};
    }
    executor.each(nodes + columns + edges, WriteBatches{to, nodes, columns});
    return {node, colptr, edge_index, edge_id, tree, weight, executor.on_host(counts)};
  }

  static_assert(sizeof(BulkRelation) % sizeof(int64_t) == 0);
  int64_t relation_words() const { return of.relations * static_cast<int64_t>(sizeof(BulkRelation) / sizeof(int64_t)); }

  Executor& executor;
  const BulkInput& input;
  const BulkSizes of;
  const int64_t batches, hops, num_seeds;
  Bulk bulk{};
  BulkState host{};  // what the device knows, as far as it was downloaded
  std::vector<int64_t> host_words;
  std::vector<Tensor> memory;  // lives until the work that uses it is queued
  std::vector<BulkHop> parts;
};

}  // namespace gnnscale
