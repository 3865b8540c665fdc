// Relabelling in bulk: nodes of batches to local ids, in order of first occurrence. Seeds and sources are entered into
// one hash table, where the value of a node falls to the first edge that found it; a prefix sum over the edges that
// were first then numbers the nodes.
#pragma once

#include "bulk_drawing.h"

namespace gnnscale {

// For every seed: it is a node of hop 0, whose number is the position of the first that is the same node.
struct NumberSeeds {
  Bulk bulk;
  const int64_t* seeds;

  GNNSCALE_HD void operator()(int64_t i) const {
    const BulkState& state = bulk.state;
    const int64_t* const begin = state.node_ptr(0);
    const int64_t group = part_at(begin, state.groups(), i);
    const int64_t type = static_cast<uint32_t>(group) / static_cast<uint32_t>(state.batches);
    const int64_t batch = group - type * state.batches, local = i - begin[group], node = bulk.node[i] = seeds[i];
    if (bulk.tree != nullptr) {
      int64_t number = local;  // trees are numbered over the types
      for (int64_t of = batch; of < group; of += state.batches) number += begin[of + 1] - begin[of];
      bulk.tree[i] = static_cast<int32_t>(i);
      bulk.tree_number[i] = static_cast<int32_t>(number);
    }
    const int64_t* const first_node = state.first_node() + type;
    if (node < 0 || node >= first_node[1] - first_node[0]) {
      return atomic_lower(state.lowest(BulkState::kBadSeed), static_cast<uint64_t>(i));
    }
    const uint32_t slot = bulk.table.claim(bulk.tree == nullptr ? batch : i, first_node[0] + node);
    if (slot == BulkTable::kNoSlot) return atomic_lower(state.lowest(BulkState::kTableFull), 0);
    atomic_lower(bulk.table.slots[slot].value, static_cast<uint64_t>(local));
  }
};

// Enters the source of edge e, a node of type `type` in a batch or tree, or -1 for none: the value of its slot falls to
// the first edge that found it, unless the node was known.
GNNSCALE_HD void enter_source(const Bulk& bulk, const BulkHop& hop, int64_t of, int64_t type, int64_t e, int64_t node) {
  hop.slot[e] = BulkTable::kNoSlot;
  if (node < 0) return;
  const uint32_t slot = bulk.table.claim(of, bulk.state.first_node()[type] + node);
  hop.slot[e] = slot;
  if (slot == BulkTable::kNoSlot) return atomic_lower(bulk.state.lowest(BulkState::kTableFull), 0);
  atomic_lower(bulk.table.slots[slot].value, kNewNode + static_cast<uint64_t>(e));
}

// For every edge, when all sources are entered: 1 if it is the first to find its source, else 0.
struct IsFresh {
  const uint32_t* slot;          // [edges]
  const BulkTable::Slot* slots;  // the table's

  GNNSCALE_HD int32_t operator()(int64_t e) const {
    return slot[e] != BulkTable::kNoSlot && slots[slot[e]].value == kNewNode + static_cast<uint64_t>(e);
  }
};

// How many columns stand before those of a segment. nodes_before(group): how many nodes are expanded in the groups
// before it.
template <typename NodesBefore>
GNNSCALE_HD int64_t columns_before(const Bulk& bulk, int64_t segment, NodesBefore&& nodes_before) {
  const BulkState& state = bulk.state;
  const int64_t batches = state.batches;
  int64_t first = state.relations, end = first, relation = first, batch = 0;
  if (segment < state.segments()) {
    const BulkSegment of = segment_at(state, segment);
    relation = of.relation;
    batch = of.batch;
    first = bulk.relation[relation].first;
    end = first + bulk.relation[relation].siblings;
  }
  int64_t columns = 0;
  for (int64_t r = 0; r < end; ++r) {  // of earlier types all, of its own those before it
    const int64_t group = bulk.relation[r].dst * batches;
    const int64_t last = r < first ? batches : r < relation ? batch + 1 : batch;
    columns += nodes_before(group + last) - nodes_before(group);
  }
  return columns;
}

// For every segment or group, whichever are more, and the end, after the sums over columns and edges: where its edges,
// its new nodes and its columns in the next hop begin, and whether there is room for all.
struct FindHopBegins {
  Bulk bulk;
  BulkHop hop;

  GNNSCALE_HD void operator()(int64_t i) const {
    const BulkState& state = bulk.state;
    const int64_t next = hop.hop + 1, groups = state.groups(), segments = state.segments();
    if (i <= segments) {
      FindEdgeBegins{bulk, hop}(i);
      state.column_ptr(next)[i] = column_begin(i);
    }
    if (i <= groups) state.node_ptr(next)[i] = node_begin(i);
    if (i < groups) {
      const int64_t* const found = state.node_ptr(hop.hop) + i;
      state.known(next)[i] = bulk.separate ? 0 : state.known(hop.hop)[i] + found[1] - found[0];
    }
    if (i < groups || i < segments) return;
    const int64_t edges = edges_with_room(bulk, hop), nodes = node_begin(groups), columns = column_begin(segments);
    *state.needed_nodes(next) = nodes;
    *state.needed_columns(next) = columns;
    const bool fits = hop.offset[*state.columns(hop.hop)] == edges && nodes <= hop.node_room &&
                      columns <= hop.column_room && state.lowest(BulkState::kTableFull) != 0;
    if (!fits) state.word[BulkState::kStopped] = 1;
    if (state.word[BulkState::kStopped] != 0) return;
    *state.numbered(hop.hop) = edges;
    *state.columns(next) = columns;
  }

 private:
  GNNSCALE_HD int64_t node_begin(int64_t group) const {
    return edges_with_room(bulk, hop) == 0 ? 0 : hop.rank[edge_begin(bulk, hop, first_segment(bulk.state, group))];
  }

  GNNSCALE_HD int64_t column_begin(int64_t segment) const {
    return columns_before(bulk, segment, [&](int64_t group) {
      int64_t nodes = node_begin(group);
      const bool all = bulk.layers || hop.expands_all;
      for (int64_t found = 0; found <= hop.hop && all; ++found) nodes += bulk.state.node_ptr(found)[group];
      return nodes;
    });
  }
};

// For every edge that is the first to find its source: the source joins the next hop, with the next number.
struct NumberNodes {
  Bulk bulk;
  BulkHop hop;

  GNNSCALE_HD void operator()(int64_t e) const {
    const int64_t rank = hop.rank[e];
    if (hop.rank[e + 1] == rank) return;
    const BulkState& state = bulk.state;
    const int64_t next = hop.hop + 1;
    const auto [relation, batch] = segment_at(state, part_at(state.edge_ptr(hop.hop), state.segments(), e));
    const int64_t group = bulk.relation[relation].src * state.batches + batch;
    const int64_t at = *state.node_base(next) + rank;
    bulk.node[at] = hop.source[e];
    if (bulk.tree != nullptr) bulk.tree[at] = static_cast<int32_t>(column_at(bulk, hop.hop, hop.column[e]).tree);
    bulk.table.slots[hop.slot[e]].value =
        static_cast<uint64_t>(state.known(next)[group] + rank - state.node_ptr(next)[group]);
  }
};

}  // namespace gnnscale
