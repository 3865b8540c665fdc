// Drawing on the CPU: from the nodes of a frontier to how many edges each draws, their sources and their ids, all as
// global ids. It knows nothing of local ids (relabelling_cpu.h), nor of the order in which blocks are taken
// (expansion_cpu.h, pick_cpu.cpp).
//
// For a frontier of n nodes: count() fills colptr[0..n], then any thread may, for each block of nodes, pick() the
// stored positions of its edges and later read() what is stored there.
#pragma once

#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "../memory/tensor.h"
#include "../prefetch.h"
#include "picks_cpu.h"
#include "relation_cpu.h"
#include "time_search_cpu.h"

namespace gnnscale {

// A block has at most kBlockNodes frontier nodes; times the fanout they are at most kBlockPicks, or it has one node.
constexpr int64_t kBlockNodes = 128;
constexpr int64_t kBlockPicks = 1024;
constexpr int64_t kNodesAhead = 32;   // distance at which colptr is prefetched
constexpr int64_t kItemsAhead = 128;  // distance at which outputs are prefetched: a line is read before it is written
constexpr int64_t kLineItems = kLineBytes / sizeof(int64_t);
constexpr int64_t kCountGrain = 8192;  // nodes that are worth a task of their own while edges are counted
constexpr int64_t kSearchGrain = 512;  // the same where each node's times or exclusions are searched

// The nodes that draw.
struct Frontier {
  int64_t size;
  const int64_t* node;  // [size] global ids
  const int64_t* tree;  // [size], or null: tree 0
  // Node i draws edges of times start_time[k] to time[k], where k is time_row[i], or i without time_row. Without
  // start_time any up to time[k], without both any.
  const int64_t *time, *start_time;
  const int64_t* time_row;  // [size], or null

  int64_t entry(const int64_t* times, int64_t i) const {
    return times == nullptr ? 0 : times[time_row == nullptr ? i : time_row[i]];
  }
};

// How they draw, in one hop.
struct DrawRule {
  uint64_t key;
  int hop;
  int64_t fanout;
  bool replace, last;
};

class Drawing {
 public:
  // colptr: [size + 1], of which colptr[0], the number of edges before this frontier's, is given.
  // begin, length: [size] scratch.
  Drawing(const Relation& relation, const Frontier& frontier, const DrawRule& rule, int64_t* colptr, int64_t* begin,
          int64_t* length)
      : relation_(relation),
        frontier_(frontier),
        rule_(rule),
        colptr_(colptr),
        begin_(begin),
        length_(length),
        block_(std::clamp<int64_t>(kBlockPicks / std::max<int64_t>(rule.fanout, 1), 1, kBlockNodes)),
        reader_(relation) {
    if (block_ > kLanes) block_ -= block_ % kLanes;
  }

  // Fills colptr: node i draws the edges [colptr[i], colptr[i + 1]).
  void count(int64_t threads) {
    const bool searches = relation_.time != nullptr || relation_.num_excluded > 0;
    const int64_t size = frontier_.size, tasks = num_tasks(size, searches ? kSearchGrain : kCountGrain, threads);
    run_tasks(tasks, [&](int64_t task) {
      const auto [from, to] = part(size, task, tasks);
      const int64_t before = task == 0 ? colptr_[0] : 0;
      if (relation_.one_each && relation_.num_excluded == 0) {
        count_one_each(from, to, before);
      } else if (searches) {
        count_candidates(from, to, before);
      } else {
        count_stored(from, to, before);
      }
    });
    reader_.check_pointers();
    for (int64_t task = 1; task < tasks; ++task) {
      const auto [from, to] = part(size, task, tasks);
      const int64_t before = colptr_[from];
      for (int64_t i = from; i < to; ++i) colptr_[i + 1] += before;
    }
  }

