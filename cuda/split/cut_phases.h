// Cutting a batch over ranks (cut_rules.h) as loops over independent items, for many threads. Own nodes, the halo and
// what is sent get keys of 64 bits, (block << 32 | position in the order of ids), by which they are sorted into the
// order of the output. A block's size is found by searching for its bounds in the sorted keys. Each phase is called for
// every item, in any order and by any number of threads; the next phase begins when all calls have returned.
#pragma once

#include <cstdint>

#include "../atomics.h"
#include "../macros.h"
#include "cut_rules.h"

namespace gnnscale {

struct CutBatch : CutRules {
  static constexpr uint32_t kNoLevel = ~uint32_t{0};
  static constexpr int64_t kNoKey = INT64_MAX;  // after all keys

  const int64_t *node, *colptr, *row;  // [nodes], [columns + 1], [edges]
  const int32_t* owner32;              // [nodes]; null if owners are int64
  const int64_t* owner64;              // [nodes]
  const int64_t* ends;                 // [hops + 1]: nodes of groups 0..g
  uint32_t* level;      // [nodes * parts]: level of node i in the halo of rank p; all kNoLevel at first. In the halos
                        // of other ranks, only own nodes are entered
  int64_t* position;    // [nodes]: of a node in the order of ids
  uint32_t* malformed;  // 0 if an owner, a column or a source is out of range

  GNNSCALE_HD int64_t owner(int64_t i) const { return owner32 != nullptr ? owner32[i] : owner64[i]; }
  GNNSCALE_HD int64_t group(int64_t i) const {
    int64_t g = 0;
    while (i >= ends[g]) ++g;
    return g;
  }
  GNNSCALE_HD int64_t key(int64_t block, int64_t position) const { return block << 32 | position; }
};

// The first i in [0, count) with values[i] >= value, or count; `values` ascend.
GNNSCALE_HD int64_t first_not_below(const int64_t* values, int64_t count, int64_t value) {
  int64_t low = 0;
  while (low < count) {
    const int64_t middle = low + (count - low) / 2;
    if (values[middle] < value) {
      low = middle + 1;
    } else {
      count = middle;
    }
  }
  return low;
}

// For every node: writes its id and its number in the batch, which are then sorted by id.
struct WriteSortKey {
  CutBatch batch;
  int64_t* keys;
  int32_t* values;

  GNNSCALE_HD void operator()(int64_t i) const {
    if (!batch.is_rank(batch.owner(i))) atomic_lower(*batch.malformed, 0);
    keys[i] = batch.node[i];
    values[i] = static_cast<int32_t>(i);
  }
};

// For every column: whether its bounds ascend and lie within the edges.
struct CheckColumn {
  CutBatch batch;

  GNNSCALE_HD void operator()(int64_t i) const {
    const bool right = batch.colptr[0] == 0 && batch.is_column(batch.colptr[i], batch.colptr[i + 1]);
    if (!right) atomic_lower(*batch.malformed, 0);
  }
};

// For every edge that crosses: lowers its source's level in the halo of its destination's owner.
struct EnterEdge {
  CutBatch batch;

  GNNSCALE_HD void operator()(int64_t e) const {
    const int64_t src = batch.row[e], dst = first_not_below(batch.colptr, batch.columns + 1, e + 1) - 1;
    if (dst < 0 || dst >= batch.columns) return;
    if (!batch.is_node(src)) return atomic_lower(*batch.malformed, 0);
    const int64_t to = batch.owner(dst);
    if (!batch.crosses(batch.is_own(batch.owner(src)), batch.is_own(to)) || !batch.is_rank(to)) return;
    atomic_lower(batch.level[src * batch.parts + to], static_cast<uint32_t>(batch.level_of(batch.group(dst))));
  }
};

// For every position in the order of ids: writes it to the node that stands there.
struct WritePosition {
  CutBatch batch;
  const int32_t* values;

  GNNSCALE_HD void operator()(int64_t at) const { batch.position[values[at]] = at; }
};

// For every node: writes its key. Nodes of other ranks get none.
struct KeyOfOwn {
  CutBatch batch;
  int64_t* keys;
  int32_t* values;

