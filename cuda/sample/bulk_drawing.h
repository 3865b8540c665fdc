// Drawing in bulk: from the columns of a hop to how many edges each gets, and from edges to their sources and ids. Each
// phase is called for every item in any order and by any number of threads, the next one when all calls have returned.
#pragma once

#include "bulk.h"

namespace gnnscale {

constexpr int64_t kScannedFanout = 32;  // draws that are compared with each other one by one; of more, a table is made

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
struct PlaceEdges {
  Bulk bulk;
  BulkHop hop;

  GNNSCALE_HD void operator()(int64_t batch) const {
    const BulkState& state = bulk.state;
    // A hop that is skipped has no columns.
    const int64_t columns = *state.columns(hop.hop);
    state.edge_ptr(hop.hop)[batch] = columns == 0 ? 0 : hop.offset[state.column_ptr(hop.hop)[batch]];
    if (batch < state.batches) return;
    const int64_t total = hop.offset[columns];
    *state.needed_edges(hop.hop) = total;
    *state.edges(hop.hop) = total <= hop.edge_room ? total : 0;
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

// For every edge: its column, and draw j of that, which an earlier draw may have made before.
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
    const Philox block = draw_block(key, counter, static_cast<uint32_t>(edge.j / 2));
    hop.draw[e] =
        static_cast<int64_t>(pick(philox_draw(block, static_cast<int>(edge.j % 2)), static_cast<uint64_t>(edge.j),
                                  static_cast<uint64_t>(edge.count), static_cast<uint64_t>(edge.degree), bulk.replace,
                                  [](uint64_t) { return false; }));
  }
};

// A column's table of draws: 2 * count slots from twice its offset on.
struct DrawTable {
  const int64_t* draw;  // the column's
  uint32_t* slots;
  uint64_t size;
  static constexpr uint32_t kFree = ~uint32_t{0};

  GNNSCALE_HD DrawTable(const BulkHop& hop, const BulkEdge& edge)
      : draw(hop.draw + hop.offset[edge.column]),
        slots(hop.earliest + 2 * hop.offset[edge.column]),
        size(2 * static_cast<uint64_t>(edge.count)) {}

  GNNSCALE_HD uint64_t start(int64_t value) const { return bounded(mix64(static_cast<uint64_t>(value)), size); }
  GNNSCALE_HD uint64_t next(uint64_t at) const { return at + 1 == size ? 0 : at + 1; }

  // A slot's draw never changes its value, only becomes an earlier one of the same.
  GNNSCALE_HD void add(uint32_t j) const {
    for (uint64_t at = start(draw[j]);; at = next(at)) {
      const uint32_t seen = atomic_replace(slots[at], kFree, j);
      if (seen == kFree) return;
      if (draw[seen] == draw[j]) return atomic_lower(slots[at], j);
    }
  }
  GNNSCALE_HD uint32_t first_of(int64_t value) const {
    uint64_t at = start(value);
    while (draw[slots[at]] != value) at = next(at);
    return slots[at];
  }
};

// For every edge of a hop whose fanout exceeds kScannedFanout, without replacement.
struct TableDraws {
  Bulk bulk;
  BulkHop hop;

  GNNSCALE_HD void operator()(int64_t e) const {
    const BulkEdge edge = edge_at(bulk, hop, e, hop.column[e]);
    if (!pick_is_random(edge.degree, hop.fanout, false)) return;
    DrawTable(hop, edge).add(static_cast<uint32_t>(edge.j));
  }
};

// The picks of a hop whose draws are all known.
struct BulkPicks {
  const Bulk& bulk;
  const BulkHop& hop;

  // Floyd's method when all draws are known. Draw j is taken if an earlier one is the same, or if it is the last
  // position of an earlier step i that took that position because its own draw was taken. Steps only get smaller.
  GNNSCALE_HD int64_t picked(const BulkEdge& edge, int64_t e) const {
    const int64_t* const draw = hop.draw + (e - edge.j);
    if (bulk.replace || !pick_is_random(edge.degree, hop.fanout, false)) return draw[edge.j];
    const int64_t last = edge.degree - edge.count;  // of step 0
    for (int64_t step = edge.j;;) {
      if (is_repeated(edge, draw, step)) return last + edge.j;
      const int64_t before = draw[step] - last;
      if (before < 0 || before >= step) return draw[edge.j];
      step = before;
    }
  }

  GNNSCALE_HD bool is_repeated(const BulkEdge& edge, const int64_t* draw, int64_t j) const {
    if (hop.earliest != nullptr) return DrawTable(hop, edge).first_of(draw[j]) < j;
    for (int64_t i = 0; i < j; ++i) {
      if (draw[i] == draw[j]) return true;
    }
    return false;
  }
};

// The source of edge e, written to the hop with its edge's id; -1, and the position noted, if that is no node.
GNNSCALE_HD int64_t read_source(const Bulk& bulk, const BulkHop& hop, const BulkEdges& stored, const BulkEdge& edge,
                                int64_t e) {
  const int64_t position = edge.first + BulkPicks{bulk, hop}.picked(edge, e);
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
