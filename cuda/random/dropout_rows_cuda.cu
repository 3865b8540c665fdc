// Dropout of rows by their ids, on a GPU.
#include <torch/csrc/stable/accelerator.h>

#include <algorithm>
#include <type_traits>

#include "../launch.h"
#include "../memory/cuda.h"
#include "../memory/room.h"
#include "../shuffle/shuffle_arguments.h"
#include "dropout.h"

namespace gnnscale {
namespace {

// A thread computes a block of columns, of which it reads and writes N at a time: kColumnsPerBlock, or two numbers of
// 64 bits, where rows are aligned to them, else one.
template <typename T, typename Scale, int N>
__global__ void __launch_bounds__(kThreads) dropout_kernel(const T* x, const int64_t* id, int64_t rows, int64_t width,
                                                           uint64_t key, uint64_t threshold, Scale scale, T* out) {
  const int64_t blocks = (width + kColumnsPerBlock - 1) / kColumnsPerBlock, items = rows * blocks;
  for (int64_t k = blockIdx.x * int64_t{kThreads} + threadIdx.x; k < items; k += gridDim.x * int64_t{kThreads}) {
    const int64_t i = k / blocks, block = k % blocks, c = block * kColumnsPerBlock;
    const T* const from = x + i * width + c;
    T* const to = out + i * width + c;
    if constexpr (N == 1) {
      const int count = static_cast<int>(width - c < kColumnsPerBlock ? width - c : kColumnsPerBlock);
      dropout_items(key, id[i], block, count, threshold, scale, from, to);
    } else {
      T items[kColumnsPerBlock];
      for (int n = 0; n < kColumnsPerBlock; n += N) {
        const Words<T, N> words = words_at<N>(from + n);
        for (int m = 0; m < N; ++m) items[n + m] = words.item[m];
      }
      T kept[kColumnsPerBlock];
      dropout_items(key, id[i], block, kColumnsPerBlock, threshold, scale, items, kept);
      for (int n = 0; n < kColumnsPerBlock; n += N) {
        Words<T, N> words;
        for (int m = 0; m < N; ++m) words.item[m] = kept[n + m];
        *reinterpret_cast<Words<T, N>*>(to + n) = words;
      }
    }
  }
}

// See torch_gnnscale.ops.dropout_rows, which checks the arguments; `threads` is the CPU's.
Tensor dropout_rows(const Tensor& x, const Tensor& id, int64_t key, int64_t threshold, double scale,
                    int64_t /*threads*/) {
  STD_TORCH_CHECK(x.is_cuda() && id.is_cuda() && id.get_device_index() == x.get_device_index(),
                  "dropout_rows: expected x and id on one GPU");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const int64_t rows = x.size(0), width = x.size(1);
  Tensor out = room_like("dropout_rows", x, {rows, width});
  if (out.numel() == 0) return out;
  const cudaStream_t stream = current_stream(x.get_device_index());
  const int64_t items = rows * ((width + kColumnsPerBlock - 1) / kColumnsPerBlock);
  const unsigned blocks = static_cast<unsigned>(std::min<int64_t>((items + kThreads - 1) / kThreads, kMaxBlocks));
  dispatch_float(x.scalar_type(), [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    using Scale = decltype(widen(T{}));
    const T* const from = static_cast<const T*>(x.const_data_ptr());
    T* const to = static_cast<T*>(out.mutable_data_ptr());
    const int64_t* const ids = static_cast<const int64_t*>(id.const_data_ptr());
    const uint64_t bits = static_cast<uint64_t>(key), least = static_cast<uint64_t>(threshold);
    const Scale by = static_cast<Scale>(scale);
    constexpr int N = sizeof(T) == 8 ? 2 : kColumnsPerBlock;
    const bool aligned = reinterpret_cast<uint64_t>(from) % (N * sizeof(T)) == 0 && width % kColumnsPerBlock == 0;
    if (aligned) {
      dropout_kernel<T, Scale, N><<<blocks, kThreads, 0, stream>>>(from, ids, rows, width, bits, least, by, to);
    } else {
      dropout_kernel<T, Scale, 1><<<blocks, kThreads, 0, stream>>>(from, ids, rows, width, bits, least, by, to);
    }
  });
  check("dropout_rows", cudaGetLastError());
  return out;
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CUDA, library) { library.impl("dropout_rows", TORCH_BOX(&dropout_rows)); }

}  // namespace
}  // namespace gnnscale
