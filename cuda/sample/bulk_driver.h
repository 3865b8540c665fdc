// A bulk from its request to its batches, over an executor (../executor.h): how much room its hops get, and what is
// done where that was too little.
#pragma once

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>
#include <vector>

#include "../arena.h"
#include "bulk_request.h"
#include "bulk_reversal.h"
#include "bulk_schedule.h"

namespace gnnscale {

// node, colptr, edge_index, edge_id, tree and counts: see BulkOutput.
using BulkResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

template <typename Executor>
class BulkDriver : BulkBatches<Executor> {
 public:
  BulkDriver(Executor& executor, const BulkRequest& asked)
      : Base(executor, asked, static_cast<size_t>(asked.hops)), request(asked), kind(kind_of(asked)) {}

  BulkResult run() {
    BulkNeed least(hops), likely;
    bool told = first_guess(likely);
    for (int64_t slots_a_node = 2;;) {
      const BulkRooms rooms(kind, request.disjoint ? num_seeds : batches, seeds_by_type(), num_pairs(), least,
                            told ? &likely : nullptr);
      try {
        attempt(rooms, slots_a_node);
      } catch (const NoRoom&) {
        if (!rooms.halve(least, likely)) throw;
        told = true;
        continue;
      }
      if (host.word[BulkState::kStopped] == 0) break;
      const BulkNeed found = needed();
      for (const auto counts : BulkNeed::kCounts) {
        for (int64_t h = 0; h < hops; ++h) {
          (least.*counts)[h] = std::max((least.*counts)[h], with_margin((found.*counts)[h]));
        }
      }
      if (host.lowest(BulkState::kTableFull) == 0) slots_a_node *= 2;
    }
    this->check_graph();
    if (request.rooms.empty()) bulk_memory().remember(kind, num_seeds, needed());
    if (request.induced) induce();
    if (request.bidirectional) add_reverses();
    const bool whole = request.induced || request.bidirectional;
    const BulkOutput out = this->write(request.with_edge_id, request.with_col, false, whole);
    const Tensor tree = out.tree.has_value() ? *out.tree : executor.room(0, ScalarType::Long);
    return {out.node, out.colptr, out.edge_index, out.edge_id, tree, out.counts};
  }

 private:
  using Base = BulkBatches<Executor>;
  using Base::batches, Base::bulk, Base::hops, Base::host, Base::memory, Base::num_seeds, Base::executor, Base::parts;

  static BulkKind kind_of(const BulkRequest& asked) {
    BulkKind kind{asked.sizes, {}, asked.hops, asked.replace, asked.layers, asked.disjoint};
    for (size_t r = 0; r < asked.relations.size(); ++r) {
      const auto fanouts = asked.fanouts.begin() + static_cast<int64_t>(r) * asked.hops;
      const BulkRelation& of = asked.relations[r];
      kind.relations.push_back({of.num_edges, of.src, of.dst, {fanouts, fanouts + asked.hops}});
    }
    return kind;
  }

  static int64_t with_margin(int64_t count) { return std::max(count, std::min(count + count / 16, kMostInHop)); }

  int64_t num_pairs() const { return request.exclude_ptr.empty() ? 0 : request.exclude_ptr.back(); }

  std::vector<int64_t> seeds_by_type() const {
    std::vector<int64_t> seeds;
    for (size_t t = 0; t < request.sizes.size(); ++t) {
      const auto* const of_type = request.seed_ptr.data() + static_cast<int64_t>(t) * batches;
      seeds.push_back(of_type[batches] - of_type[0]);
    }
    return seeds;
  }

  bool first_guess(BulkNeed& likely) {
    if (request.rooms.empty()) return bulk_memory().recall(kind, num_seeds, likely);
    likely = BulkNeed(hops);
    likely.edges.assign(likely.edges.size(), request.rooms[0]);
    likely.nodes.assign(likely.nodes.size(), request.rooms[1]);
    likely.columns.assign(likely.columns.size(), request.rooms[1]);
    return true;
  }

