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

// Items of FindHopBegins.
inline int64_t num_begins(const BulkSizes& of) { return std::max(of.groups(), of.segments()) + 1; }

// columns: the most that the hop may have.
template <typename Executor>
void run_hop(Executor& executor, const Bulk& bulk, const BulkHop& hop, int64_t columns) {
  const BulkState& state = bulk.state;
  executor.each(state.columns(hop.hop), columns, CountEdges{bulk, hop});
  executor.sum_before(hop.count, hop.offset, state.columns(hop.hop), columns);
  const int64_t* const edges = hop.offset + columns;  // where the number of all of them is
  executor.each(edges, hop.edge_room, DrawEdges{bulk, hop});
  if (hop.removed != nullptr) executor.each(state.columns(hop.hop), columns, DrawInTurn{bulk, hop});
  if (hop.earliest != nullptr) {
    executor.fill(hop.earliest, 2 * hop.edge_room);
    executor.each(edges, hop.edge_room, TableDraws{bulk, hop});
  }
  executor.each(edges, hop.edge_room, FindSources{bulk, hop});
  executor.sum_before(IsFresh{hop.slot, bulk.table.slots}, hop.rank, edges, hop.edge_room);
  executor.each(num_begins(state), FindHopBegins{bulk, hop});
  executor.each(state.numbered(hop.hop), hop.edge_room, NumberNodes{bulk, hop});
}

}  // namespace gnnscale
