// Bidirectional samples in bulk: when all hops are drawn, the edges of a relation and the reversed ones of its reverse
// relation, each once and sorted by source in a column, as with_reverse() of subgraph_cpu.h has them. A relation
// without a reverse keeps its edges as they were drawn. Columns are all nodes. Entries, which are the edges and the
// reversed ones, are sorted by column and source; the first of equal ones is kept, a drawn edge before a reversed one.
#pragma once

#include "bulk_induction.h"
#include "bulk_output.h"

namespace gnnscale {

struct BulkReversal {
  Bulk bulk;                    // as the hops were drawn
  BulkArrays arrays[kMaxHops];  // of the hops
  const int64_t* reverse;       // [relations]: the place of its reverse relation, or -1
  const int64_t* entry_ptr;     // [segments + 1]: where the entries of a segment begin
  int64_t entries, columns;
  int source_bits;  // of a key's last bits, the source; before them stands the column among those of all segments
  int64_t* key;     // [entries]
  int32_t* entry;   // [entries]: its number; those of a segment are its edges by hop, then the reversed ones
  int32_t* rank;    // [entries + 1]: how many before it are kept
  BulkHop kept;     // the edges, whose slots are local ids
};

// An edge or a reversed one; `edge` is its position in its hop, `column` and `source` are local ids.
struct ReversalEntry {
  int64_t segment, hop, edge, column, source;
  bool reversed;
};

GNNSCALE_HD int64_t edges_of_segment(const BulkState& state, int64_t segment) {
  int64_t edges = 0;
  for (int64_t h = 0; h < state.hops; ++h) edges += state.edge_ptr(h)[segment + 1] - state.edge_ptr(h)[segment];
  return edges;
}

GNNSCALE_HD int64_t segment_of(const BulkState& state, const BulkRelation* relations, int64_t relation, int64_t batch) {
  const BulkRelation& of = relations[relation];
  return of.first * state.batches + batch * of.siblings + relation - of.first;
}

GNNSCALE_HD ReversalEntry entry_at(const BulkReversal& of, int64_t i) {
  const BulkState& state = of.bulk.state;
  ReversalEntry found{part_at(of.entry_ptr, state.segments(), i), 0, 0, 0, 0, false};
  int64_t drawn = found.segment, k = i - of.entry_ptr[found.segment];
  if (const int64_t own = edges_of_segment(state, drawn); k >= own) {
    const auto [relation, batch] = segment_at(state, drawn);
    drawn = segment_of(state, of.bulk.relation, of.reverse[relation], batch);
    k -= own;
    found.reversed = true;
  }
  for (;; ++found.hop) {
    const int64_t* const begin = state.edge_ptr(found.hop) + drawn;
    found.edge = begin[0] + k;
    if (found.edge < begin[1]) break;
    k -= begin[1] - begin[0];
  }
  const BulkArrays& hop = of.arrays[found.hop];
  const int64_t column = column_at(of.bulk, found.hop, hop.column[found.edge]).local;
  const int64_t source = static_cast<int64_t>(of.bulk.table.slots[hop.slot[found.edge]].value);
  found.column = found.reversed ? source : column;
  found.source = found.reversed ? column : source;
  return found;
}

// For every entry: its number and its key, without a source where the relation has no reverse.
struct KeyEntries {
  BulkReversal of;

  GNNSCALE_HD void operator()(int64_t i) const {
    const BulkState& state = of.bulk.state;
    const ReversalEntry found = entry_at(of, i);
    const bool paired = of.reverse[segment_at(state, found.segment).relation] >= 0;
    const int64_t column = state.column_ptr(state.hops)[found.segment] + found.column;
    of.key[i] = column << of.source_bits | (paired ? found.source : 0);
    of.entry[i] = static_cast<int32_t>(i);
  }
};

// For every entry, sorted: 1 if it is kept, else 0.
struct IsKeptEntry {
  BulkReversal of;

  GNNSCALE_HD int32_t operator()(int64_t i) const {
    if (i == 0 || of.key[i] != of.key[i - 1]) return 1;
    const BulkState& state = of.bulk.state;
    const int64_t segment = part_at(state.column_ptr(state.hops), state.segments(), of.key[i] >> of.source_bits);
    return of.reverse[segment_at(state, segment).relation] < 0;
  }
};

// For every column, segment and entry, and the end, after the sum over entries: where the edges of the column and the
// segment begin; the entry, if it is kept, becomes an edge, a reversed one with the id -1 - (that of the drawn edge).
struct WriteKeptEntries {
  BulkReversal of;

  GNNSCALE_HD void operator()(int64_t i) const {
    const BulkState& state = of.bulk.state;
    const auto begin = [&](int64_t column) {
      return of.rank[first_from(of.key, 0, of.entries, column << of.source_bits)];
    };
    if (i <= of.columns) of.kept.offset[i] = begin(i);
    if (i <= state.segments()) state.edge_ptr(state.hops)[i] = begin(state.column_ptr(state.hops)[i]);
    if (i < of.entries && of.rank[i] < of.rank[i + 1]) write(i, of.rank[i]);
  }

 private:
  GNNSCALE_HD void write(int64_t i, int64_t at) const {
    const ReversalEntry found = entry_at(of, of.entry[i]);
    of.kept.column[at] = static_cast<int32_t>(of.key[i] >> of.source_bits);
    of.kept.slot[at] = static_cast<uint32_t>(found.source);
    if (of.kept.edge_id == nullptr) return;
    const int64_t id = of.arrays[found.hop].edge_id[found.edge];
    of.kept.edge_id[at] = found.reversed ? -1 - id : id;
  }
};

}  // namespace gnnscale
