// The order in which a hop of a bulk is drawn and relabelled, over an executor (../executor.h).
#pragma once

#include "bulk_drawing.h"
#include "bulk_relabelling.h"

namespace gnnscale {

// For every edge: its source and id are read, and the source is entered.
struct FindSources {
  Bulk bulk;
  BulkHop hop;
  BulkEdges stored;

  GNNSCALE_HD void operator()(int64_t e) const {
    const BulkEdge edge = edge_at(bulk, hop, e, hop.column[e]);
    const int64_t position = position_of(bulk, hop, edge, e);
    enter_source(bulk, hop, edge.destination.batch, e, read_source(bulk, hop, stored, position, e));
  }
};

// For every batch and the end, after the sums over columns and edges: where its edges, its new nodes and the next hop's
// columns begin, and whether there is room for all.
struct FindHopBegins {
  Bulk bulk;
  BulkHop hop;

  GNNSCALE_HD void operator()(int64_t batch) const {
    FindNodeBegins{bulk, hop}(batch, FindEdgeBegins{bulk, hop}(batch));
  }
};

// columns: the most that the hop may have.
template <typename Executor>
void run_hop(Executor& executor, const Bulk& bulk, const BulkHop& hop, const BulkEdges& stored, int64_t columns) {
  const BulkState& state = bulk.state;
  executor.each(state.columns(hop.hop), columns, CountEdges{bulk, hop});
  executor.sum_before(hop.count, hop.offset, state.columns(hop.hop), columns);
  const int64_t* const edges = hop.offset + columns;  // where the number of all of them is
  executor.each(edges, hop.edge_room, DrawEdges{bulk, hop});
  if (hop.earliest != nullptr) {
    executor.fill(hop.earliest, 2 * hop.edge_room);
    executor.each(edges, hop.edge_room, TableDraws{bulk, hop});
  }
  executor.each(edges, hop.edge_room, FindSources{bulk, hop, stored});
  executor.sum_before(IsFresh{hop.slot, bulk.table.slots}, hop.rank, edges, hop.edge_room);
  executor.each(state.batches + 1, FindHopBegins{bulk, hop});
  executor.each(state.numbered(hop.hop), hop.edge_room, NumberNodes{bulk, hop});
}

}  // namespace gnnscale
