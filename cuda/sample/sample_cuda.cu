// The operator sample_bulk on the current stream of a GPU.
#include <torch/csrc/stable/accelerator.h>

#include "../executor_cuda.h"
#include "bulk_driver.h"

namespace gnnscale {
namespace {

constexpr char kSampleBulk[] = "sample_bulk";

using Tensors = std::vector<Tensor>;
using Ints = std::vector<int64_t>;

// See torch_gnnscale.ops.PreparedBulks, which checks the arguments; `threads` is the CPU's.
BulkResult sample_bulk(const Tensors& colptr, const Tensors& row, const Tensors& edge_id, const Tensors& weight,
                       const Tensors& time, const Ints& spread, const Ints& layout, Ints sizes, const Tensor& seeds,
                       Ints seed_ptr, const std::optional<Tensor>& seed_time,
                       const std::optional<Tensor>& seed_start_time, const std::optional<Tensor>& exclude,
                       Ints exclude_ptr, Ints fanouts, Ints keys, int64_t options, Ints rooms, int64_t /*threads*/) {
  STD_TORCH_CHECK(seeds.is_cuda(), "sample_bulk: seeds are not on a GPU");
  const int32_t device = seeds.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const BulkRequest request =
      bulk_request(colptr, row, edge_id, weight, time, spread, layout, std::move(sizes), seeds, std::move(seed_ptr),
                   seed_time, seed_start_time, exclude, std::move(exclude_ptr), std::move(fanouts), std::move(keys),
                   options, std::move(rooms), [](const Tensor& part) { return device_address(kSampleBulk, part); });
  StreamExecutor executor(kSampleBulk, seeds, current_stream(device));
  return BulkDriver<StreamExecutor>(executor, request).run();
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CUDA, library) { library.impl("sample_bulk", TORCH_BOX(&sample_bulk)); }

}  // namespace
}  // namespace gnnscale
