// A batch on the CPU: what is asked for, and the nodes and edges that were found so far.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "../memory/tensor.h"
#include "../memory/workspace.h"
#include "active_columns_cpu.h"
#include "drawing_cpu.h"
#include "relabelling_cpu.h"

namespace gnnscale {

struct Request {
  std::vector<Relation> relations;
  const IncomingRelations* incoming;  // of each node type
  std::vector<int64_t> sizes;         // nodes of each type
  Vector<int64_t> seed_time;          // of each tree; empty without times
  Vector<int64_t> seed_start_time;    // the same; empty where no seed has a start
  int64_t hops;
  uint64_t key;
  bool replace, disjoint, last, layers, bidirectional, induced, with_edge_id, with_col;
  bool in_blocks;  // whether runs of nodes are kept
  Lookup lookup;
  int64_t threads;
};

struct Seeds {
  const void* ids;
  bool wide;  // int64, else int32
  int64_t count;
};

// The edges of a relation that were drawn, as CSC with sources in local ids.
struct DrawnEdges {
  PooledArray<int64_t> colptr, row, id;
  int64_t count = 0, columns = 0;
  std::vector<int64_t> per_hop, columns_per_hop;
};

// Columns of a hop that have stored edges, where the others are left out.
struct CompactColumns {
  Vector<int64_t> node, tree, colptr;
};

struct Batch {
  const Request& request;
  std::vector<Nodes> nodes;
  std::vector<DrawnEdges> edges;
  std::vector<std::vector<ActiveColumns>> active;  // of each hop begun and each node type with IncomingRelations
  CompactColumns compact;
  Lookup lookup;  // the request's, until a tree has too many nodes for it
  WorkspaceLease work;

  // first_tree: the number of the first seed's tree, where trees are disjoint.
  Batch(const Request& asked, const std::vector<Seeds>& seeds, int64_t first_tree = 0)
      : request(asked),
        nodes(asked.sizes.size()),
        edges(asked.relations.size()),
        lookup(asked.lookup),
        work(asked.lookup == Lookup::kMap ? std::accumulate(asked.sizes.begin(), asked.sizes.end(), int64_t{0}) : 0) {
    const auto each_type = [&](auto&& f) {
      for (size_t t = 0; t < nodes.size(); ++t) {
        if (seeds[t].wide) {
          f(t, static_cast<const int64_t*>(seeds[t].ids));
        } else {
          f(t, static_cast<const int32_t*>(seeds[t].ids));
        }
      }
    };
    each_type([&](size_t t, const auto* ids) {
      bool outside = false;
      for (int64_t i = 0; i < seeds[t].count; ++i) {
        outside |= static_cast<uint64_t>(ids[i]) >= static_cast<uint64_t>(asked.sizes[t]);
      }
      STD_TORCH_CHECK(!outside, "seeds of type ", t, " are out of range");
    });
    reserve(seeds);
    int64_t tree = first_tree;
    each_type([&](size_t t, const auto* ids) { add_seeds(nodes[t], ids, seeds[t].count, tree); });
  }
  ~Batch() {  // a hop that threw may have written cells, too
    int64_t most = 0;
    for (const Nodes& type : nodes) most = std::max(most, type.count);
    if (request.lookup == Lookup::kMap) work->base += static_cast<uint32_t>(most);
    work->scratch.shrink();
  }

  void begin_hop() {
    active.emplace_back(nodes.size());
    for (size_t t = 0; t < nodes.size(); ++t) {
      if (request.incoming[t].words == 0) continue;
      active.back()[t].find(request.incoming[t], nodes[t].id.data() + nodes[t].frontier,
                            nodes[t].known - nodes[t].frontier);
    }
  }

