// One hop for requests (FastSample, section 3.1) as loops over independent items, for many threads: over requests, then
// over their edges. Each phase is called for every item, in any order and by any number of threads; the next phase
// begins when all calls have returned.
#pragma once

#include "../tier.h"
#include "parallel_draws.h"

namespace gnnscale {

// The stored columns: see torch_gnnscale.ops.pick_neighbors.
struct StoredColumns {
  const int64_t* colptr;
  int64_t first, columns, num_edges, num_src;
  TieredIds row, edge_id;        // edge_id has no tiers if an edge's id is its position
  const int64_t *weight, *time;  // null if edges have none
};

struct HopRequests {
  int64_t size;
  const int64_t *node, *tree, *time, *start_time;  // [size]; all but node may be null
  int64_t batches;
  const int64_t *begin, *key;  // [batches + 1], [batches]: requests begin[b] to begin[b + 1] - 1 have key[b]
};

// Words that tell what is malformed: the least such request, column and edge; all bits set if there is none.
enum HopWord : int64_t { kBadRequest, kBadColumn, kBadEdge, kHopWords };

struct PickHop {
  StoredColumns stored;
  HopRequests requests;
  int64_t fanout;
  int relation, hop;
  bool replace, last;
  uint64_t* word;             // [kHopWords]
  int64_t *first, *degree;    // [size]: the first candidate of a request, and how many it has
  int64_t* count;             // [size]: how many edges a request gets
  int64_t* offset;            // [size + 1]: where they begin
  int32_t* request;           // [edges]: the request of each edge
  int64_t* draw;              // [edges]: draws, counted from the request's `first`; see ParallelDraws
  uint32_t* earliest;         // [2 * edges] or null: see ParallelDraws
  Removed* removed;           // [edges] or null: by weight without replacement, the units of earlier picks
  int64_t *source, *edge_id;  // [edges]; edge_id may be null

  GNNSCALE_HD bool is_random(int64_t i) const { return pick_is_random(degree[i], fanout, replace); }

  GNNSCALE_HD uint64_t key_of(int64_t i) const {
    return static_cast<uint64_t>(requests.key[first_above(requests.begin, 1, requests.batches, i) - 1]);
  }

  GNNSCALE_HD Counter counter_of(int64_t i) const {
    return make_counter(requests.node[i], requests.tree == nullptr ? 0 : requests.tree[i], hop, relation);
  }

  GNNSCALE_HD ParallelDraws draws_of(int64_t i) const {
    return {draw + offset[i], earliest == nullptr ? nullptr : earliest + 2 * offset[i], offset[i + 1] - offset[i],
            degree[i]};
  }

  GNNSCALE_HD WeightedRange weights_of(int64_t i) const {
    const bool from_start = first[i] == stored.colptr[requests.node[i] - stored.first];
    return {stored.weight, from_start ? 0 : stored.weight[first[i] - 1], first[i], degree[i]};
  }
};

// For every request: its candidates, and how many edges it gets.
struct CountRequest {
  PickHop hop;

  GNNSCALE_HD void operator()(int64_t i) const {
    const StoredColumns& stored = hop.stored;
    hop.first[i] = hop.degree[i] = hop.count[i] = 0;
    const uint64_t column = static_cast<uint64_t>(hop.requests.node[i]) - static_cast<uint64_t>(stored.first);
    if (column >= static_cast<uint64_t>(stored.columns)) {
      return atomic_lower(hop.word[kBadRequest], static_cast<uint64_t>(i));
    }
    int64_t first = stored.colptr[column], last = stored.colptr[column + 1];
    if (first < 0 || last < first || last > stored.num_edges) return atomic_lower(hop.word[kBadColumn], column);
    if (stored.time != nullptr) {
      last = first_above(stored.time, first, last, hop.requests.time[i]);
      if (hop.requests.start_time != nullptr) {
        first = first_from(stored.time, first, last, hop.requests.start_time[i]);
      }
      if (hop.last && hop.fanout >= 0 && last - first > hop.fanout) first = last - hop.fanout;
    }
    hop.first[i] = first;
    hop.degree[i] = last - first;
    hop.count[i] = pick_count(last - first, hop.fanout, hop.replace);
  }
};

// For every edge, after the prefix sum over requests: its request, and its draw, unless that depends on earlier draws.
struct DrawRequested {
  PickHop hop;