  BulkNeed needed() const {
    BulkNeed need(hops);
    for (int64_t h = 0; h < hops; ++h) {
      need.edges[h] = *host.needed_edges(h);
      need.nodes[h] = *host.needed_nodes(h + 1);
      need.columns[h] = *host.needed_columns(h + 1);
      need.excluded[h] = *host.needed_excluded(h);
    }
    return need;
  }

  // Runs all hops that have room; what came out is in `host`.
  void attempt(const BulkRooms& rooms, int64_t slots_a_node) {
    int64_t all_nodes = num_seeds, most_columns = rooms.columns[0], most_edges = 0, most_removed = 0, most_excluded = 0,
            all_draws = 0;
    for (int64_t h = 0; h < hops; ++h) {
      check_at_once(rooms.columns[h] <= kMostInHop && rooms.edges[h] <= kMostInHop, "hop ", h,
                    " may draw more than 2^31 edges");
      all_nodes += rooms.nodes[h];
      most_columns = std::max(most_columns, rooms.columns[h]);
      most_edges = std::max(most_edges, rooms.edges[h]);
      most_excluded = std::max(most_excluded, rooms.excluded[h]);
      if (has_table(h)) all_draws += rooms.edges[h];
      if (has_removed(h)) most_removed = std::max(most_removed, rooms.edges[h]);
    }
    const int64_t slots = this->num_slots(all_nodes, slots_a_node), trees = request.disjoint ? 1 : 0;
    int64_t* words = nullptr;
    BulkTable::Slot* free_slots = nullptr;  // of the table of nodes; after them, tables of draws, a half for each
    const int64_t more_slots = (all_draws + 1) / 2;
    parts.resize(static_cast<size_t>(hops));
    memory.clear();
    memory.push_back(one_piece(executor, [&](Arena& arena) {
      words = arena.take<int64_t>(this->state_words());
      free_slots = arena.take<BulkTable::Slot>(slots + more_slots);
      bulk.node = arena.take<int64_t>(all_nodes);
      bulk.tree = trees > 0 ? arena.take<int32_t>(all_nodes) : nullptr;
      bulk.tree_number = trees > 0 ? arena.take<int32_t>(num_seeds) : nullptr;
      BulkHop shared{};
      shared.count = arena.take<int64_t>(most_columns);
      shared.first = arena.take<int64_t>(most_columns);
      shared.degree = arena.take<int64_t>(most_columns);
      shared.draw = arena.take<int64_t>(most_edges);
      shared.source = arena.take<int64_t>(most_edges);
      shared.rank = arena.take<int32_t>(most_edges + 1);
      if (request.exclude_src != nullptr) {
        shared.excluded = arena.take<Removed>(most_excluded);
        shared.exclude_at = arena.take<int64_t>(most_columns);
        shared.num_excluded = arena.take<int64_t>(most_columns);
      }
      Removed* const removed = arena.take<Removed>(most_removed);
      for (int64_t h = 0; h < hops; ++h) {
        BulkHop& part = parts[h] = shared;
        part.hop = h;
        part.edge_room = rooms.edges[h];
        part.node_room = rooms.nodes[h];
        part.expands_all = h + 1 == hops && (request.induced || request.bidirectional);
        part.column_room = h + 1 < hops ? rooms.columns[h + 1] : INT64_MAX;  // no array has the last ones
        part.exclude_room = rooms.excluded[h];
        part.offset = arena.take<int64_t>(rooms.columns[h] + 1);
        part.column = arena.take<int32_t>(part.edge_room);
        part.slot = arena.take<uint32_t>(part.edge_room);
        part.edge_id = request.with_edge_id ? arena.take<int64_t>(part.edge_room) : nullptr;
        part.removed = has_removed(h) ? removed : nullptr;
      }
    }));
    uint32_t* earliest = reinterpret_cast<uint32_t*>(free_slots + slots);
    for (BulkHop& part : parts) {
      if (has_table(part.hop)) part.earliest = std::exchange(earliest, earliest + 2 * part.edge_room);
    }
    bulk.replace = request.replace;
    bulk.layers = request.layers;
    bulk.last = request.last;
    bulk.time = request.time;
    bulk.start_time = request.start_time;
    bulk.exclude_src = request.exclude_src;
    bulk.exclude_dst = request.exclude_dst;
    this->start_state(rooms.nodes, words);
    bulk.table = this->free_table(free_slots, slots, more_slots);
    const int64_t* const seeds = static_cast<const int64_t*>(request.seeds.const_data_ptr());
    if (hops == 0) executor.each(num_seeds, NumberSeeds{bulk, seeds});
    if (hops > 0) {
      begin_bulk(executor, bulk, parts[0], seeds, num_seeds, rooms.columns[0]);
      // The larger one first, unless hops draw few edges.
      executor.reserve_sum(IsFresh{}, parts[0].rank, most_edges);
      executor.reserve_sum(parts[0].count, parts[0].offset, most_columns);
    }
    for (int64_t h = 0; h < hops; ++h) run_hop(executor, bulk, parts[h], rooms.columns[h]);
    this->download_state();
  }

