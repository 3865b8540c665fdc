// The operator sample_bulk on the current stream of a GPU: the phases as kernels, CUB's prefix sums between them, and
// one wait for all counts. The graph lies in the GPU's memory, in pinned host memory, which the kernels read, or in
// both.
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <cub/device/device_scan.cuh>

#include "bulk_driver.h"

namespace gnnscale {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1 << 16;

void check(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();  // which would be blamed on the next call
  STD_TORCH_CHECK(error == cudaSuccess, "sample_bulk: ", cudaGetErrorString(error));
}

struct Words {
  static constexpr int kCount = 448;  // a launch takes 4 KB of arguments
  int64_t word[kCount];
};

__global__ void __launch_bounds__(Words::kCount) store(const __grid_constant__ Words words, int64_t* out, int count) {
  if (static_cast<int>(threadIdx.x) < count) out[threadIdx.x] = words.word[threadIdx.x];
}

template <typename F>
__global__ void __launch_bounds__(kThreads)
    phase(const int64_t* __restrict__ count, int64_t most, const __grid_constant__ F f) {
  const int64_t items = *count < most ? *count : most;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < items; i += gridDim.x * int64_t{kThreads}) f(i);
}

class StreamExecutor {
 public:
  StreamExecutor(const Tensor& like, cudaStream_t stream) : like_(like), stream_(stream) {}

  Tensor room(int64_t count, ScalarType dtype) const { return torch::stable::new_empty(like_, {count}, dtype); }

  // As arguments of launches, which have been read when these return: no copy from memory that might be gone by then.
  Tensor upload(const std::vector<int64_t>& values) const {
    Tensor tensor = room(static_cast<int64_t>(values.size()), ScalarType::Long);
    int64_t* out = static_cast<int64_t*>(tensor.mutable_data_ptr());
    for (size_t first = 0; first < values.size(); first += Words::kCount) {
      const size_t count = std::min<size_t>(values.size() - first, Words::kCount);
      Words words;
      std::copy_n(values.data() + first, count, words.word);
      store<<<1, Words::kCount, 0, stream_>>>(words, out + first, static_cast<int>(count));
      check(cudaGetLastError());
    }
    return tensor;
  }

  std::vector<int64_t> download(const int64_t* values, int64_t count) const {
    std::vector<int64_t> found(static_cast<size_t>(count));
    check(cudaMemcpyAsync(found.data(), values, found.size() * sizeof(int64_t), cudaMemcpyDeviceToHost, stream_));
    check(cudaStreamSynchronize(stream_));
    return found;
  }

  void fill(Tensor& tensor) const {
    check(cudaMemsetAsync(tensor.mutable_data_ptr(), 0xFF, static_cast<size_t>(tensor.numel()) * tensor.element_size(),
                          stream_));
  }

  template <typename F>
  void each(const int64_t* count, int64_t most, F f) const {
    if (most == 0) return;
    const int64_t blocks = std::min<int64_t>((most + kThreads - 1) / kThreads, kMaxBlocks);
    phase<<<static_cast<unsigned>(blocks), kThreads, 0, stream_>>>(count, most, f);
    check(cudaGetLastError());
  }

  // Sums over all the room: what lies behind *count has no effect on what is asked for.
  template <typename T>
  void sum_before(const T* in, T* out, const int64_t* /*count*/, int64_t most) const {
    size_t bytes = 0;
    check(cub::DeviceScan::ExclusiveSum(nullptr, bytes, in, out, most + 1, stream_));
    Tensor workspace = room(static_cast<int64_t>(bytes), ScalarType::Byte);
    check(cub::DeviceScan::ExclusiveSum(workspace.mutable_data_ptr(), bytes, in, out, most + 1, stream_));
  }

 private:
  const Tensor& like_;
  const cudaStream_t stream_;
};

// What the kernels read a tensor by: an address of the device's own, or of pinned host memory that is mapped.
const char* readable(const Tensor& tensor, int32_t device) {
  const char* const address = static_cast<const char*>(tensor.const_data_ptr());
  if (tensor.is_cuda()) {
    STD_TORCH_CHECK(tensor.get_device_index() == device, "sample_bulk: the graph is not on the device of seeds");
    return address;
  }
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, address));
  STD_TORCH_CHECK(attributes.type == cudaMemoryTypeHost && attributes.devicePointer != nullptr,
                  "sample_bulk: the graph lies in host memory that is not pinned");
  return static_cast<const char*>(attributes.devicePointer);
}

// See torch_gnnscale.ops.sample_bulk, which checks the arguments; `threads` is the CPU's.
BulkResult sample_bulk(const Tensor& colptr, const std::vector<Tensor>& row, const std::vector<Tensor>& edge_id,
                       const Tensor& seeds, std::vector<int64_t> seed_ptr, std::vector<int64_t> fanouts,
                       std::vector<int64_t> keys, bool replace, bool layers, bool with_edge_id, bool with_col,
                       std::vector<int64_t> rooms, int64_t /*threads*/) {
  STD_TORCH_CHECK(seeds.is_cuda(), "sample_bulk: seeds are not on a GPU");
  const int32_t device = seeds.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  const BulkRequest request = bulk_request(colptr, row, edge_id, seeds, std::move(seed_ptr), std::move(fanouts),
                                           std::move(keys), replace, layers, with_edge_id, with_col, std::move(rooms),
                                           [device](const Tensor& tensor) { return readable(tensor, device); });
  StreamExecutor executor(seeds, static_cast<cudaStream_t>(stream));
  return BulkDriver<StreamExecutor>(executor, request).run();
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CUDA, library) { library.impl("sample_bulk", TORCH_BOX(&sample_bulk)); }

}  // namespace
}  // namespace gnnscale
