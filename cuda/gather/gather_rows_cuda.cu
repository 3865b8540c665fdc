// Rows of a matrix in GPU memory: a table of one tier.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/shim_utils.h>

#include "gather_cuda.h"
#include "tier_arguments.h"

namespace gnnscale {
namespace {

// See torch_gnnscale.ops.gather_rows, which checks the arguments; `threads` is the CPU's.
Tensor gather_rows(const Tensor& src, const Tensor& index, int64_t /*threads*/) {
  STD_TORCH_CHECK(index.is_cuda() && index.get_device_index() == src.get_device_index(),
                  "gather_rows: index is not on the device of src");
  const TierRows rows =
      tier_rows({src}, {1}, index, [](const Tensor& part) { return static_cast<const char*>(part.const_data_ptr()); });
  const torch::stable::accelerator::DeviceGuard guard(src.get_device_index());
  STD_TORCH_CHECK(rows.stored_bytes <= kMaxRowBytes, "gather_rows: expected rows of at most 512 MiB");
  Tensor out = torch::stable::new_empty(src, {rows.sizes.data(), rows.sizes.size()});
  if (out.numel() == 0) return out;
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(src.get_device_index(), &stream));
  const Gather task{
      rows.table, index.const_data_ptr(), nullptr, rows.sizes[0], 0, static_cast<char*>(out.mutable_data_ptr()),
      nullptr};
  if (index.scalar_type() == ScalarType::Int) {
    gather_kept<int32_t, void>(task, rows.stored_bytes, static_cast<cudaStream_t>(stream));
  } else {
    gather_kept<int64_t, void>(task, rows.stored_bytes, static_cast<cudaStream_t>(stream));
  }
  const cudaError_t error = cudaGetLastError();
  STD_TORCH_CHECK(error == cudaSuccess, "gather_rows: ", cudaGetErrorString(error));
  return out;
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CUDA, library) { library.impl("gather_rows", TORCH_BOX(&gather_rows)); }

}  // namespace
}  // namespace gnnscale
