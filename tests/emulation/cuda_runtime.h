// What the .cu files use of CUDA, by threads of the host. Included in place of CUDA's own header by code that build.py
// has rewritten: launches are calls, and a tensor's place is what was said of its memory (see emulated_mark).
//
// Work is queued and done at a synchronization or when the outermost device guard ends, so that whatever is read too
// early is seen. New memory holds noise. Lanes run in any order on several threads at once, with yields inside atomics.
// In a kernel with barriers a thread runs a block: its lanes in turn, in any order, each to its next barrier. Shuffles
// are barriers, too: all warps of a block must take part, where the hardware asks for one. Launches, allocations and
// waits are counted (see emulated_counts).
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/shim_utils.h>

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static thread_local
#define __builtin_assume(condition) assert(condition)

struct Dimension {
  unsigned x = 0;
};
inline thread_local Dimension threadIdx, blockIdx, gridDim;

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

template <typename T>
T max(T a, T b) {
  return a > b ? a : b;
}

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
enum cudaMemoryType { cudaMemoryTypeUnregistered = 0, cudaMemoryTypeHost = 1, cudaMemoryTypeDevice = 2 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
struct cudaPointerAttributes {
  cudaMemoryType type;
  void* devicePointer;
};
using cudaStream_t = void*;

enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };

inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "invalid argument";
}
cudaError_t cudaMemGetInfo(size_t* left, size_t* all);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* address);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);

namespace emulated {

using torch::stable::Tensor;

struct DeviceGuard {
  explicit DeviceGuard(int device);
  ~DeviceGuard();
};

// Of the next launch, chosen anew after each: blocks of 256 threads, as on hardware, or of 64, so that small tests have
// several; as many blocks as there are items, or few, whose threads take further items in turn. In a kernel: of this.
inline thread_local int kThreads = 256;
inline thread_local int64_t kMaxBlocks = 1 << 20;

// Queues work that counts as so many launches.
void enqueue(int64_t launches, std::function<void()> work);
// Calls `kernel` for every lane of a grid, later; block by block if it has barriers.
void launch(int64_t blocks, int64_t threads, bool barriers, std::function<void()> kernel);
void barrier();
uint64_t shuffle(uint64_t value, int lane, int width);
void sometimes_yield();
bool is_cuda(const Tensor& tensor);
int32_t current_stream(int32_t device, void** stream);
Tensor new_empty(const Tensor& like, torch::headeronly::IntHeaderOnlyArrayRef size,
                 std::optional<torch::headeronly::ScalarType> dtype = std::nullopt);

template <typename T>
T compare_and_swap(T* at, T expected, T desired) {
  sometimes_yield();
  __atomic_compare_exchange_n(at, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}

template <typename T>
T lower(T* at, T value) {
  sometimes_yield();
  T seen = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (seen > value && !__atomic_compare_exchange_n(at, &seen, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return seen;
}

}  // namespace emulated

#define aoti_torch_get_current_cuda_stream emulated::current_stream

inline int __clzll(long long value) { return value == 0 ? 64 : __builtin_clzll(static_cast<uint64_t>(value)); }
inline bool __isGlobal(const void* address) { return address != nullptr; }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline void __syncthreads() { emulated::barrier(); }
template <typename T>
T __shfl_sync(unsigned lanes, T value, int lane, int width) {
  static_assert(sizeof(T) == 8 || sizeof(T) == 4);
  assert(lanes == ~0u);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = emulated::shuffle(bits, lane, width);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline unsigned __ballot_sync(unsigned lanes, bool value) {
  unsigned bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= unsigned{__shfl_sync<unsigned>(lanes, value, lane, 32)} << lane;
  return bits;
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
template <typename T>
T atomicCAS(T* at, T expected, T desired) {
  return emulated::compare_and_swap(at, expected, desired);
}
template <typename T>
T atomicMin(T* at, T value) {
  return emulated::lower(at, value);
}
template <typename T>
T atomicAdd(T* at, T value) {
  return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}

#define __CUDA_ARCH__ 900  // what follows is compiled as for a GPU
