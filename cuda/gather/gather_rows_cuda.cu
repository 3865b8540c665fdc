// Rows of a matrix in GPU memory: a table of one tier.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include "../memory/cuda.h"
#include "gather_cuda.h"
#include "tier_arguments.h"

namespace gnnscale {
namespace {

// See torch_gnnscale.ops.gather_rows, which checks the arguments; `threads` is the CPU's.
Tensor gather_rows(const Tensor& src, const Tensor& index, int64_t /*threads*/) {
  STD_TORCH_CHECK(index.is_cuda() && index.get_device_index() == src.get_device_index(),
                  "gather_rows: index is not on the device of src");
  const TierRows rows = tier_rows(
      {src}, {1}, index, [](const Tensor& segment) { return static_cast<const char*>(segment.const_data_ptr()); });
  const torch::stable::accelerator::DeviceGuard guard(src.get_device_index());
  STD_TORCH_CHECK(rows.stored_bytes <= kMaxRowBytes, "gather_rows: expected rows of at most 512 MiB");
  Tensor out = torch::stable::new_empty(src, {rows.sizes.data(), rows.sizes.size()});
  if (out.numel() == 0) return out;
  const cudaStream_t stream = current_stream(src.get_device_index());
  Gather task{};
  task.table = rows.table;
  task.index = index.const_data_ptr();
  task.rows = rows.sizes[0];
  task.out = static_cast<char*>(out.mutable_data_ptr());
  if (index.scalar_type() == ScalarType::Int) {
    gather_kept<int32_t, OneMemory>(task, rows.stored_bytes, stream);
  } else {
    gather_kept<int64_t, OneMemory>(task, rows.stored_bytes, stream);
  }
  check("gather_rows", cudaGetLastError());
  return out;
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CUDA, library) { library.impl("gather_rows", TORCH_BOX(&gather_rows)); }

}  // namespace
}  // namespace gnnscale