  // Of the columns of a relation that have stored edges, where these are.
  void prefetch_columns(const Relation& relation) const {
    if (relation.incoming < 0) return;
    const ActiveColumns& columns = active.back()[relation.dst];
    const int64_t* const position = columns.positions(relation.incoming);
    const int64_t* const node = nodes[relation.dst].id.data() + nodes[relation.dst].frontier;
    for (int64_t k = 0; k < columns.count(relation.incoming); ++k) {
      GNNSCALE_PREFETCH(relation.pointer_of(node[position[k]]));
    }
  }

  void end_hop() {
    for (Nodes& type : nodes) {
      type.per_hop.push_back(type.count - type.known);
      if (!request.layers) type.frontier = type.known;
      type.known = type.count;
      if (!request.layers) type.frontier_run = type.known_run;
      type.known_run = type.run_ends.size();
    }
  }

  // From now on, nodes are looked up in the table of all trees.
  void join_trees() {
    lookup = Lookup::kTrees;
    work->start_trees(nodes.size());
    enter_all_trees();
  }

  // All nodes are in the table of all trees.
  void enter_all_trees() {
    for (size_t t = 0; t < nodes.size(); ++t) enter_trees(work->trees[t], nodes[t]);
  }

  // Keeps the sizes of the outputs: the first guess for those of the next batch.
  void remember() {
    for (size_t t = 0; t < nodes.size(); ++t) work->last_nodes[t] = nodes[t].count;
    for (size_t r = 0; r < edges.size(); ++r) {
      work->last_edges[r] = edges[r].count;
      work->last_columns[r] = edges[r].columns;
    }
  }

 private:
  void reserve(const std::vector<Seeds>& seeds) {
    work->last_nodes.resize(std::max(work->last_nodes.size(), nodes.size()));
    work->last_edges.resize(std::max(work->last_edges.size(), edges.size()));
    work->last_columns.resize(std::max(work->last_columns.size(), edges.size()));
    int64_t offset = 0, most = 0;
    for (size_t t = 0; t < nodes.size(); ++t) {
      nodes[t].offset = offset;
      nodes[t].per_hop.reserve(request.hops + 1);
      offset += request.sizes[t];
      most = std::max(most, request.sizes[t] + seeds[t].count);
      const int64_t room = std::max(seeds[t].count, work->last_nodes[t]);
      nodes[t].id.reserve(0, room);
      if (request.disjoint) nodes[t].tree.reserve(0, room);
    }
    for (size_t r = 0; r < edges.size(); ++r) {
      edges[r].per_hop.reserve(request.hops);
      edges[r].columns_per_hop.reserve(request.hops);
      edges[r].row.reserve(0, work->last_edges[r] * (request.with_col ? 2 : 1));
      if (request.with_edge_id) edges[r].id.reserve(0, work->last_edges[r]);
      edges[r].colptr.reserve(0, work->last_columns[r] + 1);
      edges[r].colptr[0] = 0;
    }
    if (request.lookup == Lookup::kOneTree) {
      work->tree.start();
    } else if (request.lookup == Lookup::kTrees) {
      work->start_trees(nodes.size());
    } else if (request.lookup == Lookup::kTable) {
      work->nodes.start();
    } else {
      work->prepare(offset, most);
    }
  }

  // A repeated seed keeps its row, and is looked up at its first one.
  template <typename Seed>
  void add_seeds(Nodes& type, const Seed* seeds, int64_t count, int64_t& tree) {
    int64_t* const ids = type.id.data();
    std::copy_n(seeds, count, ids);
    if (request.disjoint) {
      std::iota(type.tree.data(), type.tree.data() + count, tree);
      tree += count;
    }
    if (request.lookup == Lookup::kTable) {
      enter_nodes(work->nodes, type.offset, ids, nullptr, 0, count);
    } else if (request.lookup == Lookup::kMap) {  // those of trees are entered when they are looked up
      enter_nodes(MapCells{work->map + type.offset, work->base}, ids, count);
    }
    type.count = count;
    type.per_hop.push_back(count);
    type.known = count;
    if (!request.in_blocks) return;
    type.run_ends.push_back(count);
    type.known_run = 1;
  }
};

}  // namespace gnnscale
