// One relation in one hop on the CPU: the frontier's neighbors drawn, read and relabelled.
//
// The work is a chain of dependent cache misses: colptr, then row and edge id, then the relabel map. Frontier nodes go
// through it in blocks, as a pipeline: a block's positions are picked, the ids of the block before are read, and the
// block before that is relabelled while the first one's stored edges are prefetched. Only the relabelling has an order;
// with several threads all of them pick and read, and one relabels the finished blocks in order behind them.
#pragma once

#include <numeric>
#include <tuple>

#include "../prefetch.h"
#include "batch_cpu.h"

namespace gnnscale {

constexpr int64_t kBlockNodes = 128;   // frontier nodes a block, fewer if so many times the fanout
constexpr int64_t kBlockPicks = 1024;  // would be more picks than these
constexpr int64_t kNodesAhead = 32;    // how far ahead colptr is prefetched
constexpr int64_t kItemsAhead = 128;   // how far ahead outputs are: a line to be written is read first
constexpr int64_t kLineItems = kLineBytes / sizeof(int64_t);  // outputs on a line, and edges relabelled at a time
constexpr int64_t kParallelFrom = 2048;                       // edges of a hop below which one thread does it all

class Expansion : private Pass {
 public:
  Expansion(Batch& owner, const Relation& of, int64_t hop)
      : Pass(owner, of), hop_(static_cast<int>(hop)), fanout_(of.fanouts[hop]), columns_(out.columns) {}

  void run() {
    const int64_t size = destinations.known - destinations.frontier;
    out.colptr.reserve(columns_ + 1, columns_ + size + 1);
    out.columns_per_hop.push_back(size);
    out.columns += size;
    if (fanout_ == 0) {
      std::fill_n(out.colptr.data() + columns_ + 1, size, out.count);
      out.per_hop.push_back(0);
      return;
    }
    if (static_cast<int64_t>(batch.work->begin.size()) < size) {
      batch.work->begin.resize(size + size / 4);
      batch.work->length.resize(size + size / 4);
    }
    const int64_t count_tasks = num_tasks(size, 8192, batch.request.threads);
    run_tasks(count_tasks, [&](int64_t task) {
      const auto [begin, end] = part(size, task, count_tasks);
      const int64_t before = task == 0 ? out.colptr[columns_] : 0;
      if (relation.time == nullptr && relation.num_excluded == 0) {
        count(begin, end, before);
      } else {
        count_candidates(begin, end, before);
      }
    });
    check_pointers();
    for (int64_t task = 1; task < count_tasks; ++task) {
      const auto [begin, end] = part(size, task, count_tasks);
      const int64_t before = out.colptr[columns_ + begin];
      for (int64_t i = begin; i < end; ++i) out.colptr[columns_ + i + 1] += before;
    }
    const int64_t total = out.colptr[columns_ + size], drawn = total - out.count;
    out.row.reserve(out.count, total);
    if (batch.request.with_edge_id) out.id.reserve(out.count, total);
    // Each edge leads to at most one new node, and (of a tree) there are at most as many as the type has.
    const int64_t most =
        sources.count + (batch.request.disjoint ? drawn : std::min(drawn, batch.request.sizes[relation.src])) + 1;
    STD_TORCH_CHECK(!batch.request.disjoint || most < int64_t{1} << 31, "a batch of disjoint trees has up to ", most,
                    " nodes, and 2^31 are the most: use fewer seeds or smaller fanouts");
    sources.id.reserve(sources.count, most);
    if (batch.request.disjoint) sources.tree.reserve(sources.count, most);

    block_ = std::clamp<int64_t>(kBlockPicks / std::max<int64_t>(fanout_, 1), 1, kBlockNodes);
    if (block_ > kLanes) block_ -= block_ % kLanes;
    const int64_t blocks = (size + block_ - 1) / block_;
    const int64_t tasks = drawn < kParallelFrom ? 1 : num_tasks(blocks, 2, batch.request.threads);
    if (tasks == 1) {
      pick_serially(size, blocks);
    } else {
      pick_in_parallel(size, blocks, tasks);
    }
    check_rows();
    out.count = total;
    out.per_hop.push_back(drawn);
  }

