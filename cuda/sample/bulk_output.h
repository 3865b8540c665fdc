// From hops to batches: what was drawn and numbered, copied to the buffers that all batches of a bulk share.
#pragma once

#include "bulk.h"

namespace gnnscale {

// The common buffers of all batches, and where in them each batch's part of a hop begins: [batches].
struct BulkPlaces {
  const int64_t *node, *column, *edge;
  const int64_t* first_edge;                                      // of each batch: [batches + 1]
  const int64_t* first_column;                                    // of each batch, its end included: [batches + 1]
  int64_t *out_node, *out_colptr, *out_edge_index, *out_edge_id;  // out_edge_id may be null
  bool with_col;
  float* out_weight;  // may be null
};

// For every node of a hop.
struct WriteNodes {
  Bulk bulk;
  int64_t hop;
  BulkPlaces places;

  GNNSCALE_HD void operator()(int64_t i) const {
    const int64_t* const begin = bulk.state.node_ptr(hop);
    const int64_t batch = batch_at(begin, bulk.state.batches, i);
    places.out_node[places.node[batch] + i - begin[batch]] = bulk.node[*bulk.state.node_base(hop) + i];
  }
};

// For every column of a hop.
struct WriteColumns {
  Bulk bulk;
  BulkHop hop;
  BulkPlaces places;

  GNNSCALE_HD void operator()(int64_t i) const {
    const int64_t* const begin = bulk.state.column_ptr(hop.hop);
    const int64_t batch = batch_at(begin, bulk.state.batches, i);
    places.out_colptr[places.column[batch] + i - begin[batch]] =
        places.edge[batch] - places.first_edge[batch] + hop.offset[i] - bulk.state.edge_ptr(hop.hop)[batch];
  }
};

// For every batch: the end of its columns.
struct WriteEnds {
  BulkPlaces places;

  GNNSCALE_HD void operator()(int64_t batch) const {
    places.out_colptr[places.first_column[batch + 1] - 1] = places.first_edge[batch + 1] - places.first_edge[batch];
  }
};

// For every edge of a hop.
struct WriteEdges {
  Bulk bulk;
  BulkHop hop;
  BulkPlaces places;

  GNNSCALE_HD void operator()(int64_t e) const {
    const BulkColumn column = column_at(bulk, hop.hop, hop.column[e]);
    const int64_t first = places.first_edge[column.batch], count = places.first_edge[column.batch + 1] - first;
    const int64_t at = places.edge[column.batch] + e - bulk.state.edge_ptr(hop.hop)[column.batch];
    int64_t* const rows = places.out_edge_index + (places.with_col ? first : 0);  // twice `first` in all
    rows[at] = bulk.table.slots == nullptr ? hop.slot[e] : static_cast<int64_t>(bulk.table.slots[hop.slot[e]].value);
    if (places.with_col) rows[at + count] = column.local;
    if (places.out_edge_id != nullptr) places.out_edge_id[at] = hop.edge_id[e];
    if (places.out_weight != nullptr) places.out_weight[at] = hop.weight[e];
  }
};

}  // namespace gnnscale
