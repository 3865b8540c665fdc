// The operator draw_nodes on the CPU.
#include <vector>

#include "../memory/checks.h"
#include "../memory/tensor.h"
#include "draws_cpu.h"

namespace gnnscale {
namespace {

// See torch_gnnscale.ops.draw_nodes, which checks the arguments.
Tensor draw_nodes_of_keys(const Tensor& node, const std::vector<int64_t>& node_ptr, const std::vector<int64_t>& keys,
                          int64_t hop) {
  check_int64("node", node);
  STD_TORCH_CHECK(node_ptr.size() == keys.size() + 1, "expected one entry of node_ptr more than keys");
  const auto* const ids = static_cast<const int64_t*>(node.const_data_ptr());
  PooledArray<int64_t> draws(node.numel());
  for (size_t i = 0; i < keys.size(); ++i) {
    const int64_t first = node_ptr[i], last = node_ptr[i + 1];
    STD_TORCH_CHECK(0 <= first && first <= last && last <= node.numel(), "node_ptr is out of range");
    draw_nodes(static_cast<uint64_t>(keys[i]), static_cast<int>(hop), ids + first, last - first,
               reinterpret_cast<uint64_t*>(draws.data() + first));
  }
  return to_tensor(std::move(draws), {node.numel()}, ScalarType::Long);
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("draw_nodes", TORCH_BOX(&draw_nodes_of_keys)); }

}  // namespace
}  // namespace gnnscale
