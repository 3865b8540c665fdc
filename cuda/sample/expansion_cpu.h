// One relation in one hop on the CPU: the schedule by which drawing and relabelling overlap.
//
// The work is a chain of dependent cache misses: colptr, then row and edge id, then the cell of a local id. Blocks of
// frontier nodes go through it as a pipeline:
//
//                  step 0   step 1   step 2   step 3
//     pick         block 0  block 1  block 2  block 3     and start to prefetch what is stored at the positions
//     read                  block 0  block 1  block 2     the ids that are stored there
//     relabel                        block 0  block 1     and meanwhile prefetch for the block just picked
//
// Only relabelling has an order. With several threads all of them pick and read, and the first one relabels, in order,
// what has been read.
#pragma once

#include "batch_cpu.h"

namespace gnnscale {

constexpr int64_t kParallelFrom = 2048;  // edges of a hop; of fewer, one thread does it all

class Expansion {
 public:
  Expansion(Batch& batch, const Relation& relation, int64_t hop)
      : batch_(batch),
        relation_(relation),
        sources_(batch.nodes[relation.src]),
        destinations_(batch.nodes[relation.dst]),
        out_(batch.edges[relation.number]),
        hop_(static_cast<int>(hop)),
        fanout_(relation.fanouts[hop]),
        active_(relation.incoming < 0 ? nullptr : &batch.active.back()[relation.dst]),
        run_(destinations_.frontier_run) {}

  void run() {
    const int64_t size = destinations_.known - destinations_.frontier, columns = out_.columns;
    out_.colptr.reserve(columns + 1, columns + size + 1);
    out_.columns_per_hop.push_back(size);
    out_.columns += size;
    if (fanout_ == 0) {
      std::fill_n(out_.colptr.data() + columns + 1, size, out_.count);
      out_.per_hop.push_back(0);
      return;
    }
    const Request& request = batch_.request;
    const int64_t drawing_columns = active_ == nullptr ? size : compact();
    colptr_ = active_ == nullptr ? out_.colptr.data() + columns : batch_.compact.colptr.data();
    const auto [begin, length] = batch_.work->candidates(drawing_columns);
    Drawing drawing(relation_, frontier(drawing_columns), {request.key, hop_, fanout_, request.replace, request.last},
                    colptr_, begin, length);
    drawing.count(request.threads);
    if (active_ != nullptr) spread(out_.colptr.data() + columns + 1, size);
    const int64_t total = colptr_[drawing_columns], drawn = total - out_.count;
    reserve(total, drawn);
    drawing.write_to(frontier(drawing_columns), out_.row.data(), request.with_edge_id ? out_.id.data() : nullptr);

    Relabelling relabelling(*batch_.work, sources_, out_.row.data());
    const int64_t tasks = drawn < kParallelFrom ? 1 : num_tasks(drawing.num_blocks(), 2, request.threads);
    const bool in_trees = batch_.lookup == Lookup::kTrees && drawn > 0;
    const int64_t unentered = relation_.sources_differ ? sources_.count : sources_.count - sources_.entered;
    const bool apart = in_trees && tasks == 1 && unentered > (relation_.sources_differ ? 0 : drawn);
    if (in_trees) relabelling.spread_trees(colptr_, trees(), 0, drawing_columns);
    if (in_trees && !apart) prepare_trees();
    if (tasks == 1) {
      run_serially(drawing, relabelling, apart);
    } else {
      run_in_parallel(drawing, relabelling, tasks);
    }
    drawing.check_rows();
    if (request.in_blocks) end_runs(size);
    out_.count = total;
    out_.per_hop.push_back(drawn);
  }

 private:
  // The nodes, and the trees or null, of the columns that are drawn.
  const int64_t* nodes() const {
    return active_ == nullptr ? destinations_.id.data() + destinations_.frontier : batch_.compact.node.data();
  }
  const int64_t* trees() const {
    if (!batch_.request.disjoint) return nullptr;
    return active_ == nullptr ? destinations_.tree.data() + destinations_.frontier : batch_.compact.tree.data();
  }

  Frontier frontier(int64_t size) const {
    const auto from = [](const Vector<int64_t>& times) { return times.empty() ? nullptr : times.data(); };
    const Request& request = batch_.request;
    return {size, nodes(), trees(), from(request.seed_time), from(request.seed_start_time), trees()};
  }