  GNNSCALE_HD void operator()(int64_t e) const {
    const int64_t i = first_above(hop.offset, 1, hop.requests.size, e) - 1, j = e - hop.offset[i];
    hop.request[e] = static_cast<int32_t>(i);
    if (!hop.is_random(i)) {
      hop.draw[e] = j;
    } else if (hop.stored.weight == nullptr) {
      const int64_t count = hop.offset[i + 1] - hop.offset[i];
      hop.draw[e] = draw_at(hop.key_of(i), hop.counter_of(i), j, count, hop.degree[i], hop.replace);
    } else if (hop.replace) {
      const WeightedRange range = hop.weights_of(i);
      hop.draw[e] =
          range.position_of(bounded(random_at(hop.key_of(i), hop.counter_of(i), j), range.units())) - hop.first[i];
    }
  }
};

// For every edge, if there is a table of draws: enters its draw.
struct EnterDraw {
  PickHop hop;

  GNNSCALE_HD void operator()(int64_t e) const {
    const int64_t i = hop.request[e];
    if (hop.is_random(i)) hop.draws_of(i).add(e - hop.offset[i]);
  }
};

// For every request, by weight without replacement: all of its draws, in turn, as each depends on the earlier ones.
struct DrawByWeight {
  PickHop hop;

  GNNSCALE_HD void operator()(int64_t i) const {
    if (!hop.is_random(i)) return;
    const WeightedRange range = hop.weights_of(i);
    const int64_t begin = hop.offset[i], count = hop.offset[i + 1] - begin;
    const uint64_t key = hop.key_of(i);
    const Counter counter = hop.counter_of(i);
    uint64_t left = range.units();
    for (int64_t j = 0; j < count; ++j) {
      hop.draw[begin + j] =
          pick_by_weight(range, random_at(key, counter, j), left, hop.removed + begin, j) - hop.first[i];
    }
  }
};

// For every edge, after all draws: its source and edge id. Notes a source that is not in [0, num_src).
struct ReadRequested {
  PickHop hop;

  GNNSCALE_HD void operator()(int64_t e) const {
    const StoredColumns& stored = hop.stored;
    const int64_t i = hop.request[e];
    const bool settled = hop.replace || stored.weight != nullptr || !hop.is_random(i);
    const int64_t position = hop.first[i] + (settled ? hop.draw[e] : hop.draws_of(i).picked(e - hop.offset[i]));
    const int64_t node = stored.row[position];
    hop.source[e] = node;
    if (hop.edge_id != nullptr) {
      hop.edge_id[e] = stored.edge_id.table.num_tiers == 0 ? position : stored.edge_id[position];
    }
    if (node < 0 || node >= stored.num_src) atomic_lower(hop.word[kBadEdge], static_cast<uint64_t>(position));
  }
};

// For a single item: the values of the malformed column and edge, for the error; 0 where there is none.
struct ReadMalformed {
  PickHop hop;
  int64_t* value;  // [3]: colptr[column], colptr[column + 1], row[edge]

  GNNSCALE_HD void operator()(int64_t) const {
    const uint64_t column = hop.word[kBadColumn], edge = hop.word[kBadEdge];
    const uint64_t none = ~uint64_t{0};
    value[0] = column == none ? 0 : hop.stored.colptr[column];
    value[1] = column == none ? 0 : hop.stored.colptr[column + 1];
    value[2] = edge == none ? 0 : hop.stored.row[static_cast<int64_t>(edge)];
  }
};

}  // namespace gnnscale