 private:
  // Candidates of frontier nodes [from, to), and in colptr the sums of their counts, on top of `sum`.
  void count(int64_t from, int64_t to, int64_t sum) {
    const int64_t* frontier = destinations.id.data() + destinations.frontier;
    const int64_t* pointers = relation.colptr;
    const int64_t fanout = fanout_;
    const bool replace = batch.request.replace;
    int64_t *const begin = batch.work->begin.data(), *const length = batch.work->length.data();
    int64_t* const counts = out.colptr.data() + columns_ + 1;
    for (int64_t i = from; i < to; ++i) {
      if (i + kNodesAhead < to) {
        const int64_t* const ahead = pointers + frontier[i + kNodesAhead];
        GNNSCALE_PREFETCH(ahead);
        GNNSCALE_PREFETCH(ahead + 1);
      }
      if (i % kLineItems == 0) {
        for (int64_t* const written : {begin, length, counts}) GNNSCALE_PREFETCH_WRITE(written + i + kItemsAhead);
      }
      const auto [first, last] = stored(frontier[i]);
      begin[i] = first;
      length[i] = last - first;
      counts[i] = sum += pick_count(last - first, fanout, replace);
    }
  }

  // The same where times or exclusions rule neighbors out.
  void count_candidates(int64_t from, int64_t to, int64_t sum) {
    const int64_t* frontier = destinations.id.data() + destinations.frontier;
    std::vector<int64_t> excluded;
    int64_t first[kSearches], last[kSearches], bound[kSearches];
    for (int64_t begin = from; begin < to; begin += kSearches) {
      const int64_t count = std::min(to - begin, kSearches);
      for (int64_t i = 0; i < count; ++i) {
        if (begin + i + kSearches < to) GNNSCALE_PREFETCH(relation.colptr + frontier[begin + i + kSearches]);
        std::tie(first[i], last[i]) = stored(frontier[begin + i]);
        bound[i] = seed_time(destinations.frontier + begin + i);
      }
      if (relation.time != nullptr) cut_off(relation.time, count, first, last, bound);
      for (int64_t i = 0; i < count; ++i) {
        const Candidates found =
            find_candidates(relation, frontier[begin + i], first[i], last[i], fanout_, batch.request.last, excluded);
        batch.work->begin[begin + i] = found.first;
        batch.work->length[begin + i] = found.length;
        out.colptr[columns_ + begin + i + 1] = sum += pick_count(found.count(), fanout_, batch.request.replace);
      }
    }
  }

  int64_t first_edge(int64_t block, int64_t size) const {
    return out.colptr[columns_ + std::min(block * block_, size)];
  }

  // Positions of the picks of a block, whose stored edges are to be prefetched then.
  void pick_block(int64_t block, int64_t size, Scratch& scratch, std::vector<int64_t>& positions,
                  PendingPicks& pending) {
    const int64_t from = block * block_, to = std::min(from + block_, size);
    const int64_t count = first_edge(block + 1, size) - first_edge(block, size);
    const size_t room = static_cast<size_t>(count + kLaneFanout);
    if (positions.size() < room) positions.resize(room);
    prefetch_around(block, size);
    scratch.picker.set_key(batch.request.key);
    if (relation.is_plain()) {
      pick_uniformly(from, to, scratch, positions.data());
    } else {
      pick_among_candidates(from, to, scratch, positions.data());
    }
    pending.start(positions.data(), count);
  }

