// Sampling k batches at once (FastSample, section 3.2, algorithm 1, for many threads): what all phases know, and the
// hash table that numbers nodes. The phases of a hop are in bulk_drawing.h and bulk_relabelling.h, their order is in
// bulk_schedule.h.
//
// The relations of a graph stand by the node type of their sources. What a hop draws lies in segments, one for each
// relation and batch; what it finds lies in groups, one for each node type and batch:
//
//     segments    type 0: batch 0, its relations; batch 1, its relations; ...   type 1: batch 0, its relations; ...
//     groups      type 0: batch 0;                batch 1;                ...   type 1: batch 0;                ...
//
// So the edges that find the nodes of a group stand together, in the order in which a single batch draws them. Without
// types both are the batches. "Position" is a place in the arrays of a hop's nodes, columns or edges. Hop 0 finds the
// seeds.
#pragma once

#include <cstdint>

#include "../atomics.h"
#include "../macros.h"
#include "../mix.h"
#include "../pick.h"
#include "../tier.h"

namespace gnnscale {

// The stored edges of a relation.
struct BulkRelation {
  const int64_t* colptr;
  int64_t num_dst, num_src, num_edges;
  TieredIds row, edge_id;   // edge_id has no tiers if an edge's id is its position
  TieredIds weight, time;   // no tiers if edges have none; see torch_gnnscale.ops.relations
  int32_t src, dst;         // its node types
  int32_t number;           // of its draws
  int32_t first, siblings;  // the first of the relations that have its type of sources, and how many these are

  GNNSCALE_HD bool has_weights() const { return weight.table.num_tiers > 0; }
  GNNSCALE_HD bool has_times() const { return time.table.num_tiers > 0; }
};

// How much there is of everything.
struct BulkSizes {
  int64_t batches, hops, types = 1, relations = 1;

  GNNSCALE_HD int64_t groups() const { return types * batches; }
  GNNSCALE_HD int64_t segments() const { return relations * batches; }
  // Words from a hop's node_ptr to the next hop's.
  GNNSCALE_HD int64_t stride() const { return 2 * (groups() + segments()) + 3; }
};

// Batches and hops as numbers on the device; `offset` counts int64 words. Those before edge_ptr(0) are the host's at
// first, all other words are written by phases.
struct BulkState : BulkSizes {
  // kBadSeed, kBadNode, kBadEdge: the least seed, node and edge that is malformed, as an unsigned number, which of a
  // node or an edge begins with the place of its relation; all bits set if none is. kTableFull: 0 if the table had no
  // room, else all bits set. kStopped: 1 if a hop had no room; the later ones are skipped then.
  enum Word : int64_t { kBadSeed, kBadNode, kBadEdge, kTableFull, kStopped, kWords };

  int64_t* word;

  GNNSCALE_HD uint64_t& lowest(Word name) const { return reinterpret_cast<uint64_t&>(word[name]); }
  static constexpr int kPositionBits = 53;
  // Notes a malformed node (kBadNode) or the position of a malformed edge (kBadEdge) of a relation.
  GNNSCALE_HD void note(Word name, int64_t relation, int64_t position) const {
    atomic_lower(lowest(name), static_cast<uint64_t>(relation << kPositionBits | position));
  }
  GNNSCALE_HD int64_t* columns(int64_t hop) const { return word + kWords + hop; }    // to be expanded
  GNNSCALE_HD int64_t* edges(int64_t hop) const { return columns(hops + 1) + hop; }  // 0 if there is no room
  GNNSCALE_HD int64_t* numbered(int64_t hop) const { return edges(hops) + hop; }     // 0 if nodes have no room
  GNNSCALE_HD int64_t* needed_edges(int64_t hop) const { return numbered(hops) + hop; }
  GNNSCALE_HD int64_t* needed_nodes(int64_t hop) const { return needed_edges(hops) + hop; }
  GNNSCALE_HD int64_t* needed_columns(int64_t hop) const { return needed_nodes(hops + 1) + hop; }
  GNNSCALE_HD int64_t* needed_excluded(int64_t hop) const { return needed_columns(hops + 1) + hop; }
  GNNSCALE_HD int64_t* node_base(int64_t hop) const { return needed_excluded(hops + 1) + hop; }  // a hop's first node
  GNNSCALE_HD int64_t* key() const { return node_base(hops + 1); }
  GNNSCALE_HD int64_t* fanout(int64_t relation) const { return key() + batches + relation * hops; }  // [hops]
  // The first relation, and the number of nodes in all, of earlier types: [types + 1].
  GNNSCALE_HD int64_t* first_relation() const { return fanout(relations); }
  GNNSCALE_HD int64_t* first_node() const { return first_relation() + types + 1; }
  // Where the excluded pairs of each segment begin, and the last one's end: [segments + 1].
  GNNSCALE_HD int64_t* exclude_ptr() const { return first_node() + types + 1; }
  // Where each group's part of a hop's nodes begins, and then where the last one's ends: [groups + 1].
  GNNSCALE_HD int64_t* node_ptr(int64_t hop) const { return exclude_ptr() + segments() + 1 + hop * stride(); }
  // How many nodes each group has of earlier hops: [groups].
  GNNSCALE_HD int64_t* known(int64_t hop) const { return node_ptr(hop) + groups() + 1; }
  // The same as node_ptr for each segment's columns and edges: [segments + 1].
  GNNSCALE_HD int64_t* column_ptr(int64_t hop) const { return known(hop) + groups(); }
  GNNSCALE_HD int64_t* edge_ptr(int64_t hop) const { return column_ptr(hop) + segments() + 1; }

