// The phases of a hop, each to be called for every item in any order and by any number of threads, the next one when
// all calls have returned.
#pragma once

#include "bulk.h"

namespace gnnscale {

constexpr int64_t kScannedFanout = 32;  // draws that are compared with each other one by one; of more, a table is made

// For every seed: it is a node of hop 0.
struct CopySeeds {
  const int64_t* seeds;
  int64_t* node;

  GNNSCALE_HD void operator()(int64_t i) const { node[i] = seeds[i]; }
};

// For every seed: its number is the position of the first that is the same node.
struct NumberSeeds {
  Bulk bulk;

  GNNSCALE_HD void operator()(int64_t i) const {
    const int64_t node = bulk.node[i];
    if (node < 0 || node >= bulk.graph.num_nodes) {
      return atomic_lower(bulk.state.lowest(BulkState::kBadSeed), static_cast<uint64_t>(i));
    }
    const int64_t* const begin = bulk.state.node_ptr(0);
    const int64_t batch = batch_at(begin, bulk.state.batches, i);
    const uint32_t slot = bulk.table.claim(batch, node);
    if (slot == BulkTable::kNoSlot) return atomic_lower(bulk.state.lowest(BulkState::kTableFull), 0);
    atomic_lower(bulk.table.slots[slot].value, static_cast<uint64_t>(i - begin[batch]));
  }
};

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

// For every batch and the end, behind the sum over columns: where its edges begin, and whether there is room for all.
struct PlaceEdges {
  Bulk bulk;
  BulkHop hop;

  GNNSCALE_HD void operator()(int64_t batch) const {
    const BulkState& state = bulk.state;
    // The columns of a hop that does not take place were never placed.
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

// For every edge: the pick of its draw, its source and id, and the source's slot, whose value falls to the first edge
// that found it unless it was known.
struct FindSources {
  Bulk bulk;
  BulkHop hop;
  BulkEdges stored;

  GNNSCALE_HD void operator()(int64_t e) const {
    const BulkEdge edge = edge_at(bulk, hop, e, hop.column[e]);
    const int64_t position = edge.first + picked(edge, e);
    const int64_t node = stored.row[position];
    hop.source[e] = node;
    if (hop.edge_id != nullptr) {
      hop.edge_id[e] = stored.edge_id.table.num_tiers == 0 ? position : stored.edge_id[position];
    }
    hop.slot[e] = BulkTable::kNoSlot;
    if (node < 0 || node >= bulk.graph.num_nodes) {
      return atomic_lower(bulk.state.lowest(BulkState::kBadEdge), static_cast<uint64_t>(position));
    }
    const uint32_t slot = bulk.table.claim(edge.destination.batch, node);
    hop.slot[e] = slot;
    if (slot == BulkTable::kNoSlot) return atomic_lower(bulk.state.lowest(BulkState::kTableFull), 0);
    atomic_lower(bulk.table.slots[slot].value, kNewNode + static_cast<uint64_t>(e));
  }

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

// For every edge: whether it is the first to find its source.
struct MarkFresh {
  Bulk bulk;
  BulkHop hop;

  GNNSCALE_HD void operator()(int64_t e) const {
    const uint32_t slot = hop.slot[e];
    hop.fresh[e] = slot != BulkTable::kNoSlot && bulk.table.slots[slot].value == kNewNode + static_cast<uint64_t>(e);
  }
};

// For every batch and the end, behind the sum over edges: where its new nodes and the next hop's columns begin, and
// whether there is room for all.
struct PlaceNodes {
  Bulk bulk;
  BulkHop hop;

  GNNSCALE_HD void operator()(int64_t batch) const {
    const BulkState& state = bulk.state;
    const int64_t next = hop.hop + 1, edges = *state.edges(hop.hop);
    const int64_t begin = edges == 0 ? 0 : hop.rank[state.edge_ptr(hop.hop)[batch]];
    int64_t columns = begin;
    for (int64_t h = 0; h < next && bulk.layers; ++h) columns += state.node_ptr(h)[batch];
    state.node_ptr(next)[batch] = begin;
    state.column_ptr(next)[batch] = columns;
    if (batch < state.batches) {
      state.known(next)[batch] =
          state.known(hop.hop)[batch] + state.node_ptr(hop.hop)[batch + 1] - state.node_ptr(hop.hop)[batch];
      return;
    }
    *state.needed_nodes(next) = begin;
    if (*state.needed_edges(hop.hop) != edges || begin > hop.node_room || state.lowest(BulkState::kTableFull) == 0) {
      state.word[BulkState::kStopped] = 1;
    }
    if (state.word[BulkState::kStopped] != 0) return;
    *state.numbered(hop.hop) = edges;
    *state.columns(next) = columns;
  }
};

// For every edge that is the first to find its source: the source joins the next hop, with the next number.
struct NumberNodes {
  Bulk bulk;
  BulkHop hop;

  GNNSCALE_HD void operator()(int64_t e) const {
    if (hop.fresh[e] == 0) return;
    const BulkState& state = bulk.state;
    const int64_t next = hop.hop + 1, rank = hop.rank[e];
    const int64_t batch = batch_at(state.edge_ptr(hop.hop), state.batches, e);
    bulk.node[*state.node_base(next) + rank] = hop.source[e];
    bulk.table.slots[hop.slot[e]].value =
        static_cast<uint64_t>(state.known(next)[batch] + rank - state.node_ptr(next)[batch]);
  }
};

// The common buffers of all batches, and where in them each batch's part of a hop begins: [batches].
struct BulkPlaces {
  const int64_t *node, *column, *edge;
  const int64_t* first_edge;                                      // of each batch: [batches + 1]
  const int64_t* first_column;                                    // of each batch, its end included: [batches + 1]
  int64_t *out_node, *out_colptr, *out_edge_index, *out_edge_id;  // out_edge_id may be null
  bool with_col;
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
    rows[at] = static_cast<int64_t>(bulk.table.slots[hop.slot[e]].value);
    if (places.with_col) rows[at + count] = column.local;
    if (places.out_edge_id != nullptr) places.out_edge_id[at] = hop.edge_id[e];
  }
};

}  // namespace gnnscale
