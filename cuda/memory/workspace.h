// Memory of a sampling call other than its outputs; later calls use it again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "../sample/picks_cpu.h"
#include "../sample/relabel_table.h"
#include "../sample/tree_filter_cpu.h"

namespace gnnscale {

struct Workspace {
  // The relabel map (see relabel.h): `map_size` cells, whose values are all below `base`.
  uint32_t* map = nullptr;
  int64_t map_size = 0;
  uint32_t base = 1;
  // As `map`, of `slots_size` cells, for the candidates of a layer-wise hop; and a bit per node.
  uint32_t* slots = nullptr;
  uint64_t* bits = nullptr;
  int64_t slots_size = 0;
  uint32_t slot_base = 1;
  OneTree tree;                   // used instead of the map if trees are disjoint, and one follows another;
  std::vector<TreeTable> trees;   // else these, one for each node type, so that a relation's turn takes a small one,
  TreeFilter filter, asked;       // what may be in that one, and what may be looked up there,
  Vector<int64_t> maybe, chosen;  // and the edges, and the nodes, that may be
  NodeTable nodes;                // used instead of the map if the graph is much larger than the batch
  Scratch scratch;                // of the thread that runs a hop, or its first task
  // Counts of the last call, by node type or relation: the room that the next call's outputs get at first.
  std::vector<int64_t> last_nodes, last_edges, last_columns;

  // Makes an empty table of (tree, node) for each of `types` node types.
  void start_trees(size_t types);
  // Makes a map of at least `num_nodes` cells, in which base + i fits 32 bits for each i < num_local. Throws
  // OutOfMemory.
  void prepare(int64_t num_nodes, int64_t num_local);
  // Two arrays of `size`: where each frontier node's candidates begin among the stored edges, and how many there are.
  std::pair<int64_t*, int64_t*> candidates(int64_t size);
  // Makes a cell and a bit for each node of a graph. All cells are below slot_base, and slot_base + i fits 32 bits for
  // each i < num_nodes. All bits are 0, and callers leave them 0. Throws OutOfMemory.
  void prepare_slots(int64_t num_nodes);
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace();

 private:
  void unmap_slots();
  Vector<int64_t> candidates_;
};

// Takes an idle workspace, or makes one, and gives it back at the end of the scope. The smallest map of at least
// `num_nodes` cells is preferred, else the largest. At most kMaxIdle workspaces stay idle; others are freed.
class WorkspaceLease {
 public:
  explicit WorkspaceLease(int64_t num_nodes);
  ~WorkspaceLease();
  Workspace* operator->() const { return workspace_.get(); }
  Workspace& operator*() const { return *workspace_; }

 private:
  std::unique_ptr<Workspace> workspace_;
};

// Frees every idle workspace.
void workspace_trim() noexcept;

}  // namespace gnnscale
