// The operator relabel on the CPU: global ids to local ones, by a table of the nodes known so far.
#include <optional>
#include <tuple>

#include "../memory/checks.h"
#include "../memory/tensor.h"
#include "relabelling_cpu.h"

namespace gnnscale {
namespace {

// See torch_gnnscale.ops.relabel, which checks the arguments.
std::tuple<Tensor, Tensor, Tensor> relabel(const Tensor& known, const Tensor& ids,
                                           const std::optional<Tensor>& known_tree, const std::optional<Tensor>& tree) {
  check_int64("known", known);
  check_int64("ids", ids);
  check_int64("known_tree", known_tree);
  check_int64("tree", tree);
  const int64_t before = known.numel(), count = ids.numel();
  STD_TORCH_CHECK(known_tree.has_value() == tree.has_value() &&
                      (!tree.has_value() || (known_tree->numel() == before && tree->numel() == count)),
                  "relabel: expected a tree for each node and id, or none");
  STD_TORCH_CHECK(before + count < int64_t{1} << 31, "relabel: expected less than 2^31 nodes and ids, found ",
                  before + count);
  const int64_t *const id = data_or_null(ids), *const trees = data_or_null(tree);
  WorkspaceLease work(0);
  work->start_trees(1);
  TreeTable& table = work->trees[0];
  enter_nodes(table, 0, data_or_null(known), data_or_null(known_tree), 0, before);
  table.reserve(count);
  const TreeTable::View view = table.view();
  const auto tree_of = [trees](int64_t e) { return trees == nullptr ? 0 : static_cast<uint32_t>(trees[e]); };

  PooledArray<int64_t> local(count), node(count + 1), node_tree(trees == nullptr ? 0 : count + 1);
  const uint32_t first = static_cast<uint32_t>(before);
  uint32_t next = first;
  for (int64_t e = 0; e < count; ++e) {
    if (e + kEdgesAhead < count) view.prefetch(id[e + kEdgesAhead], tree_of(e + kEdgesAhead));
    node[next - first] = id[e];  // what is written after the last node is overwritten, or not read
    if (trees != nullptr) node_tree[next - first] = trees[e];
    const uint32_t found = view.add(id[e], tree_of(e), next);
    next += found == next;
    local[e] = found;
  }
  const int64_t added = next - first;
  table.added(added, next);
  node.fit(added);
  if (trees != nullptr) node_tree.fit(added);
  return {to_tensor(std::move(local), {count}, ScalarType::Long), to_tensor(std::move(node), {added}, ScalarType::Long),
          to_tensor(std::move(node_tree), {trees == nullptr ? 0 : added}, ScalarType::Long)};
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("relabel", TORCH_BOX(&relabel)); }

}  // namespace
}  // namespace gnnscale
