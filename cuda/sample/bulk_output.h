// From hops to batches: what was drawn and numbered, copied to the buffers that all batches of a bulk share.
#pragma once

#include "bulk.h"

namespace gnnscale {

// Nodes, columns or edges of some hops, which lie batch-major in each hop, and batch by batch in the common buffers.
struct BulkLists {
  const int64_t* begin;  // [hops, batches + 1]: where each batch's part of a hop begins, and where the last one's ends
  int64_t hops, batches;

  GNNSCALE_HD const int64_t* of(int64_t hop) const { return begin + hop * (batches + 1); }
  GNNSCALE_HD int64_t all() const { return place(0, batches); }

  // Where a batch's part of a hop begins in the common buffers; for the hop after the last one, where its last part
  // ends.
  GNNSCALE_HD int64_t place(int64_t hop, int64_t batch) const {
    int64_t items = 0;
    for (int64_t h = 0; h < hops; ++h) items += of(h)[h < hop ? batch + 1 : batch];
    return items;
  }

  struct Item {
    int64_t hop, position;
  };
  // The item that is number i if hops are counted one after the other; beyond them: hop is `hops`.
  GNNSCALE_HD Item item(int64_t i) const {
    int64_t hop = 0;
    for (; hop < hops && i >= of(hop)[batches]; ++hop) i -= of(hop)[batches];
    return {hop, i};
  }
};

// The arrays of a hop that are copied; see BulkHop.
struct BulkArrays {
  const int64_t* offset;
  const int32_t* column;
  const uint32_t* slot;
  const int64_t* edge_id;
  const float* weight;
};

// The common buffers of all batches, and what is copied to them.
struct BulkBuffers {
  Bulk bulk;
  int64_t *node, *colptr, *edge_index, *edge_id;  // edge_id may be null
  float* weight;                                  // may be null
  bool with_col;
  BulkArrays arrays[kMaxHops];

  GNNSCALE_HD BulkLists nodes() const { return {bulk.state.node_ptr(0), bulk.state.hops + 1, bulk.state.batches}; }
  GNNSCALE_HD BulkLists columns() const { return {bulk.state.column_ptr(0), bulk.state.hops, bulk.state.batches}; }
  GNNSCALE_HD BulkLists edges() const { return {bulk.state.edge_ptr(0), bulk.state.hops, bulk.state.batches}; }
};

// For every node of all hops: copies it.
struct WriteNodes {
  BulkBuffers to;

  GNNSCALE_HD void operator()(int64_t i) const {
    const BulkLists nodes = to.nodes();
    const auto [hop, position] = nodes.item(i);
    const int64_t* const begin = nodes.of(hop);
    const int64_t batch = batch_at(begin, nodes.batches, position);
    to.node[nodes.place(hop, batch) + position - begin[batch]] = to.bulk.node[*to.bulk.state.node_base(hop) + position];
  }
};

// For every column of all hops: copies where its edges begin. Then, for every batch: where those of its last column
// end.
struct WriteColumns {
  BulkBuffers to;

  GNNSCALE_HD void operator()(int64_t i) const {
    const BulkLists columns = to.columns(), edges = to.edges();
    const auto [hop, position] = columns.item(i);
    const bool is_end = hop == columns.hops;
    const int64_t batch = is_end ? position : batch_at(columns.of(hop), columns.batches, position);
    // A batch has one pointer more than columns.
    const int64_t at = columns.place(hop, batch) + batch, edge = edges.place(hop, batch) - edges.place(0, batch);
    if (is_end) {
      to.colptr[at] = edge;
    } else {
      to.colptr[at + position - columns.of(hop)[batch]] = edge + to.arrays[hop].offset[position] - edges.of(hop)[batch];
    }
  }
};

// For every edge of all hops: copies it.
struct WriteEdges {
  BulkBuffers to;

  GNNSCALE_HD void operator()(int64_t i) const {
    const BulkLists edges = to.edges();
    const auto [hop, position] = edges.item(i);
    const BulkArrays& from = to.arrays[hop];
    const BulkColumn column = column_at(to.bulk, hop, from.column[position]);
    const int64_t first = edges.place(0, column.batch), count = edges.place(edges.hops, column.batch) - first;
    const int64_t at = edges.place(hop, column.batch) + position - edges.of(hop)[column.batch];
    int64_t* const rows = to.edge_index + (to.with_col ? first : 0);  // twice `first` in all
    const BulkTable::Slot* const slots = to.bulk.table.slots;
    const uint32_t slot = from.slot[position];
    rows[at] = slots == nullptr ? slot : static_cast<int64_t>(slots[slot].value);
    if (to.with_col) rows[at + count] = column.local;
    if (to.edge_id != nullptr) to.edge_id[at] = from.edge_id[position];
    if (to.weight != nullptr) to.weight[at] = from.weight[position];
  }
};

}  // namespace gnnscale