  GNNSCALE_HD void operator()(int64_t i) const {
    const int64_t g = batch.group(i);
    keys[i] = batch.is_own(batch.owner(i)) ? batch.key(g, g < CutBatch::kUnsortedGroups ? i : batch.position[i])
                                           : CutBatch::kNoKey;
    values[i] = static_cast<int32_t>(i);
  }
};

// For every node: writes its key. Nodes that are not in the halo get none.
struct KeyOfHalo {
  CutBatch batch;
  int64_t* keys;
  int32_t* values;

  GNNSCALE_HD void operator()(int64_t i) const {
    const uint32_t level = batch.level[i * batch.parts + batch.part];
    const bool needed = level != CutBatch::kNoLevel && batch.is_rank(batch.owner(i));
    keys[i] = needed ? batch.key(batch.block_of(batch.owner(i), level), batch.position[i]) : CutBatch::kNoKey;
    values[i] = static_cast<int32_t>(i);
  }
};

// For every node and rank: whether this rank sends the node there.
struct IsSent {
  CutBatch batch;
  int64_t* flag;

  GNNSCALE_HD void operator()(int64_t at) const {
    const int64_t i = at / batch.parts;
    flag[at] = batch.is_own(batch.owner(i)) && batch.level[at] != CutBatch::kNoLevel;
  }
};

// For every node and rank, after the prefix sum over the flags: writes the key of a node that is sent.
struct KeyOfSent {
  CutBatch batch;
  const int64_t *flag, *before;
  int64_t* keys;
  int32_t* values;

  GNNSCALE_HD void operator()(int64_t at) const {
    if (flag[at] == 0) return;
    const int64_t i = at / batch.parts, to = at % batch.parts;
    keys[before[at]] = batch.key(batch.block_of(to, batch.level[at]), batch.position[i]);
    values[before[at]] = static_cast<int32_t>(i);
  }
};

// For every block: how many of the sorted keys it has.
struct CountBlock {
  const int64_t* keys;
  int64_t count;
  int64_t* sizes;

  GNNSCALE_HD void operator()(int64_t block) const {
    const int64_t end = first_not_below(keys, count, (block + 1) << 32);
    sizes[block] = end - first_not_below(keys, count, block << 32);
  }
};

// For every own node, or node of the halo: writes its number in the batch to the output, and its number in the cut to
// `place`.
struct WriteNode {
  const int32_t* values;
  int64_t first;
  int64_t *out, *place;

  GNNSCALE_HD void operator()(int64_t j) const {
    out[j] = values[j];
    place[values[j]] = first + j;
  }
};

// For every entry that is sent: writes the number in the cut of the node that it is.
struct WriteSent {
  const int32_t* values;
  const int64_t* place;
  int64_t* out;

  GNNSCALE_HD void operator()(int64_t j) const { out[j] = place[values[j]]; }
};

// For every own column: counts its edges.
struct CountColumn {
  CutBatch batch;
  const int64_t* local;
  int64_t* degree;

  GNNSCALE_HD void operator()(int64_t j) const { degree[j] = batch.colptr[local[j] + 1] - batch.colptr[local[j]]; }
};

// For every group that has columns, after the prefix sum over the degrees: counts its edges.
struct CountGroupEdges {
  const int64_t *num_nodes, *colptr;
  int64_t* num_edges;

  GNNSCALE_HD void operator()(int64_t group) const {
    int64_t begin = 0;
    for (int64_t g = 0; g < group; ++g) begin += num_nodes[g];
    num_edges[group] = colptr[begin + num_nodes[group]] - colptr[begin];
  }
};

// For every edge into an own node: writes it.
struct WriteEdge {
  CutBatch batch;
  EdgeOutput<int64_t> output;
  const int64_t *local, *colptr;
  int64_t columns;

  GNNSCALE_HD void operator()(int64_t at) const {
    const int64_t j = first_not_below(colptr, columns + 1, at + 1) - 1;
    output.write(at, batch.colptr[local[j]] + at - colptr[j]);
  }
};

}  // namespace gnnscale
