// An executor (see executor.h) on the stream of a GPU: phases are kernels, with CUB's prefix sums and sorts between
// them.
#pragma once

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "executor.h"
#include "launch.h"
#include "memory/cuda.h"

namespace gnnscale {

struct Arguments {
  static constexpr int kCount = 448;  // a launch takes 4 KB of arguments
  int64_t word[kCount];
};

static __global__ void __launch_bounds__(Arguments::kCount)
    store(const __grid_constant__ Arguments words, int64_t* out, int count) {
  if (static_cast<int>(threadIdx.x) < count) out[threadIdx.x] = words.word[threadIdx.x];
}

template <typename F>
__global__ void __launch_bounds__(kThreads)
    phase(const int64_t* __restrict__ count, int64_t most, const __grid_constant__ F f) {
  const int64_t items = *count < most ? *count : most;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < items; i += gridDim.x * int64_t{kThreads}) f(i);
}

// Errors are raised in the name of the operator `name`; memory is allocated like `like`, which must outlive it.
class StreamExecutor {
 public:
  StreamExecutor(const char* name, const Tensor& like, cudaStream_t stream)
      : name_(name), like_(like), stream_(stream) {}

  Tensor room(int64_t count, ScalarType dtype) const { return torch::stable::new_empty(like_, {count}, dtype); }

  // As arguments of launches, which are copied when the launch returns, so that no memory must outlive this call.
  Tensor upload(const std::vector<int64_t>& values) const {
    Tensor tensor = room(static_cast<int64_t>(values.size()), ScalarType::Long);
    int64_t* out = static_cast<int64_t*>(tensor.mutable_data_ptr());
    for (size_t first = 0; first < values.size(); first += Arguments::kCount) {
      const size_t count = std::min<size_t>(values.size() - first, Arguments::kCount);
      Arguments words;
      std::copy_n(values.data() + first, count, words.word);
      store<<<1, Arguments::kCount, 0, stream_>>>(words, out + first, static_cast<int>(count));
      check(name_, cudaGetLastError());
    }
    return tensor;
  }

  std::vector<int64_t> download(const int64_t* values, int64_t count) const {
    std::vector<int64_t> found(static_cast<size_t>(count));
    check(name_,
          cudaMemcpyAsync(found.data(), values, found.size() * sizeof(int64_t), cudaMemcpyDeviceToHost, stream_));
    check(name_, cudaStreamSynchronize(stream_));
    return found;
  }

  void fill(Tensor& tensor) const {
    check(name_, cudaMemsetAsync(tensor.mutable_data_ptr(), 0xFF,
                                 static_cast<size_t>(tensor.numel()) * tensor.element_size(), stream_));
  }

  template <typename F>
  void each(const int64_t* count, int64_t most, F f) const {
    if (most == 0) return;
    const int64_t blocks = std::min<int64_t>((most + kThreads - 1) / kThreads, kMaxBlocks);
    phase<<<static_cast<unsigned>(blocks), kThreads, 0, stream_>>>(count, most, f);
    check(name_, cudaGetLastError());
  }

  // Sums over all the room: what lies beyond *count has no effect on what is asked for.
  template <typename T>
  void sum_before(const T* in, T* out, const int64_t* /*count*/, int64_t most) const {
    size_t bytes = 0;
    check(name_, cub::DeviceScan::ExclusiveSum(nullptr, bytes, in, out, most + 1, stream_));
    Tensor workspace = room(static_cast<int64_t>(bytes), ScalarType::Byte);
    check(name_, cub::DeviceScan::ExclusiveSum(workspace.mutable_data_ptr(), bytes, in, out, most + 1, stream_));
  }

  bool sort(int64_t* keys, int64_t* spare_keys, int32_t* values, int32_t* spare_values, int64_t count) const {
    cub::DoubleBuffer<int64_t> key(keys, spare_keys);
    cub::DoubleBuffer<int32_t> value(values, spare_values);
    size_t bytes = 0;
    check(name_, cub::DeviceRadixSort::SortPairs(nullptr, bytes, key, value, count, 0, 64, stream_));
    Tensor workspace = room(static_cast<int64_t>(bytes), ScalarType::Byte);
    check(name_,
          cub::DeviceRadixSort::SortPairs(workspace.mutable_data_ptr(), bytes, key, value, count, 0, 64, stream_));
    STD_TORCH_CHECK((key.Current() == keys) == (value.Current() == values), name_, ": a sort left its pairs apart");
    return key.Current() != keys;
  }

 private:
  const char* const name_;
  const Tensor& like_;
  const cudaStream_t stream_;
};

}  // namespace gnnscale
