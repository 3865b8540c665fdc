// Global to local node ids through an array with 4 bytes per node that is not cleared between batches: a cell holds
// base + local id, and the base grows from batch to batch, so that what an earlier batch wrote lies below it.
#pragma once

#include <cstdint>

#include "macros.h"
#include "mix.h"

namespace gnnscale {

// The local id in `cell` if it was written in this batch of `count` nodes so far, else a number >= count.
GNNSCALE_HD uint32_t local_id(uint32_t cell, uint32_t base) { return cell - base; }

// The slot of a table of 2^bits slots at which a search for a node of a tree (0 unless trees are disjoint) starts.
GNNSCALE_HD uint64_t table_slot(int64_t node, uint32_t tree, int bits) {
  return mix64(static_cast<uint64_t>(node) ^ static_cast<uint64_t>(tree) << 40) >> (64 - bits);
}

}  // namespace gnnscale
