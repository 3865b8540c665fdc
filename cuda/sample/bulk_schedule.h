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

// Hop 0 finds the seeds.
template <typename Executor>
void start_hops(Executor& on, const Bulk& bulk, const int64_t* seeds, int64_t num_seeds) {
  on.each(bulk.state.columns(0), num_seeds, CopyNodes{seeds, bulk.node});
  on.each(bulk.state.columns(0), num_seeds, NumberSeeds{bulk});
}

// columns: the most that the hop may have; earliest: the tensor of hop.earliest; every: where batches + 1 is stored.
template <typename Executor, typename Tensor>
void run_hop(Executor& on, const Bulk& bulk, const BulkHop& hop, const BulkEdges& stored, int64_t columns,
             Tensor& earliest, const int64_t* every) {
  const int64_t batches = bulk.state.batches;
  const BulkState& state = bulk.state;
  on.each(state.columns(hop.hop), columns, CountEdges{bulk, hop});
  on.sum_before(hop.count, hop.offset, state.columns(hop.hop), columns);
  on.each(every, batches + 1, PlaceEdges{bulk, hop});
  const int64_t* const edges = state.edges(hop.hop);
  on.each(edges, hop.edge_room, DrawEdges{bulk, hop});
  if (hop.earliest != nullptr) {
    on.fill(earliest);
    on.each(edges, hop.edge_room, TableDraws{bulk, hop});
  }
  on.each(edges, hop.edge_room, FindSources{bulk, hop, stored});
  on.each(edges, hop.edge_room, MarkFresh{bulk, hop});
  on.sum_before(hop.fresh, hop.rank, edges, hop.edge_room);
  on.each(every, batches + 1, PlaceNodes{bulk, hop});
  on.each(state.numbered(hop.hop), hop.edge_room, NumberNodes{bulk, hop});
}

}  // namespace gnnscale