  // Takes the columns with stored edges alone, and prefetches where these begin; returns how many there are.
  int64_t compact() {
    const int64_t count = active_->count(relation_.incoming);
    const int64_t* const position = active_->positions(relation_.incoming);
    const auto pick = [&](Vector<int64_t>& out, const int64_t* values) {
      out.resize(std::max(out.size(), static_cast<size_t>(count)));
      for (int64_t k = 0; k < count; ++k) out[k] = values[position[k]];
    };
    CompactColumns& to = batch_.compact;
    pick(to.node, destinations_.id.data() + destinations_.frontier);
    for (int64_t k = 0; k < std::min(count, kNodesAhead); ++k) {
      const int64_t* const pointer = relation_.pointer_of(to.node[k]);
      GNNSCALE_PREFETCH(pointer);
      GNNSCALE_PREFETCH(pointer + 1);
    }
    if (batch_.request.disjoint) pick(to.tree, destinations_.tree.data() + destinations_.frontier);
    to.colptr.resize(std::max(to.colptr.size(), static_cast<size_t>(count) + 1));
    to.colptr[0] = out_.count;
    return count;
  }

  // The ends of all `size` columns, of which those between the ones with stored edges are empty.
  void spread(int64_t* end, int64_t size) const {
    const int64_t count = active_->count(relation_.incoming);
    const int64_t* const position = active_->positions(relation_.incoming);
    int64_t at = 0;
    for (int64_t k = 0; k <= count; ++k) {
      const int64_t next = k < count ? position[k] : size;
      std::fill(end + at, end + next, colptr_[k]);
      at = next;
    }
  }

  void reserve(int64_t total, int64_t drawn) {
    const Request& request = batch_.request;
    // Each edge leads to at most one new node, and (of a tree) there are at most as many as the type has.
    const int64_t most =
        sources_.count + (request.disjoint ? drawn : std::min(drawn, request.sizes[relation_.src])) + 1;
    STD_TORCH_CHECK(!request.disjoint || most < int64_t{1} << 31, "a batch of disjoint trees has up to ", most,
                    " nodes, and 2^31 are the most: use fewer seeds or smaller fanouts");
    out_.row.reserve(out_.count, total);
    if (request.with_edge_id) out_.id.reserve(out_.count, total);
    const int64_t room = most + (request.disjoint ? kAtOnce : 0);
    sources_.id.reserve(sources_.count, room);
    if (request.disjoint) sources_.tree.reserve(sources_.count, room);
  }

  // next_read: whether the sources of the next block are known, so that their cells can be prefetched.
  void relabel(Relabelling& relabelling, const Drawing& drawing, int64_t block, bool next_read, PendingPicks& pending) {
    if (batch_.request.disjoint) {
      int64_t first = drawing.first_node(block);
      const int64_t last = drawing.first_node(block + 1), known = next_read ? drawing.first_node(block + 2) : last;
      while (first < last) {
        const int64_t end = batch_.request.in_blocks ? std::min(end_runs(first), last) : last;
        if (batch_.lookup == Lookup::kOneTree) first = relabel_by_tree(relabelling, drawing, first, end, pending);
        if (first < end) relabel_trees(relabelling, colptr_[first], colptr_[end], colptr_[known]);
        first = end;
      }
      return;
    }
    const int64_t to = drawing.first_edge(block + 1);
    relabelling.relabel(batch_.request.lookup, drawing.first_edge(block), to,
                        next_read ? drawing.first_edge(block + 2) : to,
                        [&]() GNNSCALE_INLINE_LAMBDA { pending.prefetch_some(); });
  }

  // Enters the sources that are known.
  void prepare_trees() {
    enter_trees(batch_.work->trees[relation_.src], sources_);
    if (relation_.sources_differ) filter_ = filter_of_known();
  }

  TreeFilter::View filter_of_known() {
    TreeFilter& filter = batch_.work->filter;
    filter.start(sources_.count);
    filter.add(sources_.id.data(), sources_.tree.data(), sources_.count);
    return filter.view();
  }

  // Called when all edges of the hop are read. Enters those known sources that may be among the drawn ones; if no two
  // edges of the relation have the same source, also looks up the drawn ones.
  __attribute__((noinline)) void enter_drawn(Relabelling& relabelling, int64_t columns) {
    TreeTable& table = batch_.work->trees[relation_.src];
    const int64_t first = colptr_[0], last = colptr_[columns];
    if (relation_.sources_differ) {
      relabelling.find_known(table, filter_of_known(), first, last);
      return;
    }
    TreeFilter& asked = batch_.work->asked;
    asked.start(last - first);
    asked.add(out_.row.data() + first, relabelling.tree_of_edges() + first, last - first);
    enter_asked(table, sources_, asked.view(), sources_.entered, batch_.work->chosen);
  }

  // Edges [from, to) by the table of all trees. Not inlined, as relabel_by_tree.
  __attribute__((noinline)) void relabel_trees(Relabelling& relabelling, int64_t from, int64_t to, int64_t known) {
    TreeTable& table = batch_.work->trees[relation_.src];
    if (relation_.sources_differ) {
      if (filter_.words != nullptr) relabelling.look_up_known(table, filter_, from, to);
      relabelling.append_trees(from, to);
    } else {
      relabelling.relabel_trees(table, from, to, known);
    }
  }

