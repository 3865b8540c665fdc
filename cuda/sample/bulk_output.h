// From hops to batches: what was drawn and numbered, copied to the buffers that all batches of a bulk share.
#pragma once

#include "bulk.h"

namespace gnnscale {

// Nodes, columns or edges of some hops, which lie part after part (groups or segments) in each hop, and in the common
// buffers hop after hop of each part.
struct BulkLists {
  const int64_t* begin;  // where each part of the first hop begins, and where the last one ends: [parts + 1]
  int64_t stride;        // from there to the same of the next hop
  int64_t hops, parts;

  GNNSCALE_HD const int64_t* of(int64_t hop) const { return begin + hop * stride; }
  GNNSCALE_HD int64_t all() const { return place(0, parts); }

  // Where a part of a hop begins in the common buffers; for the hop after the last one, where its last hop's ends.
  GNNSCALE_HD int64_t place(int64_t hop, int64_t part) const {
    int64_t items = 0;
    for (int64_t h = 0; h < hops; ++h) items += of(h)[h < hop ? part + 1 : part];
    return items;
  }

  struct Item {
    int64_t hop, position;
  };
  // The item that is number i if hops are counted one after the other; beyond them: hop is `hops`.
  GNNSCALE_HD Item item(int64_t i) const {
    int64_t hop = 0;
    for (; hop < hops && i >= of(hop)[parts]; ++hop) i -= of(hop)[parts];
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
  int64_t *node, *colptr, *edge_index, *edge_id, *tree;  // the last two may be null
  float* weight;                                         // may be null
  bool with_col;
  int64_t first_hop, hops;  // whose columns and edges are copied
  BulkArrays arrays[kMaxHops];

  GNNSCALE_HD BulkLists lists(const int64_t* begin, int64_t hops, int64_t parts) const {
    return {begin, bulk.state.stride(), hops, parts};
  }
  GNNSCALE_HD BulkLists nodes() const {
    return lists(bulk.state.node_ptr(0), bulk.state.hops + 1, bulk.state.groups());
  }
  GNNSCALE_HD BulkLists columns() const { return lists(bulk.state.column_ptr(first_hop), hops, bulk.state.segments()); }
  GNNSCALE_HD BulkLists edges() const { return lists(bulk.state.edge_ptr(first_hop), hops, bulk.state.segments()); }
};

// For every node, column and edge of all hops, one after the other: copies it.
struct WriteBatches {
  BulkBuffers to;
  int64_t nodes, columns;

  GNNSCALE_HD void operator()(int64_t i) const {
    if (i < nodes) return write_node(i);
    if (i -= nodes; i < columns) return write_column(i);
    write_edge(i - columns);
  }

 private:
  // And the number of its tree.
  GNNSCALE_HD void write_node(int64_t i) const {
    const BulkLists lists = to.nodes();
    const auto [hop, position] = lists.item(i);
    const int64_t* const begin = lists.of(hop);
    const int64_t group = part_at(begin, lists.parts, position);
    const int64_t at = lists.place(hop, group) + position - begin[group];
    const int64_t from = *to.bulk.state.node_base(hop) + position;
    to.node[at] = to.bulk.node[from];
    if (to.tree != nullptr) to.tree[at] = to.bulk.tree_number[to.bulk.tree[from]];
  }

  // Where the edges of a column begin; after all columns, for every segment: where those of its last column end.
  GNNSCALE_HD void write_column(int64_t i) const {
    const BulkLists lists = to.columns(), edges = to.edges();
    const auto [hop, position] = lists.item(i);
    const bool is_end = hop == lists.hops;
    const int64_t segment = is_end ? position : part_at(lists.of(hop), lists.parts, position);
    // A segment has one pointer more than columns.
    const int64_t at = lists.place(hop, segment) + segment;
    const int64_t edge = edges.place(hop, segment) - edges.place(0, segment);
    if (is_end) {
      to.colptr[at] = edge;
    } else {
      to.colptr[at + position - lists.of(hop)[segment]] =
          edge + to.arrays[hop].offset[position] - edges.of(hop)[segment];
    }
  }

  GNNSCALE_HD void write_edge(int64_t i) const {
    const BulkLists edges = to.edges();
    const auto [hop, position] = edges.item(i);
    const BulkArrays& from = to.arrays[hop];
    const int64_t segment = part_at(edges.of(hop), edges.parts, position);
    const int64_t first = edges.place(0, segment), count = edges.place(edges.hops, segment) - first;
    const int64_t at = edges.place(hop, segment) + position - edges.of(hop)[segment];
    int64_t* const rows = to.edge_index + (to.with_col ? first : 0);  // twice `first` in all
    const BulkTable::Slot* const slots = to.bulk.table.slots;
    const uint32_t slot = from.slot[position];
    rows[at] = slots == nullptr ? slot : static_cast<int64_t>(slots[slot].value);
    if (to.with_col) rows[at + count] = column_at(to.bulk, to.first_hop + hop, from.column[position]).local;
    if (to.edge_id != nullptr) to.edge_id[at] = from.edge_id[position];
    if (to.weight != nullptr) to.weight[at] = from.weight[position];
  }
};

}  // namespace gnnscale
