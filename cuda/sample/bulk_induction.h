// Induced subgraphs in bulk: when all nodes are numbered, all stored edges between those of a batch, or of a tree, in
// the order of columns and as stored, as far as times and exclusions allow. Columns are all nodes. Their candidates are
// looked up in the table of nodes, and those that are found are moved together.
#pragma once

#include "bulk_relabelling.h"

namespace gnnscale {

struct BulkInduction {
  Bulk bulk;          // its columns are all nodes (layers), which the last hop found the beginnings of
  BulkHop candidate;  // after the last hop, of all candidates
  BulkHop kept;       // the edges between nodes
  int32_t* rank;      // [candidates + 1]: how many before it are kept
};

// A phase with a single item: leaves the number of candidates where the host finds it.
struct SetNeededEdges {
  const int64_t* candidates;
  int64_t* word;

  GNNSCALE_HD void operator()(int64_t) const { *word = *candidates; }
};

// For every candidate: its column, and its source's slot, if that was found.
struct LookUpSource {
  BulkInduction of;

  GNNSCALE_HD void operator()(int64_t e) const {
    const BulkState& state = of.bulk.state;
    const BulkHop& hop = of.candidate;
    const int64_t column = part_at(hop.offset, *state.columns(hop.hop), e);
    const BulkColumn to = column_at(of.bulk, hop.hop, column);
    const BulkRelation& relation = of.bulk.relation[to.relation];
    const int64_t position = candidate_at(hop, column, e - hop.offset[column]), node = relation.row[position];
    hop.column[e] = static_cast<int32_t>(column);
    hop.slot[e] = BulkTable::kNoSlot;
    if (node < 0 || node >= relation.num_src) {
      return state.note(BulkState::kBadEdge, to.relation, position);
    }
    hop.slot[e] =
        of.bulk.table.find(of.bulk.tree == nullptr ? to.batch : to.tree, state.first_node()[relation.src] + node);
  }
};

// For every candidate: 1 if it is kept, else 0.
struct IsKept {
  const uint32_t* slot;

  GNNSCALE_HD int32_t operator()(int64_t e) const { return slot[e] != BulkTable::kNoSlot; }
};

// For every column or segment, whichever are more, and the end, after the sum over candidates: where its edges begin.
struct FindKept {
  BulkInduction of;

  GNNSCALE_HD void operator()(int64_t i) const {
    const BulkState& state = of.bulk.state;
    const int64_t hop = of.candidate.hop;
    const auto begin = [&](int64_t column) { return of.rank[of.candidate.offset[column]]; };
    if (i <= *state.columns(hop)) of.kept.offset[i] = begin(i);
    if (i <= state.segments()) state.edge_ptr(hop)[i] = begin(state.column_ptr(hop)[i]);
  }
};

// For every candidate that is kept: it becomes an edge.
struct WriteKept {
  BulkInduction of;

  GNNSCALE_HD void operator()(int64_t e) const {
    const BulkHop& hop = of.candidate;
    if (hop.slot[e] == BulkTable::kNoSlot) return;
    const int64_t column = hop.column[e], at = of.rank[e];
    of.kept.column[at] = hop.column[e];
    of.kept.slot[at] = hop.slot[e];
    if (of.kept.edge_id == nullptr) return;
    const BulkRelation& relation = of.bulk.relation[column_at(of.bulk, hop.hop, column).relation];
    of.kept.edge_id[at] = id_at(relation, candidate_at(hop, column, e - hop.offset[column]));
  }
};

}  // namespace gnnscale
