// Drawing in bulk: from the columns of a hop to how many edges each gets, and from edges to their sources and ids. Each
// phase is called for every item in any order and by any number of threads, the next one when all calls have returned.
#pragma once

#include "bulk.h"
#include "parallel_draws.h"

namespace gnnscale {

// For every column: how many edges it gets.
struct CountEdges {
  Bulk bulk;
  BulkHop hop;

  GNNSCALE_HD void operator()(int64_t i) const {
    const int64_t node = column_at(bulk, hop.hop, i).node;
    hop.count[i] = 0;
    if (node < 0 || node >= bulk.graph.num_nodes) return;  // a seed that was noted
    const int64_t first = bulk.graph.colptr[node], last = bulk.graph.colptr[node + 1];
    if (first < 0 || last < first || last > bulk.graph.num_edges) {
      return atomic_lower(bulk.state.lowest(BulkState::kBadNode), static_cast<uint64_t>(node));
    }
    hop.first[i] = first;
    hop.degree[i] = last - first;
    hop.count[i] = pick_count(last - first, hop.fanout, bulk.replace);
  }
};

// For every batch and the end, after the sum over columns: where its edges begin, and whether there is room for all.
// Returns the number of edges, 0 if there is no room.
struct FindEdgeBegins {
  Bulk bulk;
  BulkHop hop;

  GNNSCALE_HD int64_t operator()(int64_t batch) const {
    const BulkState& state = bulk.state;
    // A hop that is skipped has no columns.
    const int64_t columns = *state.columns(hop.hop);
    state.edge_ptr(hop.hop)[batch] = columns == 0 ? 0 : hop.offset[state.column_ptr(hop.hop)[batch]];
    const int64_t total = hop.offset[columns], edges = total <= hop.edge_room ? total : 0;
    if (batch == state.batches) {
      *state.needed_edges(hop.hop) = total;
      *state.edges(hop.hop) = edges;
    }
    return edges;
  }
};

// Where an edge stands: column i's j-th of `count` out of `degree`, stored from `first` on.
struct BulkEdge {
  int64_t column, j, count;
  BulkColumn destination;
  int64_t first, degree;
};

GNNSCALE_HD BulkEdge edge_at(const Bulk& bulk, const BulkHop& hop, int64_t edge, int64_t column) {
  return {column,
          edge - hop.offset[column],
          hop.offset[column + 1] - hop.offset[column],
          column_at(bulk, hop.hop, column),
          hop.first[column],
          hop.degree[column]};
}

// For every edge: finds its column, of which it is the j-th edge, and makes draw j. Without replacement the draw may
// repeat an earlier one; ParallelDraws settles that.
struct DrawEdges {
  Bulk bulk;
  BulkHop hop;

  GNNSCALE_HD void operator()(int64_t e) const {
    const int64_t column = first_above(hop.offset, 1, *bulk.state.columns(hop.hop), e) - 1;
    const BulkEdge edge = edge_at(bulk, hop, e, column);
    hop.column[e] = static_cast<int32_t>(column);
    hop.draw[e] = edge.j;
    if (!pick_is_random(edge.degree, hop.fanout, bulk.replace)) return;
    const Counter counter = make_counter(edge.destination.node, 0, static_cast<int>(hop.hop), 0);
    const uint64_t key = static_cast<uint64_t>(bulk.state.key()[edge.destination.batch]);
    hop.draw[e] = draw_at(key, counter, edge.j, edge.count, edge.degree, bulk.replace);
  }
};

// The draws of edge e's column.
GNNSCALE_HD ParallelDraws draws_of(const BulkHop& hop, const BulkEdge& edge) {
  const int64_t first = hop.offset[edge.column];
  return {hop.draw + first, hop.earliest == nullptr ? nullptr : hop.earliest + 2 * first, edge.count, edge.degree};
}

// For every edge of a hop whose fanout exceeds kScannedFanout, without replacement.
struct TableDraws {
  Bulk bulk;
  BulkHop hop;

  GNNSCALE_HD void operator()(int64_t e) const {
    const BulkEdge edge = edge_at(bulk, hop, e, hop.column[e]);
    if (!pick_is_random(edge.degree, hop.fanout, false)) return;
    draws_of(hop, edge).add(edge.j);
  }
};

// The stored position of a drawn edge.
GNNSCALE_HD int64_t position_of(const Bulk& bulk, const BulkHop& hop, const BulkEdge& edge, int64_t e) {
  const bool settled = bulk.replace || !pick_is_random(edge.degree, hop.fanout, false);
  return edge.first + (settled ? hop.draw[e] : draws_of(hop, edge).picked(edge.j));
}

// The source of edge e, which is stored at `position`, written to the hop with its edge's id; -1, and the position
// noted, if that is no node.
GNNSCALE_HD int64_t read_source(const Bulk& bulk, const BulkHop& hop, const BulkEdges& stored, int64_t position,
                                int64_t e) {
  const int64_t node = stored.row[position];
  hop.source[e] = node;
  if (hop.edge_id != nullptr) {
    hop.edge_id[e] = stored.edge_id.table.num_tiers == 0 ? position : stored.edge_id[position];
  }
  if (node >= 0 && node < bulk.graph.num_nodes) return node;
  atomic_lower(bulk.state.lowest(BulkState::kBadEdge), static_cast<uint64_t>(position));
  return -1;
}

}  // namespace gnnscale
