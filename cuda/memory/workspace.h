// What a sampling call needs besides its outputs, kept from call to call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "../sample/relabel_table.h"

namespace gnnscale {

struct Workspace {
  // The relabel map (see relabel.h): `map_size` cells, all below `base`.
  uint32_t* map = nullptr;
  int64_t map_size = 0;
  uint32_t base = 1;
  TreeTable trees;  // instead of the map where trees are disjoint
  NodeTable nodes;  // or the graph is much larger than the batch
  // What the last call produced, a node type or relation: the first guess for the next one's outputs.
  std::vector<int64_t> last_nodes, last_edges, last_columns;
  // Where each frontier node's candidates lie among the stored edges.
  std::vector<int64_t> begin, length;

  // Makes room for `num_nodes` cells and for local ids below `num_local` above the base.
  void prepare(int64_t num_nodes, int64_t num_local);
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace();
};

// Borrows an idle workspace, the smallest map that fits first, and returns it at the end of the scope. One a call in
// flight; idle ones beyond kMaxIdle are freed.
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
