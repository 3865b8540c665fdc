// Subgraphs on the CPU whose edges are not just those that were drawn: induced and bidirectional ones.
#pragma once

#include "batch_cpu.h"

namespace gnnscale {

class Induction {
 public:
  Induction(Batch& owner, const Relation& of)
      : batch(owner),
        relation(of),
        sources(owner.nodes[of.src]),
        destinations(owner.nodes[of.dst]),
        out(owner.edges[of.number]),
        reader(of) {}

  // Replaces the edges that were drawn by all edges between the nodes that were found.
  void run() {
    out.columns = destinations.count;
    out.count = 0;
    out.colptr.reserve(0, destinations.count + 1);
    out.colptr[0] = 0;
    Vector<int64_t> excluded, positions, ids, edge_ids;
    PendingPicks none(relation);
    for (int64_t column = 0; column < destinations.count; ++column) {
      const int64_t node = destinations.id[column];
      auto [first, last] = reader.stored(node);
      reader.check_pointers();
      if (relation.time != nullptr) {
        const size_t seed = static_cast<size_t>(destinations.tree[column]);
        const Request& request = batch.request;
        last = first_above(relation.time, first, last, request.seed_time[seed]);
        if (!request.seed_start_time.empty()) {
          first = first_from(relation.time, first, last, request.seed_start_time[seed]);
        }
      }
      const CandidateRange found = find_candidates(relation, node, first, last, -1, false, excluded);
      if (static_cast<int64_t>(positions.size()) < found.length) {
        for (Vector<int64_t>* const list : {&positions, &ids, &edge_ids}) {
          list->resize(static_cast<size_t>(found.length));
        }
      }
      std::iota(positions.begin(), positions.begin() + found.length, found.first);
      relation.read(relation, positions.data(), found.length, ids.data(),
                    batch.request.with_edge_id ? edge_ids.data() : nullptr, reader.corrupt, none);
      reader.check_rows();
      out.row.reserve(out.count, out.count + found.length);
      if (batch.request.with_edge_id) out.id.reserve(out.count, out.count + found.length);
      const uint32_t tree = batch.request.disjoint ? static_cast<uint32_t>(destinations.tree[column]) : 0;
      if (batch.lookup == Lookup::kOneTree && !batch.work->tree.hold(tree, sources.id.data(), sources.tree.data(),
                                                                     sources.count, 0, batch.request.sizes[0])) {
        batch.join_trees();
      }
      auto skipped = excluded.begin();
      for (int64_t k = 0; k < found.length; ++k) {
        if (k + kEdgesAhead < found.length) prefetch_local(ids[k + kEdgesAhead], tree);
        if (skipped != excluded.end() && *skipped == positions[k]) {
          ++skipped;
          continue;
        }
        const int64_t local = find_local(ids[k], tree);
        if (local < 0) continue;
        out.row[out.count] = local;
        if (batch.request.with_edge_id) out.id[out.count] = edge_ids[k];
        ++out.count;
      }
      out.colptr[column + 1] = out.count;
    }
  }

 private:
  GNNSCALE_INLINE void prefetch_local(int64_t id, uint32_t tree) {
    if (batch.lookup == Lookup::kOneTree) return;
    if (batch.lookup == Lookup::kTrees) {
      batch.work->trees[relation.src].view().prefetch(id, tree);
    } else if (batch.lookup == Lookup::kTable) {
      batch.work->nodes.view().prefetch(sources.offset + id, 0);
    } else {
      GNNSCALE_PREFETCH(batch.work->map + sources.offset + id);
    }
  }

  // The local id of a node of the source type, or -1.
  int64_t find_local(int64_t id, uint32_t tree) {
    if (batch.lookup == Lookup::kOneTree) return batch.work->tree.view().lookup(sources.id.data(), id, sources.count);
    if (batch.lookup == Lookup::kTrees) return batch.work->trees[relation.src].view().lookup(id, tree);
    if (batch.lookup == Lookup::kTable) return batch.work->nodes.view().lookup(sources.offset + id, 0);
    const int64_t local = local_id(batch.work->map[sources.offset + id], batch.work->base);
    return local < sources.count ? local : -1;
  }

  Batch& batch;
  const Relation& relation;
  Nodes &sources, &destinations;
  DrawnEdges& out;
  RelationReader reader;
};

// The edges of a relation and the reversed ones of its reverse relation, each once and sorted by source in a column.
// An edge's id is its own if it was drawn, else -1 - (the id of the drawn edge that it reverses).
inline DrawnEdges with_reverse(const Batch& batch, const Relation& relation) {
  struct Entry {
    int64_t source, id;
  };
  const int64_t columns = batch.nodes[relation.dst].count;
  const DrawnEdges& own = batch.edges[relation.number];
  const DrawnEdges* const other = relation.reverse < 0 ? nullptr : &batch.edges[relation.reverse];
  const bool with_edge_id = batch.request.with_edge_id;
  Vector<int64_t> end(static_cast<size_t>(columns) + 1, 0);
  for (int64_t column = 0; column < own.columns; ++column) {
    end[column + 1] += own.colptr[column + 1] - own.colptr[column];
  }
  if (other != nullptr) {
    for (int64_t e = 0; e < other->count; ++e) ++end[other->row[e] + 1];
  }
  for (int64_t column = 0; column < columns; ++column) end[column + 1] += end[column];
  Vector<Entry> entries(static_cast<size_t>(end[columns]));
  Vector<int64_t> next(end.begin(), end.end() - 1);
  for (int64_t column = 0; column < own.columns; ++column) {
    for (int64_t e = own.colptr[column]; e < own.colptr[column + 1]; ++e) {
      entries[next[column]++] = {own.row[e], with_edge_id ? own.id[e] : 0};
    }
  }
  for (int64_t column = 0; other != nullptr && column < other->columns; ++column) {
    for (int64_t e = other->colptr[column]; e < other->colptr[column + 1]; ++e) {
      entries[next[other->row[e]]++] = {column, with_edge_id ? -1 - other->id[e] : 0};
    }
  }
  DrawnEdges out;
  out.per_hop = own.per_hop;
  out.columns = columns;
  out.colptr.reserve(0, columns + 1);
  out.colptr[0] = 0;
  out.row.reserve(0, end[columns]);
  if (with_edge_id) out.id.reserve(0, end[columns]);
  for (int64_t column = 0; column < columns; ++column) {
    const auto begin = entries.begin() + end[column], stop = entries.begin() + end[column + 1];
    if (other != nullptr) {
      std::stable_sort(begin, stop, [](const Entry& a, const Entry& b) { return a.source < b.source; });
    }
    for (auto entry = begin; entry != stop; ++entry) {
      if (other != nullptr && entry != begin && entry->source == (entry - 1)->source) continue;
      out.row[out.count] = entry->source;
      if (with_edge_id) out.id[out.count] = entry->id;
      ++out.count;
    }
    out.colptr[column + 1] = out.count;
  }
  return out;
}

}  // namespace gnnscale
