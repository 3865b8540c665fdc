// CUB's sort of pairs by their keys.
#pragma once

#include <cuda_runtime.h>

#include <tuple>
#include <utility>

namespace cub {

template <typename T>
struct DoubleBuffer {
  T* buffers[2];
  int selector = 0;

  DoubleBuffer(T* current, T* other) : buffers{current, other} {}
  T* Current() const { return buffers[selector]; }
};

struct DeviceRadixSort {
  // The result is in either buffer, as it happens.
  template <typename Key, typename Value>
  static cudaError_t SortPairs(void* workspace, size_t& bytes, DoubleBuffer<Key>& keys, DoubleBuffer<Value>& values,
                               int64_t count, int, int, cudaStream_t) {
    if (workspace == nullptr) {
      bytes = 1 + static_cast<size_t>(count) % 700;
      return cudaSuccess;
    }
    Key* const from = keys.Current();
    Value* const from_value = values.Current();
    keys.selector = values.selector = static_cast<int>(count % 2);
    Key* const to = keys.Current();
    Value* const to_value = values.Current();
    emulated::enqueue([=] {
      std::memset(workspace, 0x5a, bytes);  // it is in use as long as pairs are being sorted
      std::vector<std::pair<Key, Value>> pairs(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) pairs[i] = {from[i], from_value[i]};
      std::stable_sort(pairs.begin(), pairs.end(), [](auto& a, auto& b) { return a.first < b.first; });
      for (int64_t i = 0; i < count; ++i) std::tie(to[i], to_value[i]) = pairs[i];
    });
    return cudaSuccess;
  }
};

}  // namespace cub
