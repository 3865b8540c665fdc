// The operator sample_layers_bulk by the threads of a host: the phases that a GPU runs, where there is none.
#include <optional>

#include "../executor_cpu.h"
#include "layer_driver.h"

namespace gnnscale {
namespace {

// See torch_gnnscale.ops.sample_layers_bulk, which checks the arguments.
LayersResult sample_layers_bulk(const Tensor& colptr, const std::vector<Tensor>& row,
                                const std::vector<Tensor>& edge_id, const std::vector<int64_t>& spread,
                                const Tensor& seeds, const std::optional<Tensor>& score, std::vector<int64_t> seed_ptr,
                                std::vector<int64_t> num_nodes, std::vector<int64_t> keys, std::vector<int64_t> choices,
                                int64_t options, int64_t threads) {
  const auto address = [](const Tensor& tensor) { return static_cast<const char*>(tensor.const_data_ptr()); };
  const LayersRequest request = layers_request(colptr, row, edge_id, spread, seeds, score, std::move(seed_ptr),
                                               std::move(num_nodes), std::move(keys), choices, options, address);
  HostExecutor executor("sample_layers_bulk", seeds, threads);
  return LayerDriver<HostExecutor>(executor, request).run();
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) {
  library.impl("sample_layers_bulk", TORCH_BOX(&sample_layers_bulk));
}

}  // namespace
}  // namespace gnnscale
