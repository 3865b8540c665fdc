// Rows that ranks of a split send, read and add, on a GPU: tables may lie in memory of peers.
#include <torch/csrc/stable/accelerator.h>

#include <algorithm>
#include <type_traits>

#include "../launch.h"
#include "../memory/cuda.h"
#include "../memory/room.h"
#include "shuffle_arguments.h"

namespace gnnscale {
namespace {

// A row is computed by a group of lanes, a power of two, each N items at a time.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) add_kernel(const __grid_constant__ ShuffleTask task, int lanes, T* out) {
  const int64_t first = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / lanes;
  const int64_t groups = gridDim.x * int64_t{kThreads} / lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  for (int64_t i = first; i < task.rows; i += groups) {
    for (int64_t c = int64_t{lane} * N; c < task.width; c += int64_t{lanes} * N) {
      Words<T, N> word;
      shuffle_items<T, N, true>(task, i, c, word.item);
      *reinterpret_cast<Words<T, N>*>(out + i * task.width + c) = word;
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) copy_kernel(const __grid_constant__ ShuffleTask task, int lanes, T* out) {
  const int64_t first = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / lanes;
  const int64_t groups = gridDim.x * int64_t{kThreads} / lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  for (int64_t i = first; i < task.rows; i += groups) {
    const T* const from = reinterpret_cast<const T*>(task.entry(i));
    for (int64_t c = lane; c < task.width; c += lanes) out[i * task.width + c] = from[c];
  }
}

int64_t blocks_of(int64_t rows, int lanes) {
  return std::min<int64_t>((rows * lanes + kThreads - 1) / kThreads, kMaxBlocks);
}

// The bitwise or of the row's bytes and of all addresses and strides: its lowest set bit is their common alignment.
uint64_t alignment_of(const ShuffleArguments& given, size_t parts) {
  const ShuffleTask& task = given.task;
  uint64_t bits = static_cast<uint64_t>(given.row_bytes);
  if (task.base != nullptr) bits |= reinterpret_cast<uint64_t>(task.base) | static_cast<uint64_t>(task.base_stride);
  for (size_t p = 0; p < parts; ++p) {
    bits |= reinterpret_cast<uint64_t>(task.table[p]) | static_cast<uint64_t>(task.stride[p]);
  }
  return bits;
}

template <typename T, int N>
void launch_add(const ShuffleTask& task, void* out, cudaStream_t stream) {
  const int lanes = lanes_of(static_cast<int32_t>(std::min<int64_t>(task.width / N, 32)));
  const unsigned blocks = static_cast<unsigned>(blocks_of(task.rows, lanes));
  T* const to = static_cast<T*>(out);
  add_kernel<T, N><<<blocks, kThreads, 0, stream>>>(task, lanes, to);
}

template <typename T>
void launch_copy(ShuffleTask task, int64_t row_bytes, void* out, cudaStream_t stream) {
  task.width = row_bytes / static_cast<int64_t>(sizeof(T));
  const int lanes = lanes_of(static_cast<int32_t>(std::min<int64_t>(task.width, 32)));
  const unsigned blocks = static_cast<unsigned>(blocks_of(task.rows, lanes));
  T* const to = static_cast<T*>(out);
  copy_kernel<T><<<blocks, kThreads, 0, stream>>>(task, lanes, to);
}

// See torch_gnnscale.ops.shuffle_rows, which checks the arguments; `threads` is the CPU's.
Tensor shuffle_rows(const std::optional<Tensor>& base, const std::vector<Tensor>& parts,
                    const std::optional<Tensor>& part, const Tensor& row, const std::optional<Tensor>& ptr,
                    int64_t /*threads*/) {
  STD_TORCH_CHECK(row.is_cuda(), "shuffle_rows: row is not on a GPU");
  const torch::stable::accelerator::DeviceGuard guard(row.get_device_index());
  const ShuffleArguments given = shuffle_arguments(
      base, parts, part, row, ptr, [](const Tensor& tensor) { return device_address("shuffle_rows", tensor); });
  const ShuffleTask& task = given.task;
  Tensor out = room_like("shuffle_rows", row, {given.sizes.data(), given.sizes.size()}, parts[0].scalar_type());
  if (out.numel() == 0) return out;
  const cudaStream_t stream = current_stream(row.get_device_index());
  void* const to = out.mutable_data_ptr();
  const uint64_t aligned = alignment_of(given, parts.size());
  if (task.base == nullptr && task.ptr == nullptr) {
    const int64_t bytes = given.row_bytes;
    if (aligned % 16 == 0) {
      launch_copy<uint4>(task, bytes, to, stream);
    } else if (aligned % 8 == 0) {
      launch_copy<uint64_t>(task, bytes, to, stream);
    } else if (aligned % 4 == 0) {
      launch_copy<uint32_t>(task, bytes, to, stream);
    } else if (aligned % 2 == 0) {
      launch_copy<uint16_t>(task, bytes, to, stream);
    } else {
      launch_copy<uint8_t>(task, bytes, to, stream);
    }
  } else {
    dispatch_float(parts[0].scalar_type(), [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      if (aligned % 16 == 0) {
        launch_add<T, 16 / sizeof(T)>(task, to, stream);
      } else {
        launch_add<T, 1>(task, to, stream);
      }
    });
  }
  check("shuffle_rows", cudaGetLastError());
  return out;
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CUDA, library) { library.impl("shuffle_rows", TORCH_BOX(&shuffle_rows)); }

}  // namespace
}  // namespace gnnscale
