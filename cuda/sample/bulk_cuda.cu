// The operator sample_bulk on the current stream of a GPU: the phases as kernels, CUB's prefix sums between them, and
// one wait for all counts. The graph lies in the GPU's memory, in pinned host memory, which the kernels read, or in
// both.
#include <torch/csrc/stable/accelerator.h>

#include <cub/device/device_scan.cuh>

#include "../memory/cuda.h"
#include "bulk_cuda.h"
#include "bulk_driver.h"

namespace gnnscale {
namespace {

constexpr char kName[] = "sample_bulk";

class StreamExecutor {
 public:
  StreamExecutor(const Tensor& like, cudaStream_t stream) : like_(like), stream_(stream) {}

  Tensor room(int64_t count, ScalarType dtype) const { return torch::stable::new_empty(like_, {count}, dtype); }

  // As arguments of launches, which have been read when these return: no copy from memory that might be gone by then.
  Tensor upload(const std::vector<int64_t>& values) const {
    Tensor tensor = room(static_cast<int64_t>(values.size()), ScalarType::Long);
    int64_t* out = static_cast<int64_t*>(tensor.mutable_data_ptr());
    for (size_t first = 0; first < values.size(); first += Arguments::kCount) {
      const size_t count = std::min<size_t>(values.size() - first, Arguments::kCount);
      Arguments words;
      std::copy_n(values.data() + first, count, words.word);
      store<<<1, Arguments::kCount, 0, stream_>>>(words, out + first, static_cast<int>(count));
      check(kName, cudaGetLastError());
    }
    return tensor;
  }

  std::vector<int64_t> download(const int64_t* values, int64_t count) const {
    std::vector<int64_t> found(static_cast<size_t>(count));
    check(kName,
          cudaMemcpyAsync(found.data(), values, found.size() * sizeof(int64_t), cudaMemcpyDeviceToHost, stream_));
    check(kName, cudaStreamSynchronize(stream_));
    return found;
  }

  void fill(Tensor& tensor) const {
    check(kName, cudaMemsetAsync(tensor.mutable_data_ptr(), 0xFF,
                                 static_cast<size_t>(tensor.numel()) * tensor.element_size(), stream_));
  }

  template <typename F>
  void each(const int64_t* count, int64_t most, F f) const {
    if (most == 0) return;
    const int64_t blocks = std::min<int64_t>((most + kThreads - 1) / kThreads, kMaxBlocks);
    phase<<<static_cast<unsigned>(blocks), kThreads, 0, stream_>>>(count, most, f);
    check(kName, cudaGetLastError());
  }

  // Sums over all the room: what lies behind *count has no effect on what is asked for.
  template <typename T>
  void sum_before(const T* in, T* out, const int64_t* /*count*/, int64_t most) const {
    size_t bytes = 0;
    check(kName, cub::DeviceScan::ExclusiveSum(nullptr, bytes, in, out, most + 1, stream_));
    Tensor workspace = room(static_cast<int64_t>(bytes), ScalarType::Byte);
    check(kName, cub::DeviceScan::ExclusiveSum(workspace.mutable_data_ptr(), bytes, in, out, most + 1, stream_));
  }

 private:
  const Tensor& like_;
  const cudaStream_t stream_;
};

const char* readable(const Tensor& part, int32_t device) {
  STD_TORCH_CHECK(!part.is_cuda() || part.get_device_index() == device,
                  "sample_bulk: the graph is not on the device of seeds");
  return device_address(kName, part);
}

// See torch_gnnscale.ops.sample_bulk, which checks the arguments; `threads` is the CPU's.
BulkResult sample_bulk(const Tensor& colptr, const std::vector<Tensor>& row, const std::vector<Tensor>& edge_id,
                       const Tensor& seeds, std::vector<int64_t> seed_ptr, std::vector<int64_t> fanouts,
                       std::vector<int64_t> keys, int64_t options, std::vector<int64_t> rooms, int64_t /*threads*/) {
  STD_TORCH_CHECK(seeds.is_cuda(), "sample_bulk: seeds are not on a GPU");
  const int32_t device = seeds.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const BulkRequest request =
      bulk_request(colptr, row, edge_id, seeds, std::move(seed_ptr), std::move(fanouts), std::move(keys), options,
                   std::move(rooms), [device](const Tensor& part) { return readable(part, device); });
  StreamExecutor executor(seeds, current_stream(device));
  return BulkDriver<StreamExecutor>(executor, request).run();
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CUDA, library) { library.impl("sample_bulk", TORCH_BOX(&sample_bulk)); }

}  // namespace
}  // namespace gnnscale
