// A batch on the CPU, from a request to arrays (FastSample, section 3.2, algorithm 1).
#pragma once

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "expansion_cpu.h"
#include "subgraph_cpu.h"

namespace gnnscale {

// Column `column`, or the first one after it that has edges, or a later one before that; many without edges are passed
// over together.
inline int64_t skip_empty(const int64_t* colptr, int64_t column, int64_t columns) {
  for (const int64_t many : {32, 8, 2}) {
    while (column + many <= columns && colptr[column] == colptr[column + many]) column += many;
  }
  return column;
}

// Writes below the sources the destination of each edge: the number of its column, within the hop where hops have
// columns of their own (layers).
inline void write_destinations(DrawnEdges& edges, bool layers) {
  edges.row.reserve(edges.count, 2 * edges.count + kAtOnce);
  int64_t* const col = edges.row.data() + edges.count;
  const int64_t* const colptr = edges.colptr.data();
  const auto fill = [&](int64_t first, int64_t end) {
    if (edges.count >= (edges.columns / 4)) {
      return fill_columns(colptr, first, end, col, [first](int64_t column) { return column - first; });
    }
    for (int64_t column = first; (column = skip_empty(colptr, column, end)) < end; ++column) {
      std::fill(col + colptr[column], col + colptr[column + 1], column - first);
    }
  };
  if (!layers) return fill(0, edges.columns);
  int64_t first = 0;
  for (const int64_t columns : edges.columns_per_hop) {
    fill(first, first + columns);
    first += columns;
  }
}

// The same for edges that were drawn by a relation with ActiveColumns: no other column is looked at.
inline void write_destinations(const Batch& batch, const Relation& relation, DrawnEdges& edges) {
  edges.row.reserve(edges.count, 2 * edges.count);
  int64_t* const col = edges.row.data() + edges.count;
  const int64_t* colptr = edges.colptr.data();
  int64_t first = 0;
  for (size_t hop = 0; hop < batch.active.size(); ++hop) {
    const ActiveColumns& active = batch.active[hop][relation.dst];
    const int64_t* const position = active.positions(relation.incoming);
    for (int64_t k = 0; k < active.count(relation.incoming); ++k) {
      std::fill(col + colptr[position[k]], col + colptr[position[k] + 1], first + position[k]);
    }
    colptr += edges.columns_per_hop[hop];
    if (!batch.request.layers) first += edges.columns_per_hop[hop];
  }
}

inline void run(Batch& batch) {
  for (int64_t hop = 0; hop < batch.request.hops; ++hop) {
    batch.begin_hop();
    const std::vector<Relation>& relations = batch.request.relations;
    for (size_t r = 0; r < relations.size(); ++r) {
      if (r + 1 < relations.size()) batch.prefetch_columns(relations[r + 1]);
      Expansion(batch, relations[r], hop).run();
    }
    batch.end_hop();
  }
  if (batch.request.induced) {
    if (batch.lookup == Lookup::kTrees) batch.enter_all_trees();
    for (const Relation& relation : batch.request.relations) Induction(batch, relation).run();
  } else if (batch.request.bidirectional) {
    std::vector<DrawnEdges> both;
    for (const Relation& relation : batch.request.relations) both.push_back(with_reverse(batch, relation));
    batch.edges = std::move(both);
  }
  batch.remember();
}

// What a batch returns: arrays, which the calling thread makes tensors of.
struct Outcome {
  std::vector<Nodes> nodes;
  std::vector<DrawnEdges> edges;
};

// The arrays of a batch, which keeps the counts.
inline Outcome taken(Batch& batch) {
  Outcome found;
  // One by one, for the batch still needs to know how many nodes it had.
  std::move(batch.nodes.begin(), batch.nodes.end(), std::back_inserter(found.nodes));
  found.edges = std::move(batch.edges);
  return found;
}

inline Outcome sample_whole(const Request& request, const std::vector<Seeds>& seeds) {
  Batch batch(request, seeds);
  run(batch);
  // The size of outputs was a guess: a small batch must not keep the memory of a large one.
  for (Nodes& nodes : batch.nodes) {
    nodes.id.fit(nodes.count);
    if (request.disjoint) nodes.tree.fit(nodes.count);
  }
  const bool drawn = !request.induced && !request.bidirectional;
  for (size_t r = 0; r < batch.edges.size(); ++r) {
    DrawnEdges& edges = batch.edges[r];
    if (request.with_col) {
      const bool sparse = drawn && request.relations[r].incoming >= 0;
      sparse ? write_destinations(batch, request.relations[r], edges) : write_destinations(edges, request.layers);
    }
    edges.row.fit(edges.count * (request.with_col ? 2 : 1));
    edges.colptr.fit(edges.columns + 1);
    if (request.with_edge_id) edges.id.fit(edges.count);
  }
  return taken(batch);
}

}  // namespace gnnscale