  // How many words there are, and how many are the host's.
  static int64_t size(const BulkSizes& of) { return first_of_hops(of) + (of.hops + 1) * of.stride(); }
  static int64_t given(const BulkSizes& of) { return first_of_hops(of) + 2 * of.groups() + of.segments() + 2; }

 private:
  static int64_t first_of_hops(const BulkSizes& of) {
    return kWords + 8 * of.hops + 5 + of.batches + of.relations * of.hops + 2 * (of.types + 1) + of.segments() + 1;
  }
};

constexpr int kNodeBits = 40;  // of a node's number, above which that of its batch or tree is

// Nodes of batches, or of trees, to numbers. Keys are never removed, and the value of one only falls.
struct BulkTable {
  struct Slot {
    uint64_t key, value;
  };
  static constexpr uint64_t kFree = ~uint64_t{0};  // a key that no node has; all bytes equal, as is the greatest value
  static constexpr uint64_t kMaxProbes = 1 << 12;
  static constexpr uint32_t kNoSlot = ~uint32_t{0};

  Slot* slots;
  uint64_t mask;  // their number, a power of two of at most 2^31, less one

  // The slot of a node, new ones having the value kFree; kNoSlot if none was found nearby. `of`: its batch or tree.
  GNNSCALE_HD uint32_t claim(int64_t of, int64_t node) const {
    const uint64_t key = key_of(of, node);
    uint64_t at = start(key);
    for (uint64_t probe = 0; probe <= mask && probe < kMaxProbes; ++probe, at = (at + 1) & mask) {
      uint64_t seen = atomic_read(slots[at].key);
      if (seen == kFree) seen = atomic_replace(slots[at].key, kFree, key);
      if (seen == kFree || seen == key) return static_cast<uint32_t>(at);
    }
    return kNoSlot;
  }

  // The slot of a node that was entered; kNoSlot of others.
  GNNSCALE_HD uint32_t find(int64_t of, int64_t node) const {
    const uint64_t key = key_of(of, node);
    uint64_t at = start(key);
    for (uint64_t probe = 0; probe <= mask && probe < kMaxProbes; ++probe, at = (at + 1) & mask) {
      if (slots[at].key == key) return static_cast<uint32_t>(at);
      if (slots[at].key == kFree) return kNoSlot;
    }
    return kNoSlot;
  }