  // Where edge e's source and id go: row[e] and, unless it is null, edge_id[e]. `frontier`: the same nodes, which may
  // lie elsewhere by now.
  void write_to(const Frontier& frontier, int64_t* row, int64_t* edge_id) {
    frontier_ = frontier;
    row_ = row;
    edge_id_ = edge_id;
  }

  int64_t num_nodes() const { return frontier_.size; }
  int64_t num_blocks() const { return (frontier_.size + block_ - 1) / block_; }
  int64_t first_node(int64_t block) const { return std::min(block * block_, frontier_.size); }
  int64_t first_edge(int64_t block) const { return colptr_[first_node(block)]; }

  // The stored positions of a block's edges. `pending` is to prefetch what is stored there before read().
  void pick(int64_t block, Scratch& scratch, Vector<int64_t>& positions, PendingPicks& pending) const {
    const int64_t from = first_node(block), to = first_node(block + 1), count = colptr_[to] - colptr_[from];
    const size_t room = static_cast<size_t>(count + kLaneFanout);
    if (positions.size() < room) positions.resize(room);
    prefetch_around(block);
    scratch.picker.set_key(rule_.key);
    if (relation_.is_plain()) {
      pick_uniformly(from, to, scratch, positions.data());
    } else {
      pick_among_candidates(from, to, scratch, positions.data());
    }
    pending.start(positions.data(), count);
  }

  // The sources and ids of a block's edges, written to the outputs. Meanwhile, `pending` prefetches.
  void read(int64_t block, const Vector<int64_t>& positions, PendingPicks& pending) {
    const int64_t from = first_edge(block), count = first_edge(block + 1) - from;
    relation_.read(relation_, positions.data(), count, row_ + from, edge_id_ == nullptr ? nullptr : edge_id_ + from,
                   reader_.corrupt, pending);
  }

  // After all blocks were read: raises if a source that is stored is no node.
  void check_rows() const { reader_.check_rows(); }

 private:
  // The candidates of nodes [from, to), and in colptr the sums of their counts, starting from `sum`.
  void count_stored(int64_t from, int64_t to, int64_t sum) {
    const int64_t *const nodes = frontier_.node, *const pointers = relation_.colptr, first_column = relation_.first;
    const int64_t fanout = rule_.fanout;
    const bool replace = rule_.replace;
    int64_t *const begin = begin_, *const length = length_, *const ends = colptr_ + 1;
    for (int64_t i = from; i < to; ++i) {
      if (i + kNodesAhead < to) {
        const int64_t* const ahead = pointers + (nodes[i + kNodesAhead] - first_column);
        GNNSCALE_PREFETCH(ahead);
        GNNSCALE_PREFETCH(ahead + 1);
      }
      if (i % kLineItems == 0) {
        for (int64_t* const written : {begin, length, ends}) GNNSCALE_PREFETCH_WRITE(written + i + kItemsAhead);
      }
      const auto [first, last] = reader_.stored(nodes[i]);
      begin[i] = first;
      length[i] = last - first;
      ends[i] = sum += pick_count(last - first, fanout, replace);
    }
  }

  // The same where each node has one stored neighbor, which its time may rule out. Never inlined, so that the other
  // loops are compiled as without it.
  __attribute__((noinline)) void count_one_each(int64_t from, int64_t to, int64_t sum) {
    const int64_t *const nodes = frontier_.node, *const time = relation_.time;
    const int64_t first_column = relation_.first, one = pick_count(1, rule_.fanout, rule_.replace);
    const bool starts = frontier_.start_time != nullptr;
    int64_t *const begin = begin_, *const length = length_, *const ends = colptr_ + 1;
    for (int64_t i = from; i < to; ++i) {
      if (time != nullptr && i + kNodesAhead < to) GNNSCALE_PREFETCH(time + (nodes[i + kNodesAhead] - first_column));
      const int64_t position = nodes[i] - first_column;
      bool allowed = true;
      if (time != nullptr) {
        allowed = time[position] <= frontier_.entry(frontier_.time, i);
        if (starts) allowed &= time[position] >= frontier_.entry(frontier_.start_time, i);
      }
      begin[i] = position;
      length[i] = allowed;
      ends[i] = sum += allowed ? one : 0;
    }
  }

