// Executors run algorithms that are sequences of phases: by the threads of a host (executor_cpu.h), or on the stream of
// a GPU (executor_cuda.h). A phase is a functor of an index, called for every index in any order. An executor has
//
//   Tensor room(int64_t count, ScalarType dtype)             uninitialised memory where it works
//   Tensor upload(const std::vector<int64_t>&)               a copy of the host's numbers there
//   std::vector<int64_t> download(const int64_t*, int64_t)   waits for all work so far and copies back
//   void fill(Tensor&)                                       sets all bits
//   void each(const int64_t* count, int64_t most, functor)   functor(i) for i < min(*count, most); *count lies there
//   void sum_before(const T* in, T* out, const int64_t* count, int64_t most)
//                                                            out[i] = sum of in[j], j < i, for i <= *count <= most;
//                                                            both have room for most + 1
//   bool sort(int64_t* keys, int64_t* spare_keys, int32_t* values, int32_t* spare_values, int64_t count)
//                                                            sorts pairs by their keys, in place or, if it returns
//                                                            true, into the spare arrays
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace gnnscale {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The numbers in a tensor in host memory.
inline Tensor on_host(const std::vector<int64_t>& values) {
  Tensor tensor = torch::stable::empty({static_cast<int64_t>(values.size())}, ScalarType::Long, std::nullopt,
                                       torch::stable::Device(torch::headeronly::DeviceType::CPU));
  std::copy(values.begin(), values.end(), static_cast<int64_t*>(tensor.mutable_data_ptr()));
  return tensor;
}

}  // namespace gnnscale
