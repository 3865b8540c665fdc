// The operator sample_layers_bulk on the current stream of a GPU. The graph lies in the GPU's memory, in pinned host
// memory, which the kernels read, or in both.
#include <torch/csrc/stable/accelerator.h>

#include <optional>

#include "../executor_cuda.h"
#include "layer_driver.h"

namespace gnnscale {
namespace {

constexpr char kName[] = "sample_layers_bulk";

// See torch_gnnscale.ops.sample_layers_bulk, which checks the arguments; `threads` is the CPU's.
LayersResult sample_layers_bulk(const Tensor& colptr, const std::vector<Tensor>& row,
                                const std::vector<Tensor>& edge_id, const std::vector<int64_t>& spread,
                                const Tensor& seeds, const std::optional<Tensor>& score, std::vector<int64_t> seed_ptr,
                                std::vector<int64_t> num_nodes, std::vector<int64_t> keys, std::vector<int64_t> choices,
                                int64_t options, int64_t /*threads*/) {
  STD_TORCH_CHECK(seeds.is_cuda(), kName, ": seeds are not on a GPU");
  const int32_t device = seeds.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const auto address = [](const Tensor& part) { return device_address(kName, part); };
  const LayersRequest request = layers_request(colptr, row, edge_id, spread, seeds, score, std::move(seed_ptr),
                                               std::move(num_nodes), std::move(keys), choices, options, address);
  StreamExecutor executor(kName, seeds, current_stream(device));
  return LayerDriver<StreamExecutor>(executor, request).run();
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CUDA, library) {
  library.impl("sample_layers_bulk", TORCH_BOX(&sample_layers_bulk));
}

}  // namespace
}  // namespace gnnscale