  // Replaces the edges that were drawn by all edges between the nodes of a batch or tree. The host waits twice: for the
  // number of candidates, and for that of edges.
  void induce() {
    int64_t columns = 0;
    for (const BulkRelation& relation : request.relations) {
      for (int64_t h = 0; h <= hops; ++h) {
        const int64_t* const found = host.node_ptr(h) + relation.dst * batches;
        columns += found[batches] - found[0];
      }
    }
    check_at_once(columns <= kMostInHop, columns, " columns of the nodes, more than 2^31");
    bulk.layers = true;
    bulk.replace = bulk.last = false;
    BulkInduction of{bulk, {}, {}, nullptr};
    BulkHop& all = of.candidate;
    all.whole = true;
    all.hop = hops;
    all.offset = make<int64_t>(columns + 1);
    all.count = make<int64_t>(columns);
    all.first = make<int64_t>(columns);
    all.degree = make<int64_t>(columns);
    all.exclude_room = 4 * num_pairs();
    if (all.exclude_room > 0) {
      all.exclude_at = make<int64_t>(columns);
      all.num_excluded = make<int64_t>(columns);
    }
    const int64_t segments = bulk.state.segments();
    for (;;) {
      if (num_pairs() > 0) {
        all.exclude_room = std::max(all.exclude_room, *host.needed_excluded(hops));
        all.excluded = reinterpret_cast<Removed*>(make<int64_t>(2 * all.exclude_room));
      }
      executor.each(columns, CountEdges{bulk, all});
      executor.sum_before(all.count, all.offset, columns);
      executor.each(1, SetNeededEdges{all.offset + columns, bulk.state.edge_ptr(hops)});
      this->download_state();
      if (*host.needed_excluded(hops) <= all.exclude_room) break;
      executor.upload({0}, bulk.state.needed_excluded(hops));
    }
    this->check_graph();
    const int64_t candidates = *host.edge_ptr(hops);
    check_at_once(candidates <= kMostInHop, candidates, " edges lead to the nodes, more than 2^31");
    all.column = make<int32_t>(candidates);
    all.slot = make<uint32_t>(candidates);
    of.rank = make<int32_t>(candidates + 1);
    BulkHop& kept = of.kept;
    kept.offset = make<int64_t>(columns + 1);
    executor.each(candidates, LookUpSource{of});
    executor.sum_before(IsKept{all.slot}, of.rank, candidates);
    executor.each(std::max(columns, segments) + 1, FindKept{of});
    this->download_state();
    this->check_graph();
    const int64_t edges = host.edge_ptr(hops)[segments];
    kept.column = make<int32_t>(edges);
    kept.slot = make<uint32_t>(edges);
    kept.edge_id = request.with_edge_id ? make<int64_t>(edges) : nullptr;
    executor.each(candidates, WriteKept{of});
    parts.assign(1, kept);
  }