  // The outputs of the edges of a block, and what is known of the nodes of the next one.
  GNNSCALE_INLINE void prefetch_around(int64_t block, int64_t size) const {
    constexpr int64_t kBytes = sizeof(int64_t);
    const int64_t from = first_edge(block, size), edges = (first_edge(block + 1, size) - from) * kBytes;
    prefetch_lines_to_write(out.row.data() + from, edges);
    if (batch.request.with_edge_id) prefetch_lines_to_write(out.id.data() + from, edges);
    const int64_t next = (block + 1) * block_, nodes = (std::min(next + block_, size) - next) * kBytes;
    prefetch_lines(destinations.id.data() + destinations.frontier + next, nodes);
    prefetch_lines(batch.work->begin.data() + next, nodes);
    prefetch_lines(batch.work->length.data() + next, nodes);
  }

  // Uniform picks from ranges, kLanes nodes at a time.
  void pick_uniformly(int64_t from, int64_t to, Scratch& scratch, int64_t* end) {
    static constexpr int64_t kNoTrees[kLanes] = {};
    const int64_t fanout = fanout_;
    const bool replace = batch.request.replace, disjoint = batch.request.disjoint;
    const uint32_t tail = make_counter(0, 0, hop_, relation.number).tail;
    for (int64_t i = from; i < to; i += kLanes) {
      const int64_t node = destinations.frontier + i;
      const PickGroup group{destinations.id.data() + node,    disjoint ? destinations.tree.data() + node : kNoTrees,
                            batch.work->begin.data() + i,     batch.work->length.data() + i,
                            out.colptr.data() + columns_ + i, tail};
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
          const Counter counter = make_counter(group.node[lane], group.tree[lane], hop_, relation.number);
          end = scratch.picker.pick_node(counter, first, degree, fanout, replace, end);
        } else {
          std::iota(end, end + degree, first);
          end += degree;
        }
      }
    }
  }

  // Picks by weight, or from ranges with excluded positions, node by node.
  void pick_among_candidates(int64_t from, int64_t to, Scratch& scratch, int64_t* end) {
    const int64_t* const sums = relation.weight;
    std::vector<int64_t>& excluded = scratch.excluded;
    if (sums != nullptr) {
      for (int64_t i = from; i < to; ++i) {
        const int64_t first = batch.work->begin[i], length = batch.work->length[i];
        if (length == 0) continue;
        GNNSCALE_PREFETCH(sums + first + length - 1);
        GNNSCALE_PREFETCH(sums + first + length / 2);
      }
    }
    for (int64_t i = from; i < to; ++i) {
      const int64_t at = destinations.frontier + i, node = destinations.id[at];
      const int64_t first = batch.work->begin[i], length = batch.work->length[i];
      excluded.clear();
      if (relation.num_excluded > 0) find_excluded(relation, node, first, length, excluded);
      if (pick_is_random(length - static_cast<int64_t>(excluded.size()), fanout_, batch.request.replace)) {
        const Counter counter =
            make_counter(node, batch.request.disjoint ? destinations.tree[at] : 0, hop_, relation.number);
        const int64_t before = sums != nullptr && first > relation.colptr[node] ? sums[first - 1] : 0;
        end = scratch.picker.pick_candidates(counter, first, length, excluded, sums, before, fanout_,
                                             batch.request.replace, end);
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

  // Node ids and edge ids of a block's picks to the outputs. Meanwhile `pending` is prefetched.
  void read_block(int64_t block, int64_t size, const std::vector<int64_t>& positions, PendingPicks& pending) {
    const int64_t from = first_edge(block, size), count = first_edge(block + 1, size) - from;
    relation.read(relation, positions.data(), count, out.row.data() + from,
                  batch.request.with_edge_id ? out.id.data() + from : nullptr, corrupt, pending);
  }

  // Global to local ids, in order of first occurrence; new nodes join the next frontier. `next_read`: the ids of the
  // next block are known, so that its first cells can be prefetched. Meanwhile `pending` is, beside the map or the
  // table.
  void relabel_block(int64_t block, int64_t size, bool next_read, PendingPicks& pending) {
    if (batch.request.disjoint) return relabel_trees(block, size);
    if (!batch.request.in_table) {
      relabel(block, size, next_read, pending, MapCells{batch.work->map + sources.offset, batch.work->base});
      return;
    }
    NodeTable& table = batch.work->nodes;
    table.reserve(first_edge(block + 1, size) - first_edge(block, size));
    const int64_t before = sources.count;
    relabel(block, size, next_read, pending, TableCells{table.view(), sources.offset});
    table.added(sources.count - before, sources.count);
  }

  // The cells of the nodes of the source type: in the map, or in the table.
  struct MapCells {
    uint32_t* map;
    uint32_t base;
    GNNSCALE_INLINE void prefetch(int64_t id) const { GNNSCALE_PREFETCH(map + id); }
    // Without a branch, for nobody can predict which neighbor is new: what is known is written again.
    GNNSCALE_INLINE uint32_t add(int64_t id, uint32_t& count) const {
      const uint32_t found = local_id(map[id], base);
      const bool is_new = found >= count;
      const uint32_t local = is_new ? count : found;
      map[id] = base + local;
      count += is_new;
      return local;
    }
  };
  struct TableCells {
    NodeTable::View table;
    int64_t offset;
    GNNSCALE_INLINE void prefetch(int64_t id) const { table.prefetch(offset + id, 0); }
    GNNSCALE_INLINE uint32_t add(int64_t id, uint32_t& count) const {
      const uint32_t local = table.add(offset + id, 0, count);
      count += local == count;
      return local;
    }
  };

  template <typename Cells>
  void relabel(int64_t block, int64_t size, bool next_read, PendingPicks& pending, const Cells cells) {
    const int64_t from = first_edge(block, size), to = first_edge(block + 1, size);
    const int64_t read_to = next_read ? first_edge(block + 2, size) : to;
    int64_t *const ids = out.row.data(), *const found = sources.id.data();
    uint32_t count = static_cast<uint32_t>(sources.count);
    const auto add = [&](int64_t e) GNNSCALE_INLINE_LAMBDA {
      const int64_t id = ids[e];
      found[count] = id;  // the slot after the last node is scratch
      ids[e] = cells.add(id, count);
    };
    for (int64_t e = std::max(from, asked_); e < std::min(from + kEdgesAhead, read_to); ++e) cells.prefetch(ids[e]);
    asked_ = std::min(to + kEdgesAhead, read_to);
    int64_t e = from;
    for (const int64_t end = std::min(to, read_to - kEdgesAhead); e + kLineItems <= end; e += kLineItems) {
      GNNSCALE_PREFETCH_WRITE(found + count + kItemsAhead);
      pending.prefetch_some();
      for (int64_t k = 0; k < kLineItems; ++k) cells.prefetch(ids[e + kEdgesAhead + k]);
      for (int64_t k = 0; k < kLineItems; ++k) add(e + k);
    }
    for (; e < to; ++e) {
      if (e + kEdgesAhead < read_to) cells.prefetch(ids[e + kEdgesAhead]);
      GNNSCALE_PREFETCH_WRITE(found + count + kItemsAhead);
      add(e);
    }
    sources.count = count;
  }

  // The same within each column's tree.
  void relabel_trees(int64_t block, int64_t size) {
    const int64_t begin = block * block_, end = std::min(begin + block_, size);
    const int64_t *const trees = destinations.tree.data() + destinations.frontier, offset = sources.offset;
    const int64_t* const pointers = out.colptr.data() + columns_;
    int64_t *const ids = out.row.data(), *const found = sources.id.data(), *const tree_of = sources.tree.data();
    batch.work->trees.reserve(pointers[end] - pointers[begin]);
    const TreeTable::View table = batch.work->trees.view();
    const auto prefetch = [&](int64_t column) GNNSCALE_INLINE_LAMBDA {
      const uint32_t tree = static_cast<uint32_t>(trees[column]);
      for (int64_t e = pointers[column]; e < pointers[column + 1]; ++e) table.prefetch(offset + ids[e], tree);
    };
    int64_t ahead = begin;
    uint32_t count = static_cast<uint32_t>(sources.count);
    for (int64_t column = begin; column < end; ++column) {
      while (ahead < end && pointers[ahead] < pointers[column] + kEdgesAhead) prefetch(ahead++);
      const uint32_t tree = static_cast<uint32_t>(trees[column]);
      for (int64_t e = pointers[column], last = pointers[column + 1]; e < last; ++e) {
        const uint32_t local = table.add(offset + ids[e], tree, count);
        found[count] = ids[e];  // the slot after the last node is scratch
        tree_of[count] = tree;
        count += local == count;
        ids[e] = local;
      }
    }
    batch.work->trees.added(count - sources.count, count);
    sources.count = count;
  }

  void pick_serially(int64_t size, int64_t blocks) {
    // Relabelling waits for its own results and has more time for prefetches than reading has.
    PendingPicks pending(relation), none(relation);
    for (int64_t step = 0; step < blocks + 2; ++step) {
      if (step < blocks) pick_block(step, size, batch.scratch, batch.scratch.positions[step & 1], pending);
      if (step >= 1 && step - 1 < blocks) read_block(step - 1, size, batch.scratch.positions[(step - 1) & 1], none);
      if (step >= 2) relabel_block(step - 2, size, step - 1 < blocks, pending);
      pending.prefetch_rest();
    }
  }

  // Every task claims blocks in order, picks and reads them; task 0 also relabels, as soon as the next one is read.
  // It finishes the hop alone if no other task runs beside it. A task without memory gives its blocks up.
  void pick_in_parallel(int64_t size, int64_t blocks, int64_t tasks) {
    enum : uint32_t { kWaiting, kRead, kGivenUp };
    std::vector<std::atomic<uint32_t>> states(static_cast<size_t>(blocks));
    std::atomic<int64_t> unclaimed{0};
    run_tasks(tasks, [&](int64_t task) {
      Scratch own;
      Scratch& scratch = task == 0 ? batch.scratch : own;
      PendingPicks pending(relation), none(relation);
      int64_t picked = -1, next = task == 0 ? 0 : blocks;
      int side = 0;  // of scratch.positions, for the next block
      const auto leave = [&](int64_t block, uint32_t state) {
        states[block].store(state, std::memory_order_release);
        states[block].notify_one();
      };
      const auto finish_picked = [&](int picked_side) {  // who does not relabel prefetches while reading
        read_block(picked, size, scratch.positions[picked_side], task == 0 ? none : pending);
        leave(std::exchange(picked, -1), kRead);
      };
      while (true) {
        const uint32_t state = next < blocks ? states[next].load(std::memory_order_acquire) : kWaiting;
        if (state == kGivenUp) return;
        if (state == kRead) {
          const bool next_read = next + 1 < blocks && states[next + 1].load(std::memory_order_acquire) == kRead;
          relabel_block(next++, size, next_read, pending);
          continue;
        }
        const int64_t block = unclaimed.fetch_add(1, std::memory_order_relaxed);
        if (block < blocks) {
          try {
            pending.prefetch_rest();
            pick_block(block, size, scratch, scratch.positions[side], pending);
          } catch (const std::bad_alloc&) {
            leave(block, kGivenUp);
            if (picked >= 0) leave(picked, kGivenUp);
            throw;
          }
          side ^= 1;
          if (picked >= 0) finish_picked(side);
          picked = block;
        } else if (picked >= 0) {
          pending.prefetch_rest();
          finish_picked(side ^ 1);
        } else if (next < blocks) {
          states[next].wait(kWaiting, std::memory_order_acquire);
        } else {
          return;
        }
      }
    });
  }

  const int hop_;
  const int64_t fanout_, columns_;  // columns_: of the hops before
  int64_t block_ = 1;
  int64_t asked_ = 0;  // the edge up to which cells of the map are prefetched
};

}  // namespace gnnscale
