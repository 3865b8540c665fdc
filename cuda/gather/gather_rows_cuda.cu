// Rows of a matrix in GPU memory. The kernel copies words of the widest type that divides the row and its stride, one
// thread a word, neighboring threads on neighboring words of a row.
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/shim_utils.h>

#include <algorithm>
#include <vector>

namespace gnnscale {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1 << 20;

template <typename Word, typename Index>
__global__ void gather_kernel(const Word* __restrict__ src, int64_t stride, const Index* __restrict__ index,
                              int64_t words, int64_t row_words, Word* __restrict__ out) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < words; i += gridDim.x * int64_t{kThreads}) {
    const int64_t row = i / row_words;
    out[i] = src[static_cast<int64_t>(index[row]) * stride + (i - row * row_words)];
  }
}

void check_launch() {
  const cudaError_t error = cudaGetLastError();
  STD_TORCH_CHECK(error == cudaSuccess, "gather_rows: ", cudaGetErrorString(error));
}

template <typename Word, typename Index>
void launch(const Tensor& src, int64_t stride_bytes, const Tensor& index, int64_t row_bytes, Tensor& out,
            cudaStream_t stream) {
  const int64_t row_words = row_bytes / static_cast<int64_t>(sizeof(Word)), words = index.numel() * row_words;
  const int64_t blocks = std::min<int64_t>((words + kThreads - 1) / kThreads, kMaxBlocks);
  gather_kernel<Word, Index><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<const Word*>(src.const_data_ptr()), stride_bytes / static_cast<int64_t>(sizeof(Word)),
      static_cast<const Index*>(index.const_data_ptr()), words, row_words, static_cast<Word*>(out.mutable_data_ptr()));
  check_launch();
}

template <typename Index>
void gather(const Tensor& src, int64_t stride_bytes, const Tensor& index, int64_t row_bytes, Tensor& out,
            cudaStream_t stream) {
  const uint64_t aligned = reinterpret_cast<uint64_t>(src.const_data_ptr()) | static_cast<uint64_t>(stride_bytes) |
                           static_cast<uint64_t>(row_bytes);
  if (aligned % 16 == 0) {
    launch<uint4, Index>(src, stride_bytes, index, row_bytes, out, stream);
  } else if (aligned % 8 == 0) {
    launch<uint64_t, Index>(src, stride_bytes, index, row_bytes, out, stream);
  } else if (aligned % 4 == 0) {
    launch<uint32_t, Index>(src, stride_bytes, index, row_bytes, out, stream);
  } else if (aligned % 2 == 0) {
    launch<uint16_t, Index>(src, stride_bytes, index, row_bytes, out, stream);
  } else {
    launch<uint8_t, Index>(src, stride_bytes, index, row_bytes, out, stream);
  }
}

// See torch_gnnscale.ops.gather_rows, which checks the arguments; `threads` is the CPU's.
Tensor gather_rows(const Tensor& src, const Tensor& index, int64_t /*threads*/) {
  STD_TORCH_CHECK(index.is_cuda() && index.get_device_index() == src.get_device_index(),
                  "gather_rows: index is not on the device of src");
  std::vector<int64_t> sizes{index.numel()};
  int64_t row_bytes = static_cast<int64_t>(src.element_size());
  for (int64_t d = 1; d < src.dim(); ++d) {
    sizes.push_back(src.size(d));
    row_bytes *= src.size(d);
  }
  const torch::stable::accelerator::DeviceGuard guard(src.get_device_index());
  Tensor out = torch::stable::new_empty(src, {sizes.data(), sizes.size()});
  if (out.numel() == 0) return out;
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(src.get_device_index(), &stream));
  const int64_t stride_bytes = src.stride(0) * static_cast<int64_t>(src.element_size());
  if (index.scalar_type() == ScalarType::Int) {
    gather<int32_t>(src, stride_bytes, index, row_bytes, out, static_cast<cudaStream_t>(stream));
  } else {
    gather<int64_t>(src, stride_bytes, index, row_bytes, out, static_cast<cudaStream_t>(stream));
  }
  return out;
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CUDA, library) { library.impl("gather_rows", TORCH_BOX(&gather_rows)); }

}  // namespace
}  // namespace gnnscale
