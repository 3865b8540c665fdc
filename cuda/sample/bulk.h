// Sampling k batches at once (FastSample, section 3.2, algorithm 1, for many threads): what all phases know, and the
// hash table that numbers nodes. The phases of a hop are in bulk_drawing.h and bulk_relabelling.h, their order is in
// bulk_schedule.h.
//
// The nodes that a hop finds, its columns and its edges lie batch-major in arrays of the hop's own; "position" is a
// place in them. Hop 0 finds the seeds.
#pragma once

#include <cstdint>

#include "../atomics.h"
#include "../macros.h"
#include "../mix.h"
#include "../pick.h"
#include "../tier.h"

namespace gnnscale {

// Batches and hops as numbers on the device; `offset` counts int64 words. Initial values are the host's, all other
// words are written by phases.
struct BulkState {
  // kBadSeed, kBadNode, kBadEdge: the least seed, node and edge that is malformed, as an unsigned number; all bits set
  // if none is. kTableFull: 0 if the table had no room, else all bits set. kStopped: 1 if a hop had no room; the later
  // ones are skipped then.
  enum Word : int64_t { kBadSeed, kBadNode, kBadEdge, kTableFull, kStopped, kWords };

  int64_t* word;
  int64_t batches, hops;

  GNNSCALE_HD uint64_t& lowest(Word name) const { return reinterpret_cast<uint64_t&>(word[name]); }
  GNNSCALE_HD int64_t* columns(int64_t hop) const { return word + kWords + hop; }    // to be expanded
  GNNSCALE_HD int64_t* edges(int64_t hop) const { return columns(hops + 1) + hop; }  // 0 if there is no room
  GNNSCALE_HD int64_t* numbered(int64_t hop) const { return edges(hops) + hop; }     // 0 if nodes have no room
  GNNSCALE_HD int64_t* needed_edges(int64_t hop) const { return numbered(hops) + hop; }
  GNNSCALE_HD int64_t* needed_nodes(int64_t hop) const { return needed_edges(hops) + hop; }
  GNNSCALE_HD int64_t* node_base(int64_t hop) const { return needed_nodes(hops + 1) + hop; }  // a hop's first node
  GNNSCALE_HD int64_t* key() const { return node_base(hops + 1); }
  // Where each batch's part of a hop begins, and then where the last one's ends: [batches + 1].
  GNNSCALE_HD int64_t* node_ptr(int64_t hop) const { return key() + batches + hop * (batches + 1); }
  GNNSCALE_HD int64_t* column_ptr(int64_t hop) const { return node_ptr(hops + 1) + hop * (batches + 1); }
  GNNSCALE_HD int64_t* edge_ptr(int64_t hop) const { return column_ptr(hops + 1) + hop * (batches + 1); }
  // How many nodes each batch found in earlier hops: [batches].
  GNNSCALE_HD int64_t* known(int64_t hop) const { return edge_ptr(hops) + hop * batches; }
  static int64_t size(int64_t batches, int64_t hops) {
    return kWords + 6 * hops + 3 + batches + (3 * hops + 2) * (batches + 1) + (hops + 1) * batches;
  }
};

constexpr int kNodeBits = 40;  // of a node's id, above which its batch's number is

// Nodes of batches to numbers. Keys are never removed, and the value of one only falls.
struct BulkTable {
  struct Slot {
    uint64_t key, value;
  };
  static constexpr uint64_t kFree = ~uint64_t{0};  // a key that no node has; all bytes equal, as is the greatest value
  static constexpr uint64_t kMaxProbes = 1 << 12;
  static constexpr uint32_t kNoSlot = ~uint32_t{0};

  Slot* slots;
  uint64_t mask;  // their number, a power of two of at most 2^31, less one

  // The slot of a node, new ones having the value kFree; kNoSlot if none was found nearby.
  GNNSCALE_HD uint32_t claim(int64_t batch, int64_t node) const {
    const uint64_t key = static_cast<uint64_t>(batch) << kNodeBits | static_cast<uint64_t>(node);
    const uint64_t mixed = mix64(key);
    uint64_t at = (mixed ^ mixed >> 32) & mask;
    for (uint64_t probe = 0; probe <= mask && probe < kMaxProbes; ++probe, at = (at + 1) & mask) {
      uint64_t seen = atomic_read(slots[at].key);
      if (seen == kFree) seen = atomic_replace(slots[at].key, kFree, key);
      if (seen == kFree || seen == key) return static_cast<uint32_t>(at);
    }
    return kNoSlot;
  }
};

constexpr int64_t kMaxBatches = (int64_t{1} << (64 - kNodeBits)) - 1;
constexpr uint64_t kNewNode = uint64_t{1} << 40;  // values from here on are edges of the hop; below, local ids

struct BulkGraph {
  const int64_t* colptr;
  int64_t num_nodes, num_edges;
};

// The stored edges.
struct BulkEdges {
  TieredIds row, edge_id;  // edge_id has no tiers if an edge's id is its position
};

struct Bulk {
  BulkGraph graph;
  bool replace, layers;
  bool separate;  // local ids begin at 0 in each hop, whose nodes may have been found before
  BulkState state;
  BulkTable table;
  int64_t* node;  // of all hops
};

// The arrays of a hop. Scratch is shared by all hops.
struct BulkHop {
  int64_t hop, fanout, edge_room, node_room;  // node_room: of the nodes it finds, hop + 1's
  int64_t* offset;                            // [columns + 1]: where each column's edges begin, and the last one's end
  int32_t* column;                            // [edges]: what each edge belongs to
  uint32_t* slot;                             // [edges]: its source in the table; its local id if there is none
  int64_t* edge_id;                           // [edges], or null
  float* weight;                              // [edges], or null
  int64_t* count;                             // scratch [columns]: edges of each column
  int64_t *first, *degree;                    // scratch [columns]: where its node's stored list begins, and its length
  int64_t* draw;       // scratch [edges]: what was drawn; without replacement, repeats are resolved later
  uint32_t* earliest;  // scratch [2 * edges], or null: a table per column, of draws to the first that drew them
  int64_t* source;     // scratch [edges]: node ids
  int32_t* rank;       // scratch [edges + 1]: how many before it are the first to find their sources
};

// A column: the batch, its number there, counted over all hops unless they have columns of their own, and the node.
struct BulkColumn {
  int64_t batch, local, node;
};

// The batch that has position `i`, given where each one's part begins.
GNNSCALE_HD int64_t batch_at(const int64_t* begin, int64_t batches, int64_t i) {
  return first_above(begin, 1, batches, i) - 1;
}

GNNSCALE_HD BulkColumn column_at(const Bulk& bulk, int64_t hop, int64_t i) {
  const BulkState& state = bulk.state;
  const int64_t* const begin = state.column_ptr(hop);
  const int64_t batch = batch_at(begin, state.batches, i);
  if (!bulk.layers) {
    return {batch, state.known(hop)[batch] + i - begin[batch], bulk.node[*state.node_base(hop) + i]};
  }
  const int64_t local = i - begin[batch];
  int64_t found = 0;  // the hop that found the node
  while (found < hop && state.known(found + 1)[batch] <= local) ++found;
  const int64_t at = state.node_ptr(found)[batch] + local - state.known(found)[batch];
  return {batch, local, bulk.node[*state.node_base(found) + at]};
}

}  // namespace gnnscale