 private:
  static GNNSCALE_HD uint64_t key_of(int64_t of, int64_t node) {
    return static_cast<uint64_t>(of) << kNodeBits | static_cast<uint64_t>(node);
  }
  GNNSCALE_HD uint64_t start(uint64_t key) const {
    const uint64_t mixed = mix64(key);
    return (mixed ^ mixed >> 32) & mask;
  }
};

constexpr int64_t kMaxBatches = (int64_t{1} << (64 - kNodeBits)) - 1;  // or trees
constexpr int64_t kMaxNodes = int64_t{1} << kNodeBits;
constexpr uint64_t kNewNode = uint64_t{1} << 40;  // values from here on are edges of the hop; below, local ids

struct Bulk {
  const BulkRelation* relation;  // [relations]
  bool replace, layers, last;
  bool separate;  // local ids begin at 0 in each hop, whose nodes may have been found before
  BulkState state;
  BulkTable table;
  int64_t* node;                     // of all hops
  int32_t* tree;                     // of all hops: the seed of each node's tree; null unless trees are disjoint
  int32_t* tree_number;              // [seeds]: of a seed's tree in its batch; null unless trees are disjoint
  const int64_t *time, *start_time;  // [seeds]: limits of the times of a tree's edges, or null
  const int64_t *exclude_src, *exclude_dst;  // by segment; null if no edges are excluded
};

// The arrays of a hop. Scratch is shared by all hops.
struct BulkHop {
  bool whole;                         // whether all candidates are taken, whatever the fanouts
  bool expands_all;                   // whether the next hop's columns are all nodes, as if bulk.layers
  int64_t hop, edge_room, node_room;  // node_room: of the nodes it finds, hop + 1's
  int64_t column_room, exclude_room;  // column_room: of the next hop's columns
  int64_t* offset;                    // [columns + 1]: where each column's edges begin, and the last one's end
  int32_t* column;                    // [edges]: what each edge belongs to
  uint32_t* slot;                     // [edges]: its source in the table; its local id if there is none
  int64_t* edge_id;                   // [edges], or null
  float* weight;                      // [edges], or null
  int64_t* count;                     // scratch [columns]: edges of each column
  int64_t *first, *degree;            // scratch [columns]: its first candidate's stored position, and how many it has
  int64_t* draw;          // scratch [edges]: what was drawn; without replacement, repeats are resolved later
  uint32_t* earliest;     // [2 * edges], all bits set at first, or null: a table per column, of draws to the first ones
  Removed* removed;       // scratch [edges], or null: by weight without replacement, the units of a column's picks
  Removed* excluded;      // scratch [exclude_room], or null: what is excluded from each column (see CountEdges)
  int64_t* exclude_at;    // scratch [columns]: where that begins,
  int64_t* num_excluded;  // scratch [columns]: and how much it is
  int64_t* source;        // scratch [edges]: node ids
  int32_t* rank;          // scratch [edges + 1]: how many before it are the first to find their sources
};

GNNSCALE_HD int64_t fanout_of(const Bulk& bulk, const BulkHop& hop, int64_t relation) {
  return hop.whole ? -1 : bulk.state.fanout(relation)[hop.hop];
}

struct BulkSegment {
  int64_t relation, batch;
};

// Segments and groups are fewer than 2^31: their numbers are divided as 32 bits, which a GPU does in a tenth of the
// time.
GNNSCALE_HD BulkSegment segment_at(const BulkState& state, int64_t segment) {
  if (state.relations == 1) return {0, segment};
  const int64_t* const first = state.first_relation();
  const uint32_t number = static_cast<uint32_t>(segment), batches = static_cast<uint32_t>(state.batches);
  const int64_t type = first_above(first, 1, state.types, int64_t{number / batches}) - 1;
  const uint32_t begin = static_cast<uint32_t>(first[type]), siblings = static_cast<uint32_t>(first[type + 1]) - begin;
  const uint32_t of_type = number - begin * batches;
  return {begin + of_type % siblings, of_type / siblings};
}

// The first segment whose edges find nodes of a group or of a later one.
GNNSCALE_HD int64_t first_segment(const BulkState& state, int64_t group) {
  const uint32_t batches = static_cast<uint32_t>(state.batches), type = static_cast<uint32_t>(group) / batches;
  if (type == state.types) return state.segments();
  const int64_t* const first = state.first_relation();
  const int64_t batch = static_cast<uint32_t>(group) % batches;
  return first[type] * state.batches + batch * (first[type + 1] - first[type]);
}

// A column: its batch, its number there (counted over all hops unless they have columns of their own), the node, its
// tree's seed (0 unless trees are disjoint), and the relation.
struct BulkColumn {
  int64_t batch, local, node, tree, relation;
};

// The part that has position `i`, given where each of `parts` begins.
GNNSCALE_HD int64_t part_at(const int64_t* begin, int64_t parts, int64_t i) {
  return first_above(begin, 1, parts, i) - 1;
}

GNNSCALE_HD BulkColumn column_at(const Bulk& bulk, int64_t hop, int64_t i) {
  const BulkState& state = bulk.state;
  const int64_t* const begin = state.column_ptr(hop);
  const int64_t segment = part_at(begin, state.segments(), i);
  const auto [relation, batch] = segment_at(state, segment);
  const int64_t group = bulk.relation[relation].dst * state.batches + batch;
  int64_t found = hop, local = i - begin[segment];  // the hop that found the node
  if (bulk.layers) {
    for (found = 0; found < hop && state.known(found + 1)[group] <= local;) ++found;
  } else {
    local += state.known(hop)[group];
  }
  const int64_t at = *state.node_base(found) + state.node_ptr(found)[group] + local - state.known(found)[group];
  // A seed's tree is its own number, which need not have been written yet.
  return {batch, local, bulk.node[at], bulk.tree == nullptr ? 0 : found == 0 ? at : bulk.tree[at], relation};
}

}  // namespace gnnscale
