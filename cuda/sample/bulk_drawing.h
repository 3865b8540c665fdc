// Drawing in bulk: from the columns of a hop to how many edges each gets, and from edges to their sources and ids. Each
// phase is called for every item in any order and by any number of threads, the next one when all calls have returned.
#pragma once

#include "bulk.h"
#include "parallel_draws.h"

namespace gnnscale {

// Whether draws decide the picks of a column.
GNNSCALE_HD bool is_random(const Bulk& bulk, const BulkHop& hop, int64_t relation, int64_t degree) {
  return pick_is_random(degree, fanout_of(bulk, hop, relation), bulk.replace);
}

// The weights of a column's candidates, and of those that are excluded among them.
GNNSCALE_HD WeightedRange<const TieredIds&> weights_of(const Bulk& bulk, const BulkHop& hop, const BulkColumn& column,
                                                       int64_t i) {
  const BulkRelation& relation = bulk.relation[column.relation];
  const int64_t first = hop.first[i], excluded = hop.excluded == nullptr ? 0 : hop.num_excluded[i];
  const int64_t before = first > relation.colptr[column.node] ? relation.weight[first - 1] : 0;
  return {relation.weight, before, first, hop.degree[i] + excluded};
}

// For every column: its candidates, and how many edges it gets. Where edges are excluded, these are listed in a place
// of the column's own: as units if picks are by weight, with room for those of the picks, else as positions, counted
// from the first candidate.
struct CountEdges {
  Bulk bulk;
  BulkHop hop;

  GNNSCALE_HD void operator()(int64_t i) const {
    const BulkColumn column = column_at(bulk, hop.hop, i);
    const BulkRelation& relation = bulk.relation[column.relation];
    hop.count[i] = hop.first[i] = hop.degree[i] = 0;
    if (hop.excluded != nullptr) hop.num_excluded[i] = 0;
    if (column.node < 0 || column.node >= relation.num_dst) return;  // a seed that was noted
    int64_t first = relation.colptr[column.node], last = relation.colptr[column.node + 1];
    if (first < 0 || last < first || last > relation.num_edges) {
      return bulk.state.note(BulkState::kBadNode, column.relation, column.node);
    }
    const int64_t fanout = fanout_of(bulk, hop, column.relation);
    ExcludedPairs pairs{};
    if (hop.excluded != nullptr) pairs = pairs_into(column);
    const auto is_excluded = [&](int64_t position) { return pairs.has(relation.row[position]); };
    if (relation.has_times()) {
      last = first_above(relation.time, first, last, bulk.time[column.tree]);
      if (bulk.start_time != nullptr) first = first_from(relation.time, first, last, bulk.start_time[column.tree]);
      if (bulk.last && fanout >= 0 && last - first > fanout) {
        first = pairs.begin == pairs.end ? last - fanout : begin_of_last(first, last, fanout, is_excluded);
      }
    }
    int64_t excluded = 0;
    for (int64_t p = first; p < last && pairs.begin < pairs.end; ++p) excluded += is_excluded(p);
    const int64_t degree = last - first - excluded;
    hop.first[i] = first;
    hop.degree[i] = degree;
    hop.count[i] = pick_count(degree, fanout, bulk.replace);
    if (excluded == 0) return;
    const bool by_weight = relation.has_weights() && pick_is_random(degree, fanout, bulk.replace);
    const int64_t room = excluded + (by_weight && !bulk.replace ? hop.count[i] : 0);
    uint64_t& taken = reinterpret_cast<uint64_t&>(*bulk.state.needed_excluded(hop.hop));
    const int64_t begin = static_cast<int64_t>(atomic_add(taken, static_cast<uint64_t>(room)));
    if (begin + room > hop.exclude_room) return;  // the hop has no room
    hop.exclude_at[i] = begin;
    hop.num_excluded[i] = excluded;
    for (int64_t p = first, at = begin; at < begin + excluded; ++p) {
      if (!is_excluded(p)) continue;
      hop.excluded[at++] =
          by_weight ? weights_of(bulk, hop, column, i).units_of(p) : Removed{static_cast<uint64_t>(p - first), 1};
    }
  }

