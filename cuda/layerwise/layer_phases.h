// A hop of layer-wise batches as loops over independent items, for many threads and several batches: over columns, the
// stored edges of columns ("scanned edges"), candidates, drawn edges. Each phase is called for every item, in any order
// and by any number of threads; the next phase begins when all calls have returned. layer_driver.h has their order.
//
// What follows once it is known which positions are drawn is that of all bulks: sources are entered into a table and
// numbered by ../sample/bulk_relabelling.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "../sample/bulk_drawing.h"
#include "../sample/bulk_relabelling.h"
#include "schemes.h"
#include "scores.h"

namespace gnnscale {

GNNSCALE_HD uint64_t bits_of(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

GNNSCALE_HD double double_of(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// The candidates of LADIES, by batch and node. The value of a slot is first a score minus 1, later the bits of c_v. A
// node that is kept because it is known has bit 63 in both: its c_v is 1.
struct ScoreTable {
  using Slot = BulkTable::Slot;
  static constexpr uint64_t kKept = uint64_t{1} << 63;

  Slot* slots;    // all bits set at first
  uint64_t size;  // at least twice the number of nodes

  GNNSCALE_HD static uint64_t key_of(int64_t batch, int64_t node) {
    return static_cast<uint64_t>(batch) << kNodeBits | static_cast<uint64_t>(node);
  }

  // The slot of a node; is_new: whether this call entered it.
  GNNSCALE_HD uint32_t claim(int64_t batch, int64_t node, bool& is_new) const {
    const uint64_t key = key_of(batch, node);
    for (uint64_t at = bounded(mix64(key), size);; at = next(at)) {
      uint64_t seen = atomic_read(slots[at].key);
      if (seen == BulkTable::kFree) seen = atomic_replace(slots[at].key, BulkTable::kFree, key);
      is_new = seen == BulkTable::kFree;
      if (is_new || seen == key) return static_cast<uint32_t>(at);
    }
  }

  // The slot of a node that was entered.
  GNNSCALE_HD Slot& of(int64_t batch, int64_t node) const {
    const uint64_t key = key_of(batch, node);
    uint64_t at = bounded(mix64(key), size);
    while (slots[at].key != key) at = next(at);
    return slots[at];
  }

 private:
  GNNSCALE_HD uint64_t next(uint64_t at) const { return at + 1 == size ? 0 : at + 1; }
};

// A hop. Scanned edges lie batch-major, as columns do.
struct LayerScan {
  Bulk bulk;
  BulkHop hop;              // its draw: the stored positions of drawn edges; its count: the stored edges of each column
  const int32_t* repeated;  // [seeds]: whether an earlier seed of the batch is the same node
  int64_t* offset;          // [columns + 1]: where each column's scanned edges begin
  int64_t* begin;           // [batches + 1]: where each batch's scanned edges begin
  int32_t* batch;           // [columns]: each column's
  uint64_t* term;           // [columns]: what each edge adds to its source's score; 0 for a repeated seed
  uint64_t* left_out;       // [batches]: scanned edges of repeated seeds
  int32_t* shift;           // [batches]: of the scores `counts`
  int32_t* column;          // [scanned]
  uint32_t* slot;           // [scanned]: the source's in `table`; kNoSlot if it is malformed
  int32_t* taken;           // [scanned]: whether an edge is taken
  int32_t* rank;            // [scanned + 1]: how many before it are
  ScoreTable table;         // LADIES
  double* dense;            // FastGCN: [batches * nodes]: c_v of drawn nodes, 0 of others
  double* correction;       // [drawn edges]: c_v of their sources

  GNNSCALE_HD const BulkRelation& graph() const { return bulk.relation[0]; }

  GNNSCALE_HD int64_t position_at(int64_t e) const { return hop.first[column[e]] + e - offset[column[e]]; }

  // The source stored at a position; -1, and the position noted, if that is no node.
  GNNSCALE_HD int64_t source_at(int64_t position) const {
    const int64_t node = graph().row[position];
    if (node >= 0 && node < graph().num_src) return node;
    bulk.state.note(BulkState::kBadEdge, 0, position);
    return -1;
  }

  // c_v of a scanned edge's source, 0 if that is not drawn.
  GNNSCALE_HD double correction_at(int64_t e) const {
    if (dense != nullptr) {
      const int64_t source = source_at(position_at(e));
      return source < 0 ? 0 : dense[batch[column[e]] * graph().num_src + source];
    }
    if (slot[e] == BulkTable::kNoSlot) return 0;
    const uint64_t value = table.slots[slot[e]].value;
    return (value & ScoreTable::kKept) != 0 ? 1 : double_of(value);
  }
};

// For every seed: whether an earlier one is the same node.
struct FindRepeats {
  Bulk bulk;
  int32_t* repeated;

  GNNSCALE_HD void operator()(int64_t i) const {
    const int64_t node = bulk.node[i], batch = part_at(bulk.state.node_ptr(0), bulk.state.batches, i);
    repeated[i] = 0;
    if (node < 0 || node >= bulk.relation[0].num_src) return;  // NumberSeeds has noted it
    const uint32_t slot = bulk.table.claim(batch, node);
    if (slot == BulkTable::kNoSlot) return;  // NumberSeeds has noted that the table is full
    repeated[i] = bulk.table.slots[slot].value != static_cast<uint64_t>(i - bulk.state.node_ptr(0)[batch]);
  }
};

// For every column, after CountEdges of all columns: what each of its edges adds to the score of its source.
// Edges of a repeated seed add nothing; the batch counts them in `left_out`.
struct PrepareColumn {
  LayerScan scan;
  int square_bits;  // of the scores `squares`; < 0: an edge counts 1

  GNNSCALE_HD void operator()(int64_t i) const {
    const BulkState& state = scan.bulk.state;
    const BulkColumn column = column_at(scan.bulk, scan.hop.hop, i);
    const int64_t* const seeds = state.node_ptr(0) + column.batch;
    const uint64_t degree = static_cast<uint64_t>(scan.hop.count[i]);
    const bool may_be_seed = scan.hop.hop == 0 || scan.bulk.layers;
    const bool repeated =
        may_be_seed && column.local < seeds[1] - seeds[0] && scan.repeated[seeds[0] + column.local] != 0;
    scan.batch[i] = static_cast<int32_t>(column.batch);
    scan.term[i] = repeated ? 0 : square_bits < 0 || degree == 0 ? 1 : square_term(square_bits, degree);
    if (repeated) atomic_add(scan.left_out[column.batch], degree);
  }
};

// For every batch and the end, after the sum over columns: where its scanned edges begin.
struct FindScannedBegins {
  LayerScan scan;

  GNNSCALE_HD void operator()(int64_t batch) const {
    const BulkState& state = scan.bulk.state;
    const int64_t hop = scan.hop.hop;
    scan.begin[batch] = *state.columns(hop) == 0 ? 0 : scan.offset[state.column_ptr(hop)[batch]];
    if (batch == state.batches) *state.needed_edges(hop) = scan.begin[batch];
  }
};

// For every scanned edge: which column it is in.
struct FindColumn {
  LayerScan scan;

  GNNSCALE_HD void operator()(int64_t e) const {
    const int64_t columns = *scan.bulk.state.columns(scan.hop.hop);
    scan.column[e] = static_cast<int32_t>(first_above(scan.offset, 1, columns, e) - 1);
  }
};

// LADIES ##############################################################################################################

// Candidates are the sources of edges into the frontier.

// With keep_known, for every node that an earlier hop found.
struct KeepKnown {
  LayerScan scan;
  int64_t found;  // the hop that found it

  GNNSCALE_HD void operator()(int64_t i) const {
    const BulkState& state = scan.bulk.state;
    const int64_t batch = part_at(state.node_ptr(found), state.batches, i);
    bool is_new;
    const uint32_t slot = scan.table.claim(batch, scan.bulk.node[*state.node_base(found) + i], is_new);
    if (is_new) scan.table.slots[slot].value = ScoreTable::kKept;
  }
};

// For every scanned edge: its source's score grows; the first edge to enter a source is taken.
struct ScoreSource {
  LayerScan scan;

  GNNSCALE_HD void operator()(int64_t e) const {
    const int32_t column = scan.column[e];
    const int64_t source = scan.source_at(scan.position_at(e));
    scan.taken[e] = 0;
    scan.slot[e] = BulkTable::kNoSlot;
    if (source < 0) return;
    bool is_new;
    const uint32_t slot = scan.table.claim(scan.batch[column], source, is_new);
    if (scan.term[column] != 0) atomic_add(scan.table.slots[slot].value, scan.term[column]);
    scan.slot[e] = slot;
    scan.taken[e] = is_new;
  }
};

// The candidates of all batches, to be listed.
struct CandidateLists {
  int64_t* begin;   // [batches + 1]
  int64_t* node;    // [candidates]
  uint64_t* score;  // [candidates]
};

// For every batch and the end, after the sum over what is taken: where its candidates begin. items: where each batch's
// items begin, and the end.
struct FindCandidateBegins {
  CandidateLists lists;
  const int32_t* rank;
  const int64_t* items;

  GNNSCALE_HD void operator()(int64_t batch) const { lists.begin[batch] = rank[items[batch]]; }
};

// For every batch: by how much scores are shifted so that their sums fit.
struct FindShift {
  LayerScan scan;

  GNNSCALE_HD void operator()(int64_t batch) const {
    const uint64_t edges = static_cast<uint64_t>(scan.begin[batch + 1] - scan.begin[batch]) - scan.left_out[batch];
    scan.shift[batch] = count_shift(edges);
  }
};

// For every scanned edge that is taken: its source is listed as a candidate.
struct ListSource {
  LayerScan scan;
  CandidateLists lists;
  bool counts;

  GNNSCALE_HD void operator()(int64_t e) const {
    if (scan.taken[e] == 0) return;
    const ScoreTable::Slot slot = scan.table.slots[scan.slot[e]];
    const int32_t at = scan.rank[e];
    const uint64_t sum = slot.value + 1;
    lists.node[at] = static_cast<int64_t>(slot.key & ((uint64_t{1} << kNodeBits) - 1));
    lists.score[at] = counts ? count_score(sum, scan.shift[scan.batch[scan.column[e]]]) : sum;
  }
};

// FastGCN #############################################################################################################

// Candidates are all nodes of positive score; items are all nodes of the graph, for each batch.

// With keep_known, for every node that an earlier hop found.
struct KeepScored {
  LayerScan scan;
  const int64_t* score;
  int64_t found;

  GNNSCALE_HD void operator()(int64_t i) const {
    const BulkState& state = scan.bulk.state;
    const int64_t batch = part_at(state.node_ptr(found), state.batches, i);
    const int64_t node = scan.bulk.node[*state.node_base(found) + i];
    if (score[node] > 0) scan.dense[batch * scan.graph().num_src + node] = 1;
  }
};

// For every item: whether it is a candidate.
struct TakeScored {
  LayerScan scan;
  const int64_t* score;
  int32_t* taken;

  GNNSCALE_HD void operator()(int64_t i) const { taken[i] = score[i % scan.graph().num_src] > 0 && scan.dense[i] == 0; }
};

// For every item that is taken: its node is listed as a candidate.
struct ListNode {
  LayerScan scan;
  CandidateLists lists;
  const int64_t* score;
  const int32_t *taken, *rank;

  GNNSCALE_HD void operator()(int64_t i) const {
    if (taken[i] == 0) return;
    const int64_t node = i % scan.graph().num_src;
    lists.node[rank[i]] = node;
    lists.score[rank[i]] = static_cast<uint64_t>(score[node]);
  }
};

// LADIES and FastGCN ##################################################################################################

// For every candidate, when some are drawn: c_v goes where edges find it.
struct ReturnCorrection {
  LayerScan scan;
  CandidateLists lists;
  const double* correction;

  GNNSCALE_HD void operator()(int64_t i) const {
    const int64_t batch = part_at(lists.begin, scan.bulk.state.batches, i);
    if (scan.dense != nullptr) {
      scan.dense[batch * scan.graph().num_src + lists.node[i]] = correction[i];
    } else {
      scan.table.of(batch, lists.node[i]).value = bits_of(correction[i]);
    }
  }
};

// For every scanned edge: it is taken if its source is drawn.
struct TakeEdge {
  LayerScan scan;

  GNNSCALE_HD void operator()(int64_t e) const { scan.taken[e] = scan.correction_at(e) != 0; }
};

// Every method ########################################################################################################

// For every column and the end, after the sum over what is taken: where its drawn edges begin.
struct FindDrawnBegins {
  LayerScan scan;

  GNNSCALE_HD void operator()(int64_t i) const { scan.hop.offset[i] = scan.rank[scan.offset[i]]; }
};

// For every taken edge, which is a drawn edge now.
struct WriteDrawn {
  LayerScan scan;
  bool is_labor;  // corrections follow from `fanout`; else they are those of nodes
  int64_t fanout;

  GNNSCALE_HD void operator()(int64_t e) const {
    if (scan.taken[e] == 0) return;
    const int32_t at = scan.rank[e], column = scan.column[e];
    const uint64_t degree = static_cast<uint64_t>(scan.hop.count[column]);
    scan.hop.column[at] = column;
    scan.hop.draw[at] = scan.position_at(e);
    if (!is_labor) {
      scan.correction[at] = scan.correction_at(e);
    } else {
      scan.correction[at] = fanout < 0 ? 1 : labor_correction(degree, static_cast<uint64_t>(fanout));
    }
  }
};

// For every node that an earlier hop found: its local id goes to the table.
struct EnterNode {
  Bulk bulk;
  int64_t found;

  GNNSCALE_HD void operator()(int64_t i) const {
    const BulkState& state = bulk.state;
    const int64_t* const begin = state.node_ptr(found);
    const int64_t batch = part_at(begin, state.batches, i);
    const uint32_t slot = bulk.table.claim(batch, bulk.node[*state.node_base(found) + i]);
    if (slot == BulkTable::kNoSlot) return atomic_lower(state.lowest(BulkState::kTableFull), 0);
    const int64_t local = state.known(found)[batch] + i - begin[batch];
    atomic_lower(bulk.table.slots[slot].value, static_cast<uint64_t>(local));
  }
};

// For every drawn edge: its source and id are read, and the source is entered.
struct EnterDrawn {
  LayerScan scan;

  GNNSCALE_HD void operator()(int64_t e) const {
    const int64_t node = read_source(scan.bulk, scan.hop, scan.graph(), scan.hop.draw[e], e);
    enter_source(scan.bulk, scan.hop, scan.batch[scan.hop.column[e]], 0, e, node);
  }
};

// For every drawn edge, when the nodes of the hop are numbered: the local id of its source takes the place of its slot.
struct SettleSource {
  Bulk bulk;
  BulkHop hop;

  GNNSCALE_HD void operator()(int64_t e) const {
    if (hop.slot[e] != BulkTable::kNoSlot) hop.slot[e] = static_cast<uint32_t>(bulk.table.slots[hop.slot[e]].value);
  }
};

}  // namespace gnnscale