  // Adds the reversed edges of reverse relations to the edges that were drawn. The host waits once, for their number.
  void add_reverses() {
    const int64_t segments = host.segments(), relations = host.relations;
    std::vector<int64_t> words = request.reverse;  // [relations], then entry_ptr
    int64_t columns = 0, entries = 0, most_nodes = 1;
    for (int64_t s = 0; s < segments; ++s) {
      const auto [relation, batch] = segment_at(host, s);
      const int64_t group = request.relations[relation].dst * batches + batch, reverse = request.reverse[relation];
      int64_t nodes = 0;
      for (int64_t h = 0; h <= hops; ++h) nodes += host.node_ptr(h)[group + 1] - host.node_ptr(h)[group];
      columns += nodes;
      words.push_back(entries);
      entries += edges_of_segment(host, s);
      if (reverse < 0) continue;
      entries += edges_of_segment(host, segment_of(host, request.relations.data(), reverse, batch));
    }
    words.push_back(entries);
    for (int64_t group = 0; group < host.groups(); ++group) {
      int64_t nodes = 0;
      for (int64_t h = 0; h <= hops; ++h) nodes += host.node_ptr(h)[group + 1] - host.node_ptr(h)[group];
      most_nodes = std::max(most_nodes, nodes);
    }
    check_at_once(columns <= kMostInHop && entries <= kMostInHop, columns, " columns or ", entries,
                  " edges and reversed ones, more than 2^31");
    const auto bits_of = [](int64_t most) { return std::bit_width(static_cast<uint64_t>(most)); };
    BulkReversal of{bulk,
                    {},
                    make<int64_t>(relations + segments + 1),
                    nullptr,
                    entries,
                    columns,
                    static_cast<int>(bits_of(most_nodes)),
                    make<int64_t>(entries),
                    make<int32_t>(entries),
                    make<int32_t>(entries + 1),
                    {}};
    of.entry_ptr = of.reverse + relations;
    for (int64_t h = 0; h < hops; ++h) {
      of.arrays[h] = {parts[h].offset, parts[h].column, parts[h].slot, parts[h].edge_id, nullptr};
    }
    executor.upload(words, const_cast<int64_t*>(of.reverse));
    executor.each(entries, KeyEntries{of});
    int64_t* const keys = make<int64_t>(entries);
    int32_t* const numbers = make<int32_t>(entries);
    const int bits = of.source_bits + static_cast<int>(bits_of(columns));
    if (entries > 0 && executor.sort(of.key, keys, of.entry, numbers, entries, bits)) {
      of.key = keys;
      of.entry = numbers;
    }
    executor.sum_before(IsKeptEntry{of}, of.rank, entries);
    of.kept.offset = make<int64_t>(columns + 1);
    of.kept.column = make<int32_t>(entries);
    of.kept.slot = make<uint32_t>(entries);
    of.kept.edge_id = request.with_edge_id ? make<int64_t>(entries) : nullptr;
    executor.each(std::max({columns + 1, segments + 1, entries}), WriteKeptEntries{of});
    this->download_state();
    parts.assign(1, of.kept);
    bulk.layers = true;
    bulk.table.slots = nullptr;  // sources are local ids
  }

  template <typename T>
  T* make(int64_t count) {
    return Base::template make<T>(count, memory);
  }

  // Whether a relation draws so in a hop.
  template <typename F>
  bool any(int64_t hop, F&& draws) const {
    for (size_t r = 0; r < request.relations.size(); ++r) {
      if (draws(request.relations[r], request.fanouts[r * static_cast<size_t>(hops) + static_cast<size_t>(hop)])) {
        return true;
      }
    }
    return false;
  }

  bool has_table(int64_t hop) const {
    return !request.replace && any(hop, [](const BulkRelation& relation, int64_t fanout) {
      return !relation.has_weights() && fanout > kScannedFanout;
    });
  }

  bool has_removed(int64_t hop) const {
    return !request.replace &&
           any(hop, [](const BulkRelation& relation, int64_t fanout) { return relation.has_weights() && fanout > 0; });
  }

  const BulkRequest& request;
  const BulkKind kind;
};

}  // namespace gnnscale
