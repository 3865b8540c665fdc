// An executor (see executor.h) on the stream of a GPU: phases are kernels, with CUB's prefix sums and sorts between
// them.
#pragma once

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <iterator>
#include <optional>

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

constexpr int kPhaseBlocks = 4;  // of a multiprocessor, at least: nvcc takes up to 64 registers before it spills any

// The empty statement keeps a loop whose conditions are those of `f`, some of which are the same for all items, one
// loop. Without it nvcc 12.4 to 12.6 never end over such conditions, and later ones write the loop once for each.
template <typename F>
__global__ void __launch_bounds__(kThreads, kPhaseBlocks)
    phase(const int64_t* __restrict__ count, int64_t most, const __grid_constant__ F f) {
  const int64_t items = items_of(count, most);
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < items; i += gridDim.x * int64_t{kThreads}) {
    asm volatile("");
    f(i);
  }
}

// The lanes of a warp, all of which call each function; see OneLane.
struct Warp {
  static constexpr int kLanes = 32;
  int lane;

  __device__ int descend(const uint64_t* sums, int children, uint64_t& unit) const {
    const unsigned long long sum = lane < children ? sums[lane] : ~0ull;
    const int child = __popc(__ballot_sync(~0u, sum <= unit));
    const unsigned long long before = __shfl_sync(~0u, sum, child > 0 ? child - 1 : 0, kLanes);
    if (child > 0) unit -= before;
    return child;
  }

  // A lane's k is always the same modulo 32, so that no lane reads what another one has written.
  template <typename F>
  __device__ void each(int first, int last, const F& f) const {
    if (lane >= first && lane < last) f(lane);
  }
};

template <typename F>
__global__ void __launch_bounds__(Warp::kLanes) warp_phase(int64_t count, const __grid_constant__ F f) {
  const Warp lanes{static_cast<int>(threadIdx.x)};
  for (int64_t i = blockIdx.x; i < count; i += gridDim.x) f(i, lanes);
}

// What CUB sums: the numbers of a sum_before(), and zeros after the last.
template <typename Values, typename T>
struct SumInput {
  using iterator_category = std::random_access_iterator_tag;
  using value_type = T;
  using difference_type = int64_t;
  using pointer = const T*;
  using reference = T;

  Values values;
  const int64_t* count;
  int64_t most, first = 0;

  GNNSCALE_HD T operator[](int64_t i) const {
    i += first;
    return i < items_of(count, most) ? static_cast<T>(number_at(values, i)) : T{0};
  }
  GNNSCALE_HD T operator*() const { return (*this)[0]; }
  GNNSCALE_HD SumInput operator+(int64_t n) const { return {values, count, most, first + n}; }
};

// Errors are raised in the name of the operator `name`; memory is allocated like `like`, which must outlive it.
class StreamExecutor {
 public:
  StreamExecutor(const char* name, const Tensor& like, cudaStream_t stream)
      : name_(name), like_(like), stream_(stream) {}

  Tensor room(int64_t count, ScalarType dtype) const { return room_like(name_, like_, {count}, dtype); }

  // Few as arguments of a launch, which are copied when it returns; more by a copy, which CUDA takes to memory of its
  // own before it returns. So no memory must outlive this call.
  void upload(const std::vector<int64_t>& values, int64_t* to) const {
    if (values.size() > Arguments::kCount) {
      const size_t bytes = values.size() * sizeof(int64_t);
      return check(name_, cudaMemcpyAsync(to, values.data(), bytes, cudaMemcpyHostToDevice, stream_));
    }
    if (values.empty()) return;
    Arguments words;
    std::copy(values.begin(), values.end(), words.word);
    store<<<1, Arguments::kCount, 0, stream_>>>(words, to, static_cast<int>(values.size()));
    check(name_, cudaGetLastError());
  }

  Tensor upload(const std::vector<int64_t>& values) const {
    Tensor tensor = room(static_cast<int64_t>(values.size()), ScalarType::Long);
    upload(values, static_cast<int64_t*>(tensor.mutable_data_ptr()));
    return tensor;
  }

