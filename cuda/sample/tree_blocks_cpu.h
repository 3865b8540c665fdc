// Disjoint trees on several threads of the CPU. No tree needs another's nodes: each thread samples blocks of trees
// through all hops, and waits for no other. Afterwards all blocks are laid out hop by hop, so that a batch is the same
// as if it had been sampled as a whole.
//
// A type's nodes are in runs: the seeds, then, of each hop and relation, those that one run of its destinations found.
// In a run, nodes stand by tree, so run k of a batch is that of block 0, then that of block 1, and so on:
//
//     block 0:  seeds 0-3 | found by relation 0 | by relation 1      the batch:  seeds 0-3 | seeds 4-7 | by relation 0,
//     block 1:  seeds 4-7 | found by relation 0 | by relation 1                  block 0 | by relation 0, block 1 | ...
//
// The same holds for the edges into a run.
#pragma once

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "dealing_cpu.h"
#include "whole_batch_cpu.h"

namespace gnnscale {

constexpr int64_t kLeastTrees = 32;  // of a block
constexpr int64_t kBlocksOfThread =
    4;                             // at most; trees differ in size, so that a thread takes more blocks than another
constexpr size_t kMostRuns = 512;  // over all relations and hops, into which edges lead

// By hop and type, the runs of destinations: [hop][type] is the first one and the end.
using DestinationRuns = std::vector<std::vector<std::pair<size_t, size_t>>>;

class TreeBlocks {
 public:
  // How many blocks the trees of a batch make: one if it is better sampled as a whole.
  static int64_t blocks_of(const Request& request, const std::vector<Seeds>& seeds) {
    if (!request.disjoint || request.induced || request.bidirectional) return 1;
    const int64_t most = count_trees(seeds) / kLeastTrees, tasks = num_tasks(most, 1, request.threads);
    return tasks == 1 ? 1 : std::min(most, tasks * kBlocksOfThread);
  }

  // The runs of a request's batches; none if they would be many, or are not the columns that are drawn.
  static std::optional<DestinationRuns> runs_of(const Request& request) {
    const size_t types = request.sizes.size();
    for (size_t t = 0; t < types; ++t) {
      if (request.incoming[t].words > 0) return {};
    }
    std::vector<size_t> first(types, 0), end(types, 1), most(types, 1);
    DestinationRuns found;
    size_t into = 0;
    for (int64_t hop = 0; hop < request.hops; ++hop) {
      found.emplace_back();
      for (size_t t = 0; t < types; ++t) found.back().emplace_back(first[t], end[t]);
      most = end;
      for (const Relation& relation : request.relations) {
        const size_t runs = end[relation.dst] - first[relation.dst];
        into += runs;
        if (relation.fanouts[hop] != 0) most[relation.src] += runs;
      }
      if (into > kMostRuns) return {};
      if (!request.layers) first = end;
      end = most;
    }
    return found;
  }

  TreeBlocks(const Request& request, const std::vector<Seeds>& seeds, int64_t blocks, DestinationRuns runs)
      : request_(request),
        seeds_(seeds),
        trees_(count_trees(seeds)),
        runs_(std::move(runs)),
        of_block_(request),
        blocks_(static_cast<size_t>(blocks)) {
    of_block_.in_blocks = true;
    of_block_.threads = 1;
  }

  Outcome sample() {
    const int64_t blocks = static_cast<int64_t>(blocks_.size());
    deal_batches(blocks, request_.threads, [&](int64_t block) { blocks_[block] = sample_block(block, blocks); });
    place_nodes();
    place_edges();
    deal_batches(blocks, request_.threads, [&](int64_t block) { copy(static_cast<size_t>(block)); });
    return std::move(out_);
  }

 private:
  static int64_t count_trees(const std::vector<Seeds>& seeds) {
    return std::accumulate(seeds.begin(), seeds.end(), int64_t{0},
                           [](int64_t sum, const Seeds& of_type) { return sum + of_type.count; });
  }

