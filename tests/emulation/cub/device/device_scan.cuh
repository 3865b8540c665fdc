// CUB's prefix sum, one number after the other.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

namespace cub {

struct DeviceScan {
  template <typename T>
  static cudaError_t ExclusiveSum(void* workspace, size_t& bytes, const T* in, T* out, int64_t count, cudaStream_t) {
    if (workspace == nullptr) {
      bytes = 1 + static_cast<size_t>(count) % 700;
      return cudaSuccess;
    }
    emulated::enqueue([=] {
      std::memset(workspace, 0x5a, bytes);  // it is in use as long as the sum is being made
      using Sum = std::make_unsigned_t<T>;  // what lies behind the numbers that count is noise
      Sum sum = 0;
      for (int64_t i = 0; i < count; ++i) {
        const Sum next = static_cast<Sum>(in[i]);
        out[i] = static_cast<T>(sum);
        sum += next;
      }
    });
    return cudaSuccess;
  }
};

}  // namespace cub