 private:
  GNNSCALE_HD ExcludedPairs pairs_into(const BulkColumn& column) const {
    const BulkState& state = bulk.state;
    const BulkRelation& relation = bulk.relation[column.relation];
    const int64_t* const begin = state.exclude_ptr() + relation.first * state.batches +
                                 column.batch * relation.siblings + column.relation - relation.first;
    return ExcludedPairs{bulk.exclude_src, bulk.exclude_dst, begin[0], begin[1]}.into(column.node);
  }
};

// Where the edges of a segment begin; 0 of a hop that is skipped, for it has no columns.
GNNSCALE_HD int64_t edge_begin(const Bulk& bulk, const BulkHop& hop, int64_t segment) {
  const BulkState& state = bulk.state;
  return *state.columns(hop.hop) == 0 ? 0 : hop.offset[state.column_ptr(hop.hop)[segment]];
}

// The number of edges of a hop, 0 if there is no room for all.
GNNSCALE_HD int64_t edges_with_room(const Bulk& bulk, const BulkHop& hop) {
  const int64_t edges = hop.offset[*bulk.state.columns(hop.hop)];
  const bool fits = edges <= hop.edge_room && *bulk.state.needed_excluded(hop.hop) <= hop.exclude_room;
  return fits ? edges : 0;
}

// For every segment and the end, after the sum over columns: where its edges begin, and whether there is room for all.
struct FindEdgeBegins {
  Bulk bulk;
  BulkHop hop;

  GNNSCALE_HD void operator()(int64_t segment) const {
    const BulkState& state = bulk.state;
    state.edge_ptr(hop.hop)[segment] = edge_begin(bulk, hop, segment);
    if (segment < state.segments()) return;
    *state.needed_edges(hop.hop) = hop.offset[*state.columns(hop.hop)];
    *state.edges(hop.hop) = edges_with_room(bulk, hop);
  }
};

// Where an edge stands: column i's j-th of `count` out of `degree`.
struct BulkEdge {
  int64_t column, j, count;
  BulkColumn destination;
  int64_t degree;
};

GNNSCALE_HD BulkEdge edge_at(const Bulk& bulk, const BulkHop& hop, int64_t edge, int64_t column) {
  return {column, edge - hop.offset[column], hop.offset[column + 1] - hop.offset[column],
          column_at(bulk, hop.hop, column), hop.degree[column]};
}

// The key and the counter of a column's draws.
struct BulkDraws {
  uint64_t key;
  Counter counter;
};

GNNSCALE_HD BulkDraws draws_of(const Bulk& bulk, const BulkHop& hop, const BulkColumn& column) {
  const int64_t tree = bulk.tree == nullptr ? 0 : bulk.tree_number[column.tree];
  const int relation = bulk.relation[column.relation].number;
  return {static_cast<uint64_t>(bulk.state.key()[column.batch]),
          make_counter(column.node, tree, static_cast<int>(hop.hop), relation)};
}

// What is excluded from a column.
struct ExcludedRanges {
  Removed* list;
  int64_t count;

  GNNSCALE_HD uint64_t units() const {
    uint64_t sum = 0;
    for (int64_t k = 0; k < count; ++k) sum += list[k].size;
    return sum;
  }
};

GNNSCALE_HD ExcludedRanges excluded_from(const BulkHop& hop, int64_t column) {
  const int64_t count = hop.excluded == nullptr ? 0 : hop.num_excluded[column];
  return {count == 0 ? nullptr : hop.excluded + hop.exclude_at[column], count};
}

// The uniform draws of edge e's column, without replacement.
GNNSCALE_HD ParallelDraws uniform_draws(const Bulk& bulk, const BulkHop& hop, const BulkEdge& edge) {
  const int64_t first = hop.offset[edge.column];
  const bool table = fanout_of(bulk, hop, edge.destination.relation) > kScannedFanout;
  return {hop.draw + first, table ? hop.earliest + 2 * first : nullptr, edge.count, edge.degree};
}

// Whether an edge's draw is one of these.
GNNSCALE_HD bool is_to_settle(const Bulk& bulk, const BulkHop& hop, const BulkEdge& edge) {
  const int64_t relation = edge.destination.relation;
  return !bulk.replace && !bulk.relation[relation].has_weights() && is_random(bulk, hop, relation, edge.degree);
}

// Whether DrawInTurn makes the draws of a column of a relation.
GNNSCALE_HD bool is_drawn_in_turn(const Bulk& bulk, const BulkHop& hop, int64_t relation, int64_t degree) {
  return !bulk.replace && bulk.relation[relation].has_weights() && is_random(bulk, hop, relation, degree) &&
         edges_with_room(bulk, hop) > 0;
}

// For every edge: finds its column, of which it is the j-th edge, and makes draw j. Without replacement, a uniform draw
// may repeat an earlier one, which ParallelDraws settles, and one by weight is left to DrawInTurn.
struct DrawEdges {
  Bulk bulk;
  BulkHop hop;

