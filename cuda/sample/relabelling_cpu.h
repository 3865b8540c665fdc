// Relabelling on the CPU: global to local ids, in order of first occurrence. It has an order, so one thread does it.
//
// Local ids are looked up in a map with a cell for each node of the graph (relabel.h), or, where it would be much
// larger than the batch, in a table of the batch's nodes. Where trees are disjoint, they are looked up in a table of
// one tree after another, or in one of (tree, node). The tables are in relabel_table.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "../memory/pool.h"
#include "../memory/workspace.h"
#include "../prefetch.h"
#include "../relabel.h"
#include "new_nodes_cpu.h"
#include "relabel_table.h"
#include "tree_filter_cpu.h"

namespace gnnscale {

constexpr int64_t kSeedsAhead = 32;   // distance at which the cells of seeds are prefetched,
constexpr int64_t kEdgesAhead = 128;  // those of the sources of edges,
constexpr int64_t kFoundAhead = 128;  // and the end of the list of nodes, which is written
constexpr int64_t kEdgesAtOnce = 8;   // edges whose cells are prefetched together

enum class Lookup { kMap, kTable, kOneTree, kTrees };

// The nodes of a type that were found; [frontier, known) are expanded in the hop at hand.
struct Nodes {
  PooledArray<int64_t> id, tree;  // tree: where trees are disjoint
  int64_t count = 0, frontier = 0, known = 0;
  int64_t offset = 0;   // of the type's ids among those of all types
  int64_t entered = 0;  // how many are in the table of all trees, where that is used
  std::vector<int64_t> per_hop;
  // The list as runs of nodes: the seeds, then of each hop and relation those that one run of its destinations found.
  // run_ends[k] is where run k ends; runs [frontier_run, known_run) are [frontier, known). Kept for tree_blocks_cpu.h.
  std::vector<int64_t> run_ends;
  size_t frontier_run = 0, known_run = 0;
};

// Where the local ids of a type's nodes are looked up: a map with a cell for each node, or a table. add(id, count)
// returns the local id of a node; a new one gets the local id `count`, and `count` grows by 1.
struct MapCells {
  uint32_t* map;
  uint32_t base;
  GNNSCALE_INLINE void prefetch(int64_t id) const { GNNSCALE_PREFETCH(map + id); }
  // Which neighbor is new cannot be predicted, so there is no branch: what is known is written again.
  GNNSCALE_INLINE uint32_t add(int64_t id, uint32_t& count) const {
    const uint32_t found = local_id(map[id], base);
    const bool is_new = found >= count;
    const uint32_t local = is_new ? count : found;
    map[id] = base + local;
    count += is_new;
    return local;
  }
};

template <typename View>
struct TableCells {
  View table;
  int64_t offset;
  GNNSCALE_INLINE void prefetch(int64_t id) const { table.prefetch(offset + id, 0); }
  GNNSCALE_INLINE uint32_t add(int64_t id, uint32_t& count) const {
    const uint32_t local = table.add(offset + id, 0, count);
    count += local == count;
    return local;
  }
};

// Enters nodes with the local ids `from`, from + 1, ... below `count` into a table that those before are in. A repeated
// node has the local id of its first occurrence. trees: the tree of each node; null if all nodes are in one.
template <typename Table>
void enter_nodes(Table& table, int64_t offset, const int64_t* ids, const int64_t* trees, int64_t from, int64_t count) {
  table.reserve(count - from);
  const auto view = table.view();
  const auto tree_of = [&](int64_t i) { return trees == nullptr ? 0 : static_cast<uint32_t>(trees[i]); };
  int64_t entered = 0;
  for (int64_t i = from; i < count; ++i) {
    if (i + kSeedsAhead < count) view.prefetch(offset + ids[i + kSeedsAhead], tree_of(i + kSeedsAhead));
    entered += view.add(offset + ids[i], tree_of(i), static_cast<uint32_t>(i)) == static_cast<uint32_t>(i);
  }
  table.added(entered, count);
}

// Enters the nodes of a type that are not yet in its table of all trees.
inline void enter_trees(TreeTable& table, Nodes& nodes) {
  if (nodes.entered == nodes.count) return;
  enter_nodes(table, 0, nodes.id.data(), nodes.tree.data(), nodes.entered, nodes.count);
  nodes.entered = nodes.count;
}

// Enters, of the nodes of a type from number `from` on, those that `asked` may have. Other nodes, and later calls, may
// be entered or not.
inline void enter_asked(TreeTable& table, const Nodes& nodes, const TreeFilter::View asked, int64_t from,
                        Vector<int64_t>& chosen) {
  const int64_t *const ids = nodes.id.data(), *const trees = nodes.tree.data();
  const auto tree_of = [&](int64_t i) { return static_cast<uint32_t>(trees[i]); };
  chosen.resize(std::max(chosen.size(), static_cast<size_t>(nodes.count - from + TreeFilter::kRoom)));
  int64_t* const at = chosen.data();
  const int64_t count = asked.choose(ids, trees, from, nodes.count, at);
  table.reserve(count);
  const auto view = table.view();
  for (int64_t k = 0; k < count; ++k) {
    if (k + kSeedsAhead < count) view.prefetch(ids[at[k + kSeedsAhead]], tree_of(at[k + kSeedsAhead]));
    view.add(ids[at[k]], tree_of(at[k]), static_cast<uint32_t>(at[k]));
  }
  table.added(count, nodes.count);
}

// As enter_nodes for the map, whose base has been set.
inline void enter_nodes(const MapCells& cells, const int64_t* ids, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (i + kSeedsAhead < count) GNNSCALE_PREFETCH_WRITE(cells.map + ids[i + kSeedsAhead]);
    uint32_t& cell = cells.map[ids[i]];
    if (local_id(cell, cells.base) >= static_cast<uint64_t>(i)) cell = cells.base + static_cast<uint32_t>(i);
  }
}