  // Columns up to `column` are relabelled: ends the runs of sources that these have found. Returns where the run of
  // destinations ends that has the next column.
  int64_t end_runs(int64_t column) {
    for (; run_ < destinations_.known_run; ++run_) {
      const int64_t end = destinations_.run_ends[run_] - destinations_.frontier;
      if (end > column) return end;
      sources_.run_ends.push_back(sources_.count);
    }
    return column;
  }

  // Tree by tree, columns [from, to). Returns `to`, or the first column of those that the table of all trees is for.
  // Never inlined: its loop takes no registers of the others.
  __attribute__((noinline)) int64_t relabel_by_tree(Relabelling& relabelling, const Drawing& drawing, int64_t from,
                                                    int64_t to, PendingPicks& pending) {
    const int64_t done = relabelling.relabel_by_tree(colptr_, trees(), from, to, drawing.num_nodes(),
                                                     batch_.request.sizes[relation_.src],
                                                     [&]() GNNSCALE_INLINE_LAMBDA { pending.prefetch_some(); });
    if (done < to) {
      batch_.join_trees();
      relabelling.spread_trees(colptr_, trees(), done, drawing.num_nodes());
      prepare_trees();
    }
    return done;
  }

  // `apart`: all sources are read before the first is looked up in the table of trees, so that of the known sources
  // only those are entered that may be among them.
  void run_serially(Drawing& drawing, Relabelling& relabelling, bool apart) {
    // Relabelling waits for its own results and has more time for prefetches than reading has.
    PendingPicks pending(relation_), none(relation_);
    Scratch& scratch = batch_.work->scratch;
    const int64_t blocks = drawing.num_blocks();
    for (int64_t step = 0; step < blocks + 2; ++step) {
      if (step < blocks) drawing.pick(step, scratch, scratch.positions[step & 1], pending);
      if (step >= 1 && step - 1 < blocks) drawing.read(step - 1, scratch.positions[(step - 1) & 1], none);
      if (step >= 2 && !apart) relabel(relabelling, drawing, step - 2, step - 1 < blocks, pending);
      pending.prefetch_rest();
    }
    if (!apart) return;
    enter_drawn(relabelling, drawing.num_nodes());
    for (int64_t block = 0; block < blocks; ++block) {
      relabel(relabelling, drawing, block, block + 1 < blocks, none);
    }
  }

  // Every task claims blocks in order, picks and reads them; task 0 also relabels a block as soon as it has been read.
  // It finishes the hop alone if no other task runs beside it. A task without memory gives its blocks up.
  void run_in_parallel(Drawing& drawing, Relabelling& relabelling, int64_t tasks) {
    enum : uint32_t { kWaiting, kRead, kGivenUp };
    const int64_t blocks = drawing.num_blocks();
    Vector<std::atomic<uint32_t>> states(static_cast<size_t>(blocks));
    std::atomic<int64_t> unclaimed{0};
    run_tasks(tasks, [&](int64_t task) {
      Scratch own;
      Scratch& scratch = task == 0 ? batch_.work->scratch : own;
      PendingPicks pending(relation_), none(relation_);
      int64_t picked = -1, next = task == 0 ? 0 : blocks;
      int side = 0;  // of scratch.positions, for the next block
      const auto leave = [&](int64_t block, uint32_t state) {
        states[block].store(state, std::memory_order_release);
        states[block].notify_one();
      };
      const auto finish_picked = [&](int picked_side) {  // tasks that do not relabel prefetch while reading
        drawing.read(picked, scratch.positions[picked_side], task == 0 ? none : pending);
        leave(std::exchange(picked, -1), kRead);
      };
      while (true) {
        const uint32_t state = next < blocks ? states[next].load(std::memory_order_acquire) : kWaiting;
        if (state == kGivenUp) return;
        if (state == kRead) {
          const bool next_read = next + 1 < blocks && states[next + 1].load(std::memory_order_acquire) == kRead;
          relabel(relabelling, drawing, next++, next_read, pending);
          continue;
        }
        const int64_t block = unclaimed.fetch_add(1, std::memory_order_relaxed);
        if (block < blocks) {
          try {
            pending.prefetch_rest();
            drawing.pick(block, scratch, scratch.positions[side], pending);
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

  Batch& batch_;
  const Relation& relation_;
  Nodes &sources_, &destinations_;
  DrawnEdges& out_;
  const int hop_;
  const int64_t fanout_;
  const ActiveColumns* const active_;  // null: all columns are drawn
  int64_t* colptr_ = nullptr;          // where the edges of the columns that are drawn begin, and the last one's end
  TreeFilter::View filter_{};          // of the sources that were known, if the relation's differ
  size_t run_;                         // of the destinations: the first whose sources are not all found
};

}  // namespace gnnscale