  // The same where times or exclusions rule neighbors out.
  void count_candidates(int64_t from, int64_t to, int64_t sum) {
    Vector<int64_t> excluded;
    const bool starts = frontier_.start_time != nullptr, replace = rule_.replace;
    const bool ranges = relation_.num_excluded == 0 && !rule_.last;  // all that times leave are candidates
    const int64_t fanout = rule_.fanout;
    int64_t *const begins = begin_, *const lengths = length_, *const ends = colptr_ + 1;
    Searches chunks[2];
    load_searches(from, std::min(to, from + kSearches), to, chunks[0]);
    for (int64_t start = from, side = 0; start < to; start += kSearches, side ^= 1) {
      const int64_t count = std::min(to - start, kSearches), next = start + count;
      if (next < to) load_searches(next, std::min(to, next + kSearches), to, chunks[side ^ 1]);
      auto& [first, last, bound, start_bound] = chunks[side];
      if (relation_.time != nullptr) {
        cut_off(relation_.time, relation_.num_edges, count, first, last, bound);
        if (starts) cut_off_start(relation_.time, relation_.num_edges, count, first, last, start_bound);
      }
      if (ranges) {
        for (int64_t k = 0; k < count; ++k) {
          begins[start + k] = first[k];
          lengths[start + k] = last[k] - first[k];
          ends[start + k] = sum += pick_count(last[k] - first[k], fanout, replace);
        }
        continue;
      }
      for (int64_t k = 0; k < count; ++k) {
        const int64_t i = start + k;
        const CandidateRange found =
            find_candidates(relation_, frontier_.node[i], first[k], last[k], fanout, rule_.last, excluded);
        begins[i] = found.first;
        lengths[i] = found.length;
        ends[i] = sum += pick_count(found.count(), fanout, replace);
      }
    }
  }

  // The stored lists of up to kSearches nodes, and the times between which their candidates lie.
  struct Searches {
    int64_t first[kSearches], last[kSearches], bound[kSearches], start_bound[kSearches];
  };

  // Those of nodes [from, to) of a thread's, which end at `end`. What the first step of their searches reads is
  // prefetched, and what is read for the next nodes.
  void load_searches(int64_t from, int64_t to, int64_t end, Searches& out) {
    const bool starts = frontier_.start_time != nullptr;
    for (int64_t i = from, k = 0; i < to; ++i, ++k) {
      if (i + kSearches < end) GNNSCALE_PREFETCH(relation_.pointer_of(frontier_.node[i + kSearches]));
      const auto [first, last] = reader_.stored(frontier_.node[i]);
      out.first[k] = first;
      out.last[k] = last;
      out.bound[k] = frontier_.entry(frontier_.time, i);
      if (relation_.time != nullptr) GNNSCALE_PREFETCH(relation_.time + first + (last - first) / 2);
      if (!starts) continue;
      out.start_bound[k] = frontier_.entry(frontier_.start_time, i);
      if (relation_.time != nullptr) GNNSCALE_PREFETCH(relation_.time + first);
    }
  }

  // The outputs of a block, and what is known of the nodes of the next one.
  GNNSCALE_INLINE void prefetch_around(int64_t block) const {
    constexpr int64_t kBytes = sizeof(int64_t);
    const int64_t from = first_edge(block), edges = (first_edge(block + 1) - from) * kBytes;
    prefetch_lines_to_write(row_ + from, edges);
    if (edge_id_ != nullptr) prefetch_lines_to_write(edge_id_ + from, edges);
    const int64_t next = first_node(block + 1), nodes = (first_node(block + 2) - next) * kBytes;
    for (const int64_t* const read :
         {frontier_.node, static_cast<const int64_t*>(begin_), static_cast<const int64_t*>(length_)}) {
      prefetch_lines(read + next, nodes);
    }
  }