  Tensor on_host(const std::vector<int64_t>& values) const { return host_numbers(name_, values); }

  std::vector<int64_t> download(const int64_t* values, int64_t count) const {
    std::vector<int64_t> found(static_cast<size_t>(count));
    check(name_,
          cudaMemcpyAsync(found.data(), values, found.size() * sizeof(int64_t), cudaMemcpyDeviceToHost, stream_));
    check(name_, cudaStreamSynchronize(stream_));
    return found;
  }

  template <typename T>
  void fill(T* items, int64_t count) const {
    check(name_, cudaMemsetAsync(items, 0xFF, static_cast<size_t>(count) * sizeof(T), stream_));
  }

  template <typename F>
  void each(int64_t count, F f) const {
    each(nullptr, count, f);
  }

  template <typename F>
  void each(const int64_t* count, int64_t most, F f) const {
    if (most == 0) return;
    const int64_t blocks = std::min<int64_t>((most + kThreads - 1) / kThreads, kMaxBlocks);
    phase<<<static_cast<unsigned>(blocks), kThreads, 0, stream_>>>(count, most, f);
    check(name_, cudaGetLastError());
  }

  template <typename F>
  void each_by_warp(int64_t count, F f) const {
    if (count == 0) return;
    const int64_t blocks = std::min(count, kMaxBlocks);
    warp_phase<<<static_cast<unsigned>(blocks), Warp::kLanes, 0, stream_>>>(count, f);
    check(name_, cudaGetLastError());
  }

  template <typename Values, typename T>
  void sum_before(Values values, T* out, int64_t count) const {
    sum_before(values, out, nullptr, count);
  }

  template <typename Values, typename T>
  void sum_before(Values values, T* out, const int64_t* count, int64_t most) const {
    const SumInput<Values, T> in{values, count, most};
    size_t bytes = 0;
    check(name_, cub::DeviceScan::ExclusiveSum(nullptr, bytes, in, out, most + 1, stream_));
    void* const memory = scratch(bytes);
    check(name_, cub::DeviceScan::ExclusiveSum(memory, bytes, in, out, most + 1, stream_));
  }

  template <typename Values, typename T>
  void reserve_sum(Values values, T* out, int64_t most) const {
    size_t bytes = 0;
    const SumInput<Values, T> in{values, nullptr, most};
    check(name_, cub::DeviceScan::ExclusiveSum(nullptr, bytes, in, out, most + 1, stream_));
    scratch(bytes);
  }

  bool sort(int64_t* keys, int64_t* spare_keys, int32_t* values, int32_t* spare_values, int64_t count,
            int bits = 64) const {
    cub::DoubleBuffer<int64_t> key(keys, spare_keys);
    cub::DoubleBuffer<int32_t> value(values, spare_values);
    size_t bytes = 0;
    check(name_, cub::DeviceRadixSort::SortPairs(nullptr, bytes, key, value, count, 0, bits, stream_));
    void* const memory = scratch(bytes);
    check(name_, cub::DeviceRadixSort::SortPairs(memory, bytes, key, value, count, 0, bits, stream_));
    STD_TORCH_CHECK((key.Current() == keys) == (value.Current() == values), name_, ": a sort left its pairs apart");
    return key.Current() != keys;
  }

 private:
  // CUB's scratch memory, at least so many bytes. One piece serves all calls, which the stream does one after the
  // other.
  void* scratch(size_t bytes) const {
    if (!scratch_.has_value() || static_cast<size_t>(scratch_->numel()) < bytes) {
      scratch_ = room(static_cast<int64_t>(bytes), ScalarType::Byte);
    }
    return scratch_->mutable_data_ptr();
  }

  const char* const name_;
  const Tensor& like_;
  const cudaStream_t stream_;
  mutable std::optional<Tensor> scratch_;
};

}  // namespace gnnscale