// The sources of one relation's edges in one hop, whose global ids row[e] become local ones, from the first edge to the
// last. New nodes are appended to `sources`, which has room for them and one more.
class Relabelling {
 public:
  Relabelling(Workspace& work, Nodes& sources, int64_t* row) : work_(work), sources_(sources), row_(row) {}

  // Edges [from, to). Ids are known up to edge `known`, so that their cells can be prefetched. From time to time,
  // meanwhile() is called.
  template <typename Meanwhile>
  void relabel(Lookup lookup, int64_t from, int64_t to, int64_t known, Meanwhile&& meanwhile) {
    if (lookup == Lookup::kMap) {
      return relabel_by(MapCells{work_.map + sources_.offset, work_.base}, from, to, known, meanwhile);
    }
    NodeTable& table = work_.nodes;
    table.reserve(to - from);
    const int64_t before = sources_.count;
    relabel_by(TableCells<NodeTable::View>{table.view(), sources_.offset}, from, to, known, meanwhile);
    table.added(sources_.count - before, sources_.count);
  }

  // The edges of columns [from, to) among all `columns` of the hop, colptr[i] to colptr[i + 1], whose destinations are
  // of trees[i]: tree by tree. most: as for OneTree. Returns `to`, or the first column for which its table has no room.
  template <typename Meanwhile>
  int64_t relabel_by_tree(const int64_t* colptr, const int64_t* trees, int64_t from, int64_t to, int64_t columns,
                          int64_t most, Meanwhile&& meanwhile) {
    int64_t *const ids = row_, *const found = sources_.id.data(), *const tree_of = sources_.tree.data();
    for (int64_t column = from, end; column < to; column = end) {
      const int64_t tree = trees[column];
      // Where the tree ends, maybe in a later block.
      for (tree_end_ = std::max(tree_end_, column + 1); tree_end_ < columns && trees[tree_end_] == tree;) ++tree_end_;
      end = std::min(tree_end_, to);
      const int64_t last = colptr[end];
      int64_t e = colptr[column];
      if (e == last) continue;
      if (!work_.tree.hold(tree, found, tree_of, sources_.count, colptr[tree_end_] - e, most)) return column;
      const OneTree::View view = work_.tree.view();
      uint32_t count = static_cast<uint32_t>(sources_.count);
      const auto add = [&](int64_t at) GNNSCALE_INLINE_LAMBDA {
        const int64_t id = ids[at];
        found[count] = id;  // what is written after the last node is overwritten, or not read
        tree_of[count] = tree;
        const uint32_t local = view.add(found, id, count);
        ids[at] = local;
        count += local == count;
      };
      for (; e + kEdgesAtOnce <= last; e += kEdgesAtOnce) {
        GNNSCALE_PREFETCH_WRITE(found + count + kFoundAhead);
        GNNSCALE_PREFETCH_WRITE(tree_of + count + kFoundAhead);
        meanwhile();
        for (int64_t k = 0; k < kEdgesAtOnce; ++k) add(e + k);
      }
      for (; e < last; ++e) add(e);
      sources_.count = count;
    }
    return to;
  }

