// The decisions about one rank's share of a batch, for one item at a time. The loops of the CPU (cut_cpu.cpp) and the
// phases of the GPU (cut_phases.h) both use them; they differ only in how they go through items and sort them.
//
// Own nodes, the halo and what is sent are written in blocks, one after the other. A block has its nodes in the order
// of their ids, of equal ones in that of the batch; but seeds stay in the batch's order.
#pragma once

#include <cstdint>

#include "../macros.h"

namespace gnnscale {

struct CutRules {
  int64_t nodes, columns, edges;  // of the batch; its last group has no columns
  int64_t hops, parts, part;

  GNNSCALE_HD bool is_rank(int64_t owner) const { return static_cast<uint64_t>(owner) < static_cast<uint64_t>(parts); }
  GNNSCALE_HD bool is_node(int64_t source) const {
    return static_cast<uint64_t>(source) < static_cast<uint64_t>(nodes);
  }
  GNNSCALE_HD bool is_own(int64_t owner) const { return owner == part; }

  // Whether edges [begin, end) are a column of a well-formed batch. To be called for all columns in order; begin is 0
  // for the first one.
  GNNSCALE_HD bool is_column(int64_t begin, int64_t end) const { return (begin <= end) & (end <= edges); }

  // Whether an edge puts its source into the halo of its destination's owner, if this rank sends or receives that row.
  GNNSCALE_HD bool crosses(bool own_source, bool own_destination) const { return own_source != own_destination; }

  // The level that an edge into a node of a group gives to its source. A source has the least level of its edges.
  GNNSCALE_HD int64_t level_of(int64_t group) const { return group + 1; }

  // The blocks of own nodes are groups. The first ones are in the order of the batch, the others in the order of ids.
  static constexpr int64_t kUnsortedGroups = 1;

  // The blocks of the halo, by owner and level, and of what is sent, by the rank that gets it and level.
  GNNSCALE_HD int64_t blocks() const { return parts * hops; }
  GNNSCALE_HD int64_t block_of(int64_t rank, int64_t level) const { return rank * hops + level - 1; }

  // Where counts lie: of own nodes by group, of edges into them by hop, of the halo and of what is sent by block.
  GNNSCALE_HD int64_t first_edges() const { return hops + 1; }
  GNNSCALE_HD int64_t first_received() const { return first_edges() + hops; }
  GNNSCALE_HD int64_t first_sent() const { return first_received() + blocks(); }
  GNNSCALE_HD int64_t counts() const { return first_sent() + blocks(); }
};

// Writes edges into own nodes. An edge has its source's number in the cut, in which the halo follows the own nodes, and
// its own number in the batch.
template <typename Place>
struct EdgeOutput {
  const int64_t* source;  // of the batch
  const Place* place;     // of nodes of the batch
  int64_t *row, *edge;

  GNNSCALE_HD void write(int64_t at, int64_t e) const {
    row[at] = place[source[e]];
    edge[at] = e;
  }
};

}  // namespace gnnscale
