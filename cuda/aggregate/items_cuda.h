// A thread of a GPU for each of many items, and what operators on columns check before.
#pragma once

#include <torch/csrc/stable/accelerator.h>

#include <initializer_list>
#include <optional>

#include "../launch.h"
#include "../memory/cuda.h"
#include "columns.h"

namespace gnnscale {

template <typename F>
__global__ void __launch_bounds__(kThreads) item_kernel(int64_t items, const __grid_constant__ F f) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i < items) f(i);
}

// Raises a RuntimeError unless all tensors are on the GPU of x.
inline void check_place(const char* name, const Tensor& x, std::initializer_list<const Tensor*> others) {
  STD_TORCH_CHECK(x.is_cuda(), name, ": x is not on a GPU");
  for (const Tensor* tensor : others) {
    if (tensor == nullptr) continue;
    const Tensor& other = *tensor;
    STD_TORCH_CHECK(other.is_cuda() && other.get_device_index() == x.get_device_index(), name,
                    ": expected all tensors on the device of x");
  }
}

inline const Tensor* or_null(const std::optional<Tensor>& tensor) { return tensor.has_value() ? &*tensor : nullptr; }

// Takes addresses for those of ids of the type of `node`.
inline auto ids_like(const Tensor& node) {
  return [wide = node.scalar_type() == ScalarType::Long](const void* address) { return EitherIds{address, wide}; };
}

// Calls f for each of so many items on the current stream of the device of x.
template <typename F>
void for_items(const char* name, const Tensor& x, int64_t items, const F& f) {
  if (items == 0) return;
  const unsigned blocks = static_cast<unsigned>((items + kThreads - 1) / kThreads);
  item_kernel<<<blocks, kThreads, 0, current_stream(x.get_device_index())>>>(items, f);
  check(name, cudaGetLastError());
}

}  // namespace gnnscale
