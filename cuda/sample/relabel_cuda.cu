// The operator relabel on the current stream of a GPU (see relabel_phases.h). The host waits once, for the number of
// new nodes.
#include <torch/csrc/stable/accelerator.h>

#include <optional>
#include <tuple>

#include "../executor_cuda.h"
#include "relabel_phases.h"

namespace gnnscale {
namespace {

constexpr char kName[] = "relabel";

// See torch_gnnscale.ops.relabel, which checks the arguments.
std::tuple<Tensor, Tensor, Tensor> relabel(const Tensor& known, const Tensor& ids,
                                           const std::optional<Tensor>& known_tree, const std::optional<Tensor>& tree) {
  const int64_t before = known.numel(), count = ids.numel();
  STD_TORCH_CHECK(known_tree.has_value() == tree.has_value() &&
                      (!tree.has_value() || (known_tree->numel() == before && tree->numel() == count)),
                  "relabel: expected a tree for each node and id, or none");
  STD_TORCH_CHECK(before + count < int64_t{1} << 31, "relabel: expected less than 2^31 nodes and ids, found ",
                  before + count);
  STD_TORCH_CHECK(ids.is_cuda(), "relabel: ids are not on a GPU");
  const int32_t device = ids.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const StreamExecutor executor(kName, ids, current_stream(device));
  const auto numbers = [device](const std::optional<Tensor>& values) -> const int64_t* {
    if (!values.has_value()) return nullptr;
    const Tensor& tensor = *values;
    STD_TORCH_CHECK(tensor.is_cuda() && tensor.get_device_index() == device, kName,
                    ": expected all tensors on the device of ids");
    return static_cast<const int64_t*>(tensor.const_data_ptr());
  };
  const auto data = [](Tensor& tensor) { return static_cast<int64_t*>(tensor.mutable_data_ptr()); };

  const int64_t slots = 2 * (before + count) + 1;
  Tensor local = executor.room(count, ScalarType::Long), table = executor.room(slots, ScalarType::Int);
  Tensor fresh = executor.room(count, ScalarType::Long), rank = executor.room(count + 1, ScalarType::Long);
  executor.fill(static_cast<uint32_t*>(table.mutable_data_ptr()), slots);
  FoundNodes found{before,           count,
                   numbers(known),   numbers(ids),
                   tree.has_value(), numbers(known_tree),
                   numbers(tree),    {static_cast<uint32_t*>(table.mutable_data_ptr()), static_cast<uint64_t>(slots)},
                   data(local),      data(fresh),
                   data(rank),       nullptr,
                   nullptr};
  executor.each(before + count, EnterItem{found});
  executor.each(count, FindFirst{found});
  executor.sum_before(found.fresh, found.rank, count);
  const int64_t added = executor.download(found.rank + count, 1)[0];

  Tensor node = executor.room(added, ScalarType::Long),
         node_tree = executor.room(tree.has_value() ? added : 0, ScalarType::Long);
  found.node = data(node);
  found.tree = data(node_tree);
  executor.each(count, NumberFound{found});
  return {local, node, node_tree};
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CUDA, library) { library.impl("relabel", TORCH_BOX(&relabel)); }

}  // namespace
}  // namespace gnnscale
