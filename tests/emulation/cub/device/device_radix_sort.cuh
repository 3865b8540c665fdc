// CUB's sort of pairs by their keys.
#pragma once

#include <cuda_runtime.h>

#include <numeric>

namespace cub {

struct DeviceRadixSort {
  template <typename Key, typename Value>
  static cudaError_t SortPairs(void* workspace, size_t& bytes, const Key* keys, Key* sorted_keys, const Value* values,
                               Value* sorted_values, int64_t count, int, int, cudaStream_t) {
    if (workspace == nullptr) {
      bytes = 1 + static_cast<size_t>(count) % 700;
      return cudaSuccess;
    }
    emulated::enqueue([=] {
      std::memset(workspace, 0x5a, bytes);  // it is in use as long as pairs are being sorted
      std::vector<int64_t> order(static_cast<size_t>(count));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [keys](int64_t a, int64_t b) { return keys[a] < keys[b]; });
      for (int64_t i = 0; i < count; ++i) {
        sorted_keys[i] = keys[order[i]];
        sorted_values[i] = values[order[i]];
      }
    });
    return cudaSuccess;
  }
};

}  // namespace cub
