// Relabelling in bulk: nodes of batches to local ids, in order of first occurrence. Seeds and sources are entered into
// one hash table, where the value of a node falls to the first edge that found it; a prefix sum over the edges that
// were first then numbers the nodes.
#pragma once

#include "bulk.h"

namespace gnnscale {

// For every seed: it is a node of hop 0, whose number is the position of the first that is the same node.
struct NumberSeeds {
  Bulk bulk;
  const int64_t* seeds;

  GNNSCALE_HD void operator()(int64_t i) const {
    const int64_t node = bulk.node[i] = seeds[i];
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

// Enters the source of edge e, a node of a batch, or -1 for none: the value of its slot falls to the first edge that
// found it, unless the node was known.
GNNSCALE_HD void enter_source(const Bulk& bulk, const BulkHop& hop, int64_t batch, int64_t e, int64_t node) {
  hop.slot[e] = BulkTable::kNoSlot;
  if (node < 0) return;
  const uint32_t slot = bulk.table.claim(batch, node);
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

// For every batch and the end, after the sum over edges, and after it is known where its edges begin: where its new
// nodes and the next hop's columns begin, and whether there is room for all. `edges`: of the hop, 0 if there is no room
// for them.
struct FindNodeBegins {
  Bulk bulk;
  BulkHop hop;

  GNNSCALE_HD void operator()(int64_t batch, int64_t edges) const {
    const BulkState& state = bulk.state;
    const int64_t next = hop.hop + 1;
    const int64_t begin = edges == 0 ? 0 : hop.rank[state.edge_ptr(hop.hop)[batch]];
    int64_t columns = begin;
    for (int64_t h = 0; h < next && bulk.layers; ++h) columns += state.node_ptr(h)[batch];
    state.node_ptr(next)[batch] = begin;
    state.column_ptr(next)[batch] = columns;
    if (batch < state.batches) {
      const int64_t* const found = state.node_ptr(hop.hop) + batch;
      state.known(next)[batch] = bulk.separate ? 0 : state.known(hop.hop)[batch] + found[1] - found[0];
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
    const int64_t rank = hop.rank[e];
    if (hop.rank[e + 1] == rank) return;
    const BulkState& state = bulk.state;
    const int64_t next = hop.hop + 1;
    const int64_t batch = batch_at(state.edge_ptr(hop.hop), state.batches, e);
    bulk.node[*state.node_base(next) + rank] = hop.source[e];
    bulk.table.slots[hop.slot[e]].value =
        static_cast<uint64_t>(state.known(next)[batch] + rank - state.node_ptr(next)[batch]);
  }
};

}  // namespace gnnscale
