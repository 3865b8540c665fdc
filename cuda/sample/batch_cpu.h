// A batch on the CPU: what is asked for, and the nodes and edges that were found so far.
#pragma once

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>
#include <vector>

#include "../memory/tensor.h"
#include "../memory/workspace.h"
#include "../relabel.h"
#include "picks_cpu.h"
#include "relation_cpu.h"

namespace gnnscale {

enum Subgraph : int64_t { kDirectional, kBidirectional, kInduced };

struct Request {
  std::vector<Relation> relations;
  std::vector<int64_t> sizes;      // nodes of each type
  std::vector<int64_t> seed_time;  // of each tree; empty without times
  int64_t hops;
  uint64_t key;
  bool replace, disjoint, last, layers, with_edge_id, with_col;
  bool in_table;  // where trees are not disjoint: nodes are relabelled by a table, not by the map
  Subgraph subgraph;
  int64_t threads;
};

struct Seeds {
  const void* ids;
  bool wide;  // int64, else int32
  int64_t count;
};

// The nodes of a type that were found; [frontier, known) are expanded in the hop at hand.
struct Nodes {
  PooledArray<int64_t> id, tree;  // tree: where trees are disjoint
  int64_t count = 0, frontier = 0, known = 0;
  int64_t offset = 0;  // of the type's ids among those of all types
  std::vector<int64_t> per_hop;
};

// The edges of a relation that were drawn, as CSC with sources in local ids.
struct Edges {
  PooledArray<int64_t> colptr, row, id;
  int64_t count = 0, columns = 0;
  std::vector<int64_t> per_hop, columns_per_hop;
};

// A task's own buffers: the picked positions of the block at hand and of the one before.
struct Scratch {
  Picker picker;
  std::vector<int64_t> positions[2], excluded;
};

constexpr int64_t kSeedsAhead = 32;   // how far ahead the relabel map is prefetched for seeds
constexpr int64_t kEdgesAhead = 128;  // and for sources of edges

struct Batch {
  const Request& request;
  std::vector<Nodes> nodes;
  std::vector<Edges> edges;
  WorkspaceLease work;
  Scratch scratch;

  Batch(const Request& asked, const std::vector<Seeds>& seeds)
      : request(asked),
        nodes(asked.sizes.size()),
        edges(asked.relations.size()),
        work(asked.disjoint || asked.in_table ? 0
                                              : std::accumulate(asked.sizes.begin(), asked.sizes.end(), int64_t{0})) {
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
    int64_t tree = 0;
    each_type([&](size_t t, const auto* ids) { add_seeds(nodes[t], ids, seeds[t].count, tree); });
  }
  ~Batch() {  // also when a hop threw: cells above the base may have been written
    int64_t most = 0;
    for (const Nodes& type : nodes) most = std::max(most, type.count);
    if (!request.disjoint && !request.in_table) work->base += static_cast<uint32_t>(most);
  }

  void end_hop() {
    for (Nodes& type : nodes) {
      type.per_hop.push_back(type.count - type.known);
      if (!request.layers) type.frontier = type.known;
      type.known = type.count;
    }
  }

  // The room that outputs took, as a guess for the next batch.
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
      offset += request.sizes[t];
      most = std::max(most, request.sizes[t] + seeds[t].count);
      const int64_t room = std::max(seeds[t].count, work->last_nodes[t]);
      nodes[t].id.reserve(0, room);
      if (request.disjoint) nodes[t].tree.reserve(0, room);
    }
    for (size_t r = 0; r < edges.size(); ++r) {
      edges[r].row.reserve(0, work->last_edges[r] * (request.with_col ? 2 : 1));
      if (request.with_edge_id) edges[r].id.reserve(0, work->last_edges[r]);
      edges[r].colptr.reserve(0, work->last_columns[r] + 1);
      edges[r].colptr[0] = 0;
    }
    if (request.disjoint) {
      work->trees.start();
    } else if (request.in_table) {
      work->nodes.start();
    } else {
      work->prepare(offset, most);
    }
  }

  template <typename Seed>
  void add_seeds(Nodes& type, const Seed* seeds, int64_t count, int64_t& tree) {
    if (request.disjoint) work->trees.reserve(count);
    if (request.in_table) work->nodes.reserve(count);
    // A repeated seed keeps its row; the map leads to its first occurrence.
    for (; type.count < count; ++type.count) {
      const int64_t node = static_cast<int64_t>(seeds[type.count]);
      type.id[type.count] = node;
      const uint32_t next = static_cast<uint32_t>(type.count);
      if (request.disjoint) {
        type.tree[type.count] = tree;
        work->trees.view().add(type.offset + node, static_cast<uint32_t>(tree++), next);
        work->trees.added(1, next + 1);
        continue;
      }
      if (request.in_table) {
        const bool found = work->nodes.view().add(type.offset + node, 0, next) < next;
        work->nodes.added(!found, next + 1);
        continue;
      }
      if (type.count + kSeedsAhead < count) {
        GNNSCALE_PREFETCH_WRITE(work->map + type.offset + static_cast<int64_t>(seeds[type.count + kSeedsAhead]));
      }
      uint32_t& cell = work->map[type.offset + node];
      if (local_id(cell, work->base) >= static_cast<uint64_t>(type.count)) {
        cell = work->base + static_cast<uint32_t>(type.count);
      }
    }
    type.per_hop.push_back(count);
    type.known = count;
  }
};

// One relation of a batch, from the nodes of its source type to those of its destination type.
struct Pass {
  Batch& batch;
  const Relation& relation;
  Nodes &sources, &destinations;
  Edges& out;
  std::atomic<int64_t> corrupt{-1};  // the node or position at which the relation is malformed

  Pass(Batch& owner, const Relation& of)
      : batch(owner),
        relation(of),
        sources(owner.nodes[of.src]),
        destinations(owner.nodes[of.dst]),
        out(owner.edges[of.number]) {}

  // Where the stored list of a frontier node lies; an empty one, and the node in corrupt, if that cannot be.
  std::pair<int64_t, int64_t> stored(int64_t node) {
    const int64_t first = relation.colptr[node], last = relation.colptr[node + 1];
    if (first >= 0 && last >= first && last <= relation.num_edges) return {first, last};
    corrupt.store(node);
    return {0, 0};
  }

  // The time of the tree of a node of the destination type.
  int64_t seed_time(int64_t node) const {
    return batch.request.seed_time.empty() ? 0 : batch.request.seed_time[static_cast<size_t>(destinations.tree[node])];
  }

  void check_pointers() const {
    const int64_t node = corrupt.load();
    if (node < 0) return;
    STD_TORCH_CHECK(false, "the graph is malformed: colptr[", node, "] = ", relation.colptr[node], ", colptr[",
                    node + 1, "] = ", relation.colptr[node + 1], " with ", relation.num_edges, " edges");
  }

  void check_rows() const {
    const int64_t position = corrupt.load();
    if (position < 0) return;
    STD_TORCH_CHECK(false, "the graph is malformed: row[", position, "] = ", relation.id_at(relation, position),
                    " in a graph of ", relation.num_src, " nodes");
  }
};

}  // namespace gnnscale