  // Before the edges of columns [from, to) are relabelled by a table of all trees: writes the tree of each of them
  // where the trees of new nodes will stand, which are no more than the edges.
  void spread_trees(const int64_t* colptr, const int64_t* trees, int64_t from, int64_t to) {
    of_edge_ = sources_.tree.data() + sources_.count - colptr[from];
    fill_columns(colptr, from, to, of_edge_, [trees](int64_t column) { return trees[column]; });
  }
  const int64_t* tree_of_edges() const { return of_edge_; }

  // Edges [from, to) by the type's table of all trees. Ids are known up to edge `known`.
  void relabel_trees(TreeTable& table, int64_t from, int64_t to, int64_t known) {
    table.reserve(to - from);
    const TreeTable::View view = table.view();
    int64_t *const ids = row_, *const found = sources_.id.data(), *const tree_of = sources_.tree.data();
    const int64_t* const of_edge = of_edge_;
    const auto prefetch = [&](int64_t e)
                              GNNSCALE_INLINE_LAMBDA { view.prefetch(ids[e], static_cast<uint32_t>(of_edge[e])); };
    uint32_t count = static_cast<uint32_t>(sources_.count);
    for (int64_t e = std::max(from, prefetched_); e < std::min(from + kEdgesAhead, known); ++e) prefetch(e);
    prefetched_ = std::min(to + kEdgesAhead, known);
    for (int64_t e = from; e < to; ++e) {
      if (e + kEdgesAhead < known) prefetch(e + kEdgesAhead);
      const int64_t id = ids[e], tree = of_edge[e];
      found[count] = id;  // what is written after the last node is overwritten, or not read
      tree_of[count] = tree;
      const uint32_t local = view.add(id, static_cast<uint32_t>(tree), count);
      ids[e] = local;
      count += local == count;
    }
    const int64_t added = count - sources_.count;
    table.added(added, count);
    if (sources_.entered == sources_.count) sources_.entered += added;  // else not all that were known are there
    sources_.count += added;
  }

  // The same in two steps, where no two edges of a tree have the same source. A node that is found here is not looked
  // up here, so the table keeps the nodes that were known before. Most nodes are found in the last hop and never
  // entered.
  //
  // The first step looks up known sources: all of these are in `filter` and in the table. The source of an edge becomes
  // -1 - its local id if it is known. Most sources are not.
  void look_up_known(const TreeTable& table, const TreeFilter::View filter, int64_t from, int64_t to) {
    look_up(table, choose(filter, from, to));
  }

