// Raw pointers and streams, for kernels, of torch's stable tensors on a GPU.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/shim_utils.h>

#include <cstdint>

namespace gnnscale {

// Raises a RuntimeError that begins with `name`, the operator's, if `error` is an error of CUDA.
inline void check(const char* name, cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();  // else the next call would report it
  STD_TORCH_CHECK(error == cudaSuccess, name, ": ", cudaGetErrorString(error));
}

inline cudaStream_t current_stream(int32_t device) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  return static_cast<cudaStream_t>(stream);
}

// The address by which kernels of the current device read a tensor. The tensor lies in the device's memory, in that of
// a peer to which torch has opened access (see torch_gnnscale.ops.gather_tiers), or in host memory that is registered
// with CUDA, from its first to its last byte. Raises a RuntimeError for host memory that is not.
inline const char* device_address(const char* name, const torch::stable::Tensor& tensor) {
  const void* address = tensor.const_data_ptr();
  if (tensor.numel() == 0 || tensor.is_cuda()) return static_cast<const char*>(address);
  int64_t last = 0;  // byte of the tensor
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  last = (last + 1) * static_cast<int64_t>(tensor.element_size()) - 1;
  cudaPointerAttributes found{}, end{};
  check(name, cudaPointerGetAttributes(&found, address));
  check(name, cudaPointerGetAttributes(&end, static_cast<const char*>(address) + last));
  const char* const there = static_cast<const char*>(found.devicePointer);
  STD_TORCH_CHECK(found.type == cudaMemoryTypeHost && there != nullptr, name,
                  ": a tensor in host memory is not registered with CUDA");
  STD_TORCH_CHECK(end.type == cudaMemoryTypeHost && end.devicePointer == there + last, name,
                  ": a tensor in host memory is not registered with CUDA to its end");
  return there;
}

}  // namespace gnnscale
