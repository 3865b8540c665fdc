// The order in which a hop of a bulk is drawn and relabelled, over an executor (../executor.h).
#pragma once

#include <algorithm>

#include "bulk_drawing.h"
#include "bulk_relabelling.h"

namespace gnnscale {

// For every edge: its source and id are read, and the source is entered.
struct FindSources {
  Bulk bulk;
  BulkHop hop;

  GNNSCALE_HD void operator()(int64_t e) const {
    const BulkEdge edge = edge_at(bulk, hop, e, hop.column[e]);
    const BulkColumn& to = edge.destination;
    const BulkRelation& relation = bulk.relation[to.relation];
    const int64_t node = read_source(bulk, hop, relation, position_of(bulk, hop, edge, e), e);
    enter_source(bulk, hop, bulk.tree == nullptr ? to.batch : to.tree, relation.src, e, node);
  }
};

// For every seed, and for every column of the first hop: numbers the seed, and counts the column's edges. Seeds are
// read where they are given, for they may not be nodes of the bulk yet.
struct BeginBulk {
  NumberSeeds number;
  CountEdges count;  // its bulk has the seeds for nodes
  int64_t num_seeds;

  GNNSCALE_HD void operator()(int64_t i) const {
    if (i < num_seeds) number(i);
    if (i < *count.bulk.state.columns(0)) count(i);
  }
};

// Numbers `num_seeds` seeds, and counts the edges of the first hop's columns, of which there are at most `columns`.
template <typename Executor>
void begin_bulk(Executor& executor, const Bulk& bulk, const BulkHop& first, const int64_t* seeds, int64_t num_seeds,
                int64_t columns) {
  Bulk of_seeds = bulk;
  of_seeds.node = const_cast<int64_t*>(seeds);
  const NumberSeeds number{bulk, seeds};
  executor.each(std::max(num_seeds, columns), BeginBulk{number, CountEdges{of_seeds, first}, num_seeds});
}

// Items of FindHopBegins.
inline int64_t num_begins(const BulkSizes& of) { return std::max(of.groups(), of.segments()) + 1; }

// columns: the most that the hop may have. begin_bulk() has counted the edges of the first hop's.
template <typename Executor>
void run_hop(Executor& executor, const Bulk& bulk, const BulkHop& hop, int64_t columns) {
  const BulkState& state = bulk.state;
  if (hop.hop > 0) executor.each(state.columns(hop.hop), columns, CountEdges{bulk, hop});
  executor.sum_before(hop.count, hop.offset, state.columns(hop.hop), columns);
  const int64_t* const edges = hop.offset + columns;  // where the number of all of them is
  if (hop.removed != nullptr) {
    executor.each(edges, hop.edge_room, DrawEdgesAndColumns{{bulk, hop}, {bulk, hop}});
  } else {
    executor.each(edges, hop.edge_room, DrawEdges{bulk, hop});
  }
  executor.each(edges, hop.edge_room, FindSources{bulk, hop});
  executor.sum_before(IsFresh{hop.slot, bulk.table.slots}, hop.rank, edges, hop.edge_room);
  executor.each(num_begins(state), FindHopBegins{bulk, hop});
  executor.each(state.numbered(hop.hop), hop.edge_room, NumberNodes{bulk, hop});
}

}  // namespace gnnscale
