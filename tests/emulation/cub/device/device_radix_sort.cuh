// CUB's sort of pairs by their keys. CUB's own counts digits, sums the counts, and goes over the pairs once for each
// digit of 8 bits: as many launches; few pairs take one.
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

// The bits [first, last) of a key, by which it is sorted; the sign is the last bit.
inline uint64_t digits(int64_t key, int first, int last) {
  const uint64_t bits = static_cast<uint64_t>(key) ^ (uint64_t{1} << 63);
  return last == 64 ? bits >> first : (bits & ((uint64_t{1} << last) - 1)) >> first;
}

struct DeviceRadixSort {
  // The result is in either buffer, as it happens.
  template <typename Key, typename Value>
  static cudaError_t SortPairs(void* workspace, size_t& bytes, DoubleBuffer<Key>& keys, DoubleBuffer<Value>& values,
                               int64_t count, int first, int last, cudaStream_t) {
    const size_t needed = 767 + 16 * (static_cast<size_t>(count) / 100);
    if (workspace == nullptr) {
      bytes = needed;
      return cudaSuccess;
    }
    if (bytes < needed) return cudaErrorInvalidValue;
    Key* const from = keys.Current();
    Value* const from_value = values.Current();
    keys.selector = values.selector = static_cast<int>(count % 2);
    Key* const to = keys.Current();
    Value* const to_value = values.Current();
    emulated::enqueue(2 + (last - first + 7) / 8, [=] {
      std::memset(workspace, 0x5a, needed);  // it is in use as long as pairs are being sorted
      std::vector<std::pair<Key, Value>> pairs(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) pairs[i] = {from[i], from_value[i]};
      std::stable_sort(pairs.begin(), pairs.end(),
                       [=](auto& a, auto& b) { return digits(a.first, first, last) < digits(b.first, first, last); });
      for (int64_t i = 0; i < count; ++i) std::tie(to[i], to_value[i]) = pairs[i];
    });
    return cudaSuccess;
  }
};

}  // namespace cub