  // The first step for all edges of a hop, if the table lacks nodes that were known before: it first enters those that
  // may be sources. `filter` has all known nodes.
  void find_known(TreeTable& table, const TreeFilter::View filter, int64_t from, int64_t to) {
    const int64_t count = choose(filter, from, to);
    if (count == 0) return;
    const int64_t* const maybe = work_.maybe.data();
    TreeFilter& asked = work_.asked;
    asked.start(count);
    for (int64_t k = 0; k < count; ++k) asked.add(row_ + maybe[k], of_edge_ + maybe[k], 1);
    enter_asked(table, sources_, asked.view(), 0, work_.chosen);
    look_up(table, count);
  }

  // The second step appends the other sources to the list of nodes.
  void append_trees(int64_t from, int64_t to) {
    const NewNodes list{sources_.id.data(), sources_.tree.data()};
    sources_.count = some_known_ ? list.append_some(row_, of_edge_, from, to, sources_.count)
                                 : list.append(row_, of_edge_, from, to, sources_.count);
  }

 private:
  // Writes to work_.maybe the edges of [from, to) whose sources `filter` may have; returns how many these are.
  int64_t choose(const TreeFilter::View filter, int64_t from, int64_t to) {
    Vector<int64_t>& maybe = work_.maybe;
    maybe.resize(std::max(maybe.size(), static_cast<size_t>(to - from + TreeFilter::kRoom)));
    return filter.choose(row_, of_edge_, from, to, maybe.data());
  }

  // Looks up the sources of the first `count` edges of work_.maybe.
  void look_up(const TreeTable& table, int64_t count) {
    const TreeTable::View view = table.view();
    const int64_t* const maybe = work_.maybe.data();
    const auto tree_of = [this](int64_t e) { return static_cast<uint32_t>(of_edge_[e]); };
    for (int64_t k = 0; k < count; ++k) view.prefetch(row_[maybe[k]], tree_of(maybe[k]));
    for (int64_t k = 0; k < count; ++k) {
      const int64_t e = maybe[k], local = view.lookup(row_[e], tree_of(e));
      if (local < 0) continue;
      row_[e] = -1 - local;
      some_known_ = true;
    }
  }

  template <typename Cells, typename Meanwhile>
  void relabel_by(const Cells cells, int64_t from, int64_t to, int64_t known, Meanwhile&& meanwhile) {
    int64_t *const ids = row_, *const found = sources_.id.data();
    uint32_t count = static_cast<uint32_t>(sources_.count);
    const auto add = [&](int64_t e) GNNSCALE_INLINE_LAMBDA {
      const int64_t id = ids[e];
      found[count] = id;  // what is written after the last node is overwritten, or not read
      ids[e] = cells.add(id, count);
    };
    for (int64_t e = std::max(from, prefetched_); e < std::min(from + kEdgesAhead, known); ++e) cells.prefetch(ids[e]);
    prefetched_ = std::min(to + kEdgesAhead, known);
    int64_t e = from;
    for (const int64_t end = std::min(to, known - kEdgesAhead); e + kEdgesAtOnce <= end; e += kEdgesAtOnce) {
      GNNSCALE_PREFETCH_WRITE(found + count + kFoundAhead);
      meanwhile();
      for (int64_t k = 0; k < kEdgesAtOnce; ++k) cells.prefetch(ids[e + kEdgesAhead + k]);
      for (int64_t k = 0; k < kEdgesAtOnce; ++k) add(e + k);
    }
    for (; e < to; ++e) {
      if (e + kEdgesAhead < known) cells.prefetch(ids[e + kEdgesAhead]);
      GNNSCALE_PREFETCH_WRITE(found + count + kFoundAhead);
      add(e);
    }
    sources_.count = count;
  }

  Workspace& work_;
  Nodes& sources_;
  int64_t* const row_;
  int64_t prefetched_ = 0;      // the edge up to which cells are prefetched
  bool some_known_ = false;     // whether an edge's source was looked up and found
  int64_t* of_edge_ = nullptr;  // the tree of each edge, once spread_trees() has written them
  int64_t tree_end_ = 0;        // the column up to which columns are of the tree at hand
};

}  // namespace gnnscale