  Outcome sample_block(int64_t block, int64_t blocks) const {
    const auto [begin, end] = part(trees_, block, blocks);
    int64_t first = 0;  // tree of the type
    std::vector<Seeds> seeds;
    for (const Seeds& of_type : seeds_) {
      const int64_t from = std::clamp(begin - first, int64_t{0}, of_type.count);
      const int64_t to = std::clamp(end - first, int64_t{0}, of_type.count);
      const int64_t bytes = from * static_cast<int64_t>(of_type.wide ? sizeof(int64_t) : sizeof(int32_t));
      seeds.push_back({static_cast<const char*>(of_type.ids) + bytes, of_type.wide, to - from});
      first += of_type.count;
    }
    Batch batch(of_block_, seeds, begin);
    run(batch);
    return taken(batch);
  }

  // Where each run of each block begins among the batch's nodes.
  void place_nodes() {
    for (size_t t = 0; t < seeds_.size(); ++t) {
      Nodes& all = out_.nodes.emplace_back();
      const size_t runs = blocks_[0].nodes[t].run_ends.size();
      std::vector<int64_t>& begin = node_begin_.emplace_back();
      for (size_t run = 0; run < runs; ++run) {
        for (const Outcome& block : blocks_) {
          begin.push_back(all.count);
          all.count += run_of(block.nodes[t], run).second;
        }
      }
      all.id.reserve(0, all.count);
      all.tree.reserve(0, all.count);
      all.per_hop.assign(blocks_[0].nodes[t].per_hop.size(), 0);
      for (const Outcome& block : blocks_) add_to(all.per_hop, block.nodes[t].per_hop);
    }
  }

  // The same for the edges into each run, hop by hop.
  void place_edges() {
    for (size_t r = 0; r < request_.relations.size(); ++r) {
      DrawnEdges& all = out_.edges.emplace_back();
      all.per_hop.assign(static_cast<size_t>(request_.hops), 0);
      all.columns_per_hop = all.per_hop;
      for (const Outcome& block : blocks_) {
        add_to(all.per_hop, block.edges[r].per_hop);
        add_to(all.columns_per_hop, block.edges[r].columns_per_hop);
        all.columns += block.edges[r].columns;
      }
      std::vector<int64_t>& begin = edge_begin_.emplace_back();
      each_run(r, [&](size_t hop, size_t run) {
        for (const Outcome& block : blocks_) {
          begin.push_back(all.count);
          const auto [first, columns] = columns_of(block, r, hop, run);
          all.count += block.edges[r].colptr[first + columns] - block.edges[r].colptr[first];
        }
      });
      all.colptr.reserve(0, all.columns + 1);
      all.colptr[0] = 0;
      all.row.reserve(0, all.count * (request_.with_col ? 2 : 1));
      if (request_.with_edge_id) all.id.reserve(0, all.count);
    }
  }

  // Copies what a block has to its place.
  void copy(size_t block) {
    const Outcome& from = blocks_[block];
    std::vector<Vector<int64_t>> local(seeds_.size());  // the batch's local ids of the block's nodes
    for (size_t t = 0; t < seeds_.size(); ++t) {
      const Nodes& nodes = from.nodes[t];
      local[t].resize(static_cast<size_t>(nodes.count));
      for (size_t run = 0; run < nodes.run_ends.size(); ++run) {
        const auto [first, count] = run_of(nodes, run);
        const int64_t begin = node_begin_[t][run * blocks_.size() + block];
        std::copy_n(nodes.id.data() + first, count, out_.nodes[t].id.data() + begin);
        std::copy_n(nodes.tree.data() + first, count, out_.nodes[t].tree.data() + begin);
        std::iota(local[t].begin() + first, local[t].begin() + first + count, begin);
      }
    }
    for (size_t r = 0; r < request_.relations.size(); ++r) {
      size_t place = block;
      each_run(r, [&](size_t hop, size_t run) {
        copy_edges(block, r, hop, run, edge_begin_[r][place], local[request_.relations[r].src].data());
        place += blocks_.size();
      });
    }
  }

