// The operator sample_bulk by the threads of a host: the phases that a GPU runs, where there is none.
#include "../executor_cpu.h"
#include "bulk_driver.h"

namespace gnnscale {
namespace {

// See torch_gnnscale.ops.sample_bulk, which checks the arguments.
BulkResult sample_bulk(const Tensor& colptr, const std::vector<Tensor>& row, const std::vector<Tensor>& edge_id,
                       const std::vector<int64_t>& spread, const Tensor& seeds, std::vector<int64_t> seed_ptr,
                       std::vector<int64_t> fanouts, std::vector<int64_t> keys, int64_t options,
                       std::vector<int64_t> rooms, int64_t threads) {
  const BulkRequest request = bulk_request(
      colptr, row, edge_id, spread, seeds, std::move(seed_ptr), std::move(fanouts), std::move(keys), options,
      std::move(rooms), [](const Tensor& tensor) { return static_cast<const char*>(tensor.const_data_ptr()); });
  HostExecutor executor("sample_bulk", seeds, threads);
  return BulkDriver<HostExecutor>(executor, request).run();
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("sample_bulk", TORCH_BOX(&sample_bulk)); }

}  // namespace
}  // namespace gnnscale
