// The operator sample_bulk by the threads of a host: the phases that a GPU runs, where there is none.
#include "../executor_cpu.h"
#include "bulk_driver.h"

namespace gnnscale {
namespace {

using Tensors = std::vector<Tensor>;
using Ints = std::vector<int64_t>;

// See torch_gnnscale.ops.PreparedBulks, which checks the arguments.
BulkResult sample_bulk(const Tensors& colptr, const Tensors& row, const Tensors& edge_id, const Tensors& weight,
                       const Tensors& time, const Ints& spread, const Ints& layout, Ints sizes, const Tensor& seeds,
                       Ints seed_ptr, const std::optional<Tensor>& seed_time,
                       const std::optional<Tensor>& seed_start_time, const std::optional<Tensor>& exclude,
                       Ints exclude_ptr, Ints fanouts, Ints keys, int64_t options, Ints rooms, int64_t threads) {
  const BulkRequest request = bulk_request(
      colptr, row, edge_id, weight, time, spread, layout, std::move(sizes), seeds, std::move(seed_ptr), seed_time,
      seed_start_time, exclude, std::move(exclude_ptr), std::move(fanouts), std::move(keys), options, std::move(rooms),
      [](const Tensor& tensor) { return static_cast<const char*>(tensor.const_data_ptr()); });
  HostExecutor executor("sample_bulk", seeds, threads);
  return BulkDriver<HostExecutor>(executor, request).run();
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("sample_bulk", TORCH_BOX(&sample_bulk)); }

}  // namespace
}  // namespace gnnscale