  // The edges of a relation into a run, which begin at `begin` in the batch.
  void copy_edges(size_t block, size_t r, size_t hop, size_t run, int64_t begin, const int64_t* local) {
    const DrawnEdges& edges = blocks_[block].edges[r];
    DrawnEdges& all = out_.edges[r];
    const auto [first, columns] = columns_of(blocks_[block], r, hop, run);
    if (columns == 0) return;
    const int64_t destination = node_begin_[request_.relations[r].dst][run * blocks_.size() + block];
    const int64_t* const colptr = edges.colptr.data() + first;
    int64_t* const colptr_out = all.colptr.data() + columns_before(all, hop) + destination + 1;
    const int64_t from = colptr[0], count = colptr[columns] - from, shift = begin - from;
    for (int64_t column = 0; column < columns; ++column) colptr_out[column] = colptr[column + 1] + shift;
    if (count == 0) return;
    int64_t* const row = all.row.data() + begin;
    for (int64_t e = 0; e < count; ++e) row[e] = local[edges.row[from + e]];
    if (request_.with_edge_id) std::copy_n(edges.id.data() + from, count, all.id.data() + begin);
    if (!request_.with_col) return;
    int64_t* const col = all.row.data() + all.count + shift;
    for (int64_t column = 0; column < columns; ++column) {
      std::fill(col + colptr[column], col + colptr[column + 1], destination + column);
    }
  }

  // Calls f(hop, run) for each run that edges of a relation lead into, in the order of edges.
  template <typename F>
  void each_run(size_t r, F&& f) const {
    for (size_t hop = 0; hop < runs_.size(); ++hop) {
      const auto [first, end] = runs_[hop][request_.relations[r].dst];
      for (size_t run = first; run < end; ++run) f(hop, run);
    }
  }

  // (where a run begins, its nodes)
  static std::pair<int64_t, int64_t> run_of(const Nodes& nodes, size_t run) {
    const int64_t begin = run == 0 ? 0 : nodes.run_ends[run - 1];
    return {begin, nodes.run_ends[run] - begin};
  }

  // Columns of a relation that stand before the column of node 0 in a hop: those of earlier hops, where each hop has
  // columns of its own.
  int64_t columns_before(const DrawnEdges& edges, size_t hop) const {
    if (!request_.layers) return 0;
    return std::accumulate(edges.columns_per_hop.begin(), edges.columns_per_hop.begin() + hop, int64_t{0});
  }

  // (the first column of a run in a hop, how many)
  std::pair<int64_t, int64_t> columns_of(const Outcome& block, size_t r, size_t hop, size_t run) const {
    const auto [begin, count] = run_of(block.nodes[request_.relations[r].dst], run);
    return {columns_before(block.edges[r], hop) + begin, count};
  }

  static void add_to(std::vector<int64_t>& sums, const std::vector<int64_t>& counts) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += counts[i];
  }

  const Request& request_;
  const std::vector<Seeds>& seeds_;
  const int64_t trees_;
  const DestinationRuns runs_;
  Request of_block_;
  std::vector<Outcome> blocks_;
  Outcome out_;
  std::vector<std::vector<int64_t>> node_begin_, edge_begin_;  // [type][run][block], [relation][hop and run][block]
};

inline Outcome sample_batch(const Request& request, const std::vector<Seeds>& seeds) {
  if (const int64_t blocks = TreeBlocks::blocks_of(request, seeds); blocks > 1) {
    if (auto runs = TreeBlocks::runs_of(request)) {
      return TreeBlocks(request, seeds, blocks, std::move(*runs)).sample();
    }
  }
  return sample_whole(request, seeds);
}

}  // namespace gnnscale