  Counter counter_of(int64_t i) const {
    return make_counter(frontier_.node[i], frontier_.tree == nullptr ? 0 : frontier_.tree[i], rule_.hop,
                        relation_.number);
  }

  // Uniform picks from ranges, kLanes nodes at a time.
  void pick_uniformly(int64_t from, int64_t to, Scratch& scratch, int64_t* end) const {
    static constexpr int64_t kNoTrees[kLanes] = {};
    const int64_t fanout = rule_.fanout;
    const bool replace = rule_.replace;
    const uint32_t tail = make_counter(0, 0, rule_.hop, relation_.number).tail;
    for (int64_t i = from; i < to; i += kLanes) {
      const PickGroup group{frontier_.node + i, frontier_.tree == nullptr ? kNoTrees : frontier_.tree + i,
                            begin_ + i,         length_ + i,
                            colptr_ + i,        tail};
      const int64_t lanes = std::min(to - i, kLanes);
      int64_t largest = 0;
      for (int64_t lane = 0; lane < lanes; ++lane) largest = std::max(largest, group.degree[lane]);
      if (largest == 0) continue;
      if (lanes == kLanes && fanout <= kLaneFanout && largest < int64_t{1} << 32 &&
          pick_is_random(largest, fanout, replace)) {
        end = scratch.picker.pick_group(group, fanout, replace, end);
        continue;
      }
      for (int64_t lane = 0; lane < lanes; ++lane) {
        const int64_t first = group.first[lane], degree = group.degree[lane];
        if (pick_is_random(degree, fanout, replace)) {
          end = scratch.picker.pick_node(counter_of(i + lane), first, degree, fanout, replace, end);
        } else {
          std::iota(end, end + degree, first);
          end += degree;
        }
      }
    }
  }

  // Picks by weight, or from ranges with excluded positions, node by node.
  void pick_among_candidates(int64_t from, int64_t to, Scratch& scratch, int64_t* end) const {
    const int64_t* const sums = relation_.weight;
    Vector<int64_t>& excluded = scratch.excluded;
    if (sums != nullptr) {
      for (int64_t i = from; i < to; ++i) {
        if (length_[i] == 0) continue;
        GNNSCALE_PREFETCH(sums + begin_[i] + length_[i] - 1);
        GNNSCALE_PREFETCH(sums + begin_[i] + length_[i] / 2);
      }
    }
    for (int64_t i = from; i < to; ++i) {
      const int64_t node = frontier_.node[i], first = begin_[i], length = length_[i];
      excluded.clear();
      if (relation_.num_excluded > 0) find_excluded(relation_, node, first, length, excluded);
      if (pick_is_random(length - static_cast<int64_t>(excluded.size()), rule_.fanout, rule_.replace)) {
        if (sums == nullptr) {
          end =
              scratch.picker.pick_candidates(counter_of(i), first, length, excluded, rule_.fanout, rule_.replace, end);
        } else {
          const int64_t before = first > *relation_.pointer_of(node) ? sums[first - 1] : 0;
          const WeightedRange<const int64_t*> range{sums, before, first, length};
          end = scratch.picker.pick_weighted(counter_of(i), range, excluded, rule_.fanout, rule_.replace, end);
        }
        continue;
      }
      auto skipped = excluded.begin();
      for (int64_t position = first; position < first + length; ++position) {
        if (skipped != excluded.end() && *skipped == position) {
          ++skipped;
        } else {
          *end++ = position;
        }
      }
    }
  }

  const Relation& relation_;
  Frontier frontier_;
  const DrawRule rule_;
  int64_t *const colptr_, *const begin_, *const length_;
  int64_t *row_ = nullptr, *edge_id_ = nullptr;
  int64_t block_;  // nodes of a block
  RelationReader reader_;
};

}  // namespace gnnscale