  GNNSCALE_HD void operator()(int64_t e) const {
    const int64_t column = part_at(hop.offset, *bulk.state.columns(hop.hop), e);
    const BulkEdge edge = edge_at(bulk, hop, e, column);
    const BulkColumn& to = edge.destination;
    hop.column[e] = static_cast<int32_t>(column);
    if (is_drawn_in_turn(bulk, hop, to.relation, edge.degree)) return;  // by another thread, at the same time
    int64_t drawn = edge.j;
    if (is_random(bulk, hop, to.relation, edge.degree)) {
      const auto [key, counter] = draws_of(bulk, hop, to);
      if (!bulk.relation[to.relation].has_weights()) {
        drawn = draw_at(key, counter, edge.j, edge.count, edge.degree, bulk.replace);
        if (hop.earliest != nullptr) enter(edge, drawn, key, counter);
      } else if (bulk.replace) {
        const auto range = weights_of(bulk, hop, to, column);
        const ExcludedRanges excluded = excluded_from(hop, column);
        const uint64_t unit = bounded(random_at(key, counter, edge.j), range.units() - excluded.units());
        drawn = range.position_of(skip_removed(unit, excluded.list, excluded.count)) - range.first;
      }
    }
    hop.draw[e] = drawn;
  }

 private:
  GNNSCALE_HD void enter(const BulkEdge& edge, int64_t drawn, uint64_t key, const Counter& counter) const {
    const ParallelDraws draws = uniform_draws(bulk, hop, edge);
    if (draws.earliest == nullptr) return;
    draws.add(edge.j, drawn, [&](int64_t j) { return draw_at(key, counter, j, edge.count, edge.degree, false); });
  }
};

// For every column, where some relation has weights, without replacement: all draws by weight, in turn, for each
// depends on the earlier ones.
struct DrawInTurn {
  Bulk bulk;
  BulkHop hop;

  GNNSCALE_HD void operator()(int64_t i) const {
    const BulkColumn column = column_at(bulk, hop.hop, i);
    const int64_t begin = hop.offset[i], count = hop.offset[i + 1] - begin;
    if (count == 0 || !is_drawn_in_turn(bulk, hop, column.relation, hop.degree[i])) return;
    const auto range = weights_of(bulk, hop, column, i);
    const auto [key, counter] = draws_of(bulk, hop, column);
    const ExcludedRanges excluded = excluded_from(hop, i);
    Removed* const removed = excluded.count > 0 ? excluded.list : hop.removed + begin;
    uint64_t left = range.units() - excluded.units();
    for (int64_t j = 0; j < count; ++j) {
      hop.draw[begin + j] =
          pick_by_weight(range, random_at(key, counter, j), left, removed, excluded.count + j) - range.first;
    }
  }
};

// For every edge e, where some relation has weights, without replacement: DrawEdges for e, and DrawInTurn for the
// columns e, e + edges, e + 2 edges, ...
struct DrawEdgesAndColumns {
  DrawEdges edges;
  DrawInTurn in_turn;

  GNNSCALE_HD void operator()(int64_t e) const {
    const int64_t* const columns = edges.bulk.state.columns(edges.hop.hop);
    for (int64_t i = e; i < *columns; i += edges.hop.offset[*columns]) in_turn(i);
    edges(e);
  }
};

// The stored position of candidate j of a column, unless what is excluded from it are units.
GNNSCALE_HD int64_t candidate_at(const BulkHop& hop, int64_t column, int64_t j) {
  const ExcludedRanges excluded = excluded_from(hop, column);
  return hop.first[column] +
         static_cast<int64_t>(skip_removed(static_cast<uint64_t>(j), excluded.list, excluded.count));
}

// The id of the edge at a stored position.
GNNSCALE_HD int64_t id_at(const BulkRelation& relation, int64_t position) {
  return relation.edge_id.table.num_tiers == 0 ? position : relation.edge_id[position];
}

// The stored position of a drawn edge.
GNNSCALE_HD int64_t position_of(const Bulk& bulk, const BulkHop& hop, const BulkEdge& edge, int64_t e) {
  const int64_t column = edge.column, relation = edge.destination.relation;
  const bool settles = is_to_settle(bulk, hop, edge);
  const int64_t at = settles ? uniform_draws(bulk, hop, edge).picked(edge.j) : hop.draw[e];
  const bool by_weight = bulk.relation[relation].has_weights() && is_random(bulk, hop, relation, edge.degree);
  return by_weight ? hop.first[column] + at : candidate_at(hop, column, at);
}

// The source of edge e of a relation, which is stored at `position`, written to the hop with its edge's id; -1, and the
// position noted, if that is no node.
GNNSCALE_HD int64_t read_source(const Bulk& bulk, const BulkHop& hop, const BulkRelation& relation, int64_t position,
                                int64_t e) {
  const int64_t node = relation.row[position];
  hop.source[e] = node;
  if (hop.edge_id != nullptr) hop.edge_id[e] = id_at(relation, position);
  if (node >= 0 && node < relation.num_src) return node;
  bulk.state.note(BulkState::kBadEdge, &relation - bulk.relation, position);
  return -1;
}

}  // namespace gnnscale
