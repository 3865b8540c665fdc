// CUB's prefix sum, one number after the other. CUB's own is two launches, the first of which sets the states of tiles.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

namespace cub {

struct DeviceScan {
  template <typename Input, typename T>
  static cudaError_t ExclusiveSum(void* workspace, size_t& bytes, Input in, T* out, int64_t count, cudaStream_t) {
    const size_t needed = 767 + 16 * (static_cast<size_t>(count) / 100);
    if (workspace == nullptr) {
      bytes = needed;
      return cudaSuccess;
    }
    if (bytes < needed) return cudaErrorInvalidValue;
    emulated::enqueue(2, [=] {
      std::memset(workspace, 0x5a, needed);  // it is in use as long as the sum is being made
      using Sum = std::make_unsigned_t<T>;   // sums are modulo a power of two
      Sum sum = 0;
      for (int64_t i = 0; i < count; ++i) {
        // CUB reads tiles that begin at in + offset, by indices or by the iterator itself.
        const Sum next = static_cast<Sum>(i % 3 == 0 ? *(in + i) : (in + i / 7 * 7)[i % 7]);
        out[i] = static_cast<T>(sum);
        sum += next;
      }
    });
    return cudaSuccess;
  }
};

}  // namespace cub
