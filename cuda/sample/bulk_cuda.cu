// The operator sample_bulk on the current stream of a GPU: one wait for all counts. The graph lies in the GPU's memory,
// in that of its peers and in pinned host memory, all of which the kernels read.
#include <torch/csrc/stable/accelerator.h>

#include "../executor_cuda.h"
#include "bulk_driver.h"

namespace gnnscale {
namespace {

constexpr char kName[] = "sample_bulk";

// See torch_gnnscale.ops.sample_bulk, which checks the arguments; `threads` is the CPU's.
BulkResult sample_bulk(const Tensor& colptr, const std::vector<Tensor>& row, const std::vector<Tensor>& edge_id,
                       const std::vector<int64_t>& spread, const Tensor& seeds, std::vector<int64_t> seed_ptr,
                       std::vector<int64_t> fanouts, std::vector<int64_t> keys, int64_t options,
                       std::vector<int64_t> rooms, int64_t /*threads*/) {
  STD_TORCH_CHECK(seeds.is_cuda(), "sample_bulk: seeds are not on a GPU");
  const int32_t device = seeds.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const BulkRequest request =
      bulk_request(colptr, row, edge_id, spread, seeds, std::move(seed_ptr), std::move(fanouts), std::move(keys),
                   options, std::move(rooms), [](const Tensor& part) { return device_address(kName, part); });
  StreamExecutor executor(kName, seeds, current_stream(device));
  return BulkDriver<StreamExecutor>(executor, request).run();
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CUDA, library) { library.impl("sample_bulk", TORCH_BOX(&sample_bulk)); }

}  // namespace
}  // namespace gnnscale
