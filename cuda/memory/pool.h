// A bounded pool of touched buffers: a page fault costs more than the rows that the page holds, so the memory of a
// dropped output serves a later one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "allocate.h"

namespace gnnscale {

struct PoolStats {
  int64_t idle_bytes, live_bytes, limit_bytes, hits, misses;
};

// A buffer of at least `bytes` bytes, 64-byte aligned. Throws OutOfMemory.
std::pair<void*, size_t> pool_acquire(size_t bytes);  // (address, capacity)
// The largest buffer that pool_acquire gives for so many bytes: two and a half times as much, or 8 KiB.
size_t pool_most(size_t bytes) noexcept;
// Gives a buffer back; the oldest idle buffers are freed while the idle ones exceed the limit. Never throws.
void pool_release(void* address, size_t capacity) noexcept;
// Frees every idle buffer.
void pool_trim() noexcept;
// Bounds the idle bytes. Until then the bound is 0: torch_gnnscale.ops sets it when it is imported.
void pool_set_limit(int64_t bytes) noexcept;
PoolStats pool_stats() noexcept;

// A pooled array that grows, and gives its memory back unless it was detached.
template <typename T>
class PooledArray {
 public:
  PooledArray() = default;
  explicit PooledArray(int64_t capacity) { reserve(0, capacity); }
  PooledArray(const PooledArray&) = delete;
  PooledArray& operator=(const PooledArray&) = delete;
  PooledArray(PooledArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PooledArray& operator=(PooledArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~PooledArray() {
    if (data_ != nullptr) pool_release(data_, bytes_);
  }

  T* data() const { return data_; }
  T& operator[](int64_t i) const { return data_[i]; }

  // Room for `capacity` elements; the first `used` ones are kept.
  void reserve(int64_t used, int64_t capacity) {
    if (capacity < 0 || static_cast<uint64_t>(capacity) > SIZE_MAX / sizeof(T)) throw OutOfMemory(SIZE_MAX);
    const size_t bytes = static_cast<size_t>(capacity) * sizeof(T);
    if (data_ != nullptr && bytes <= bytes_) return;
    auto [address, size] = pool_acquire(bytes);
    if (data_ != nullptr) {
      __builtin_memcpy(address, data_, static_cast<size_t>(used) * sizeof(T));
      pool_release(data_, bytes_);
    }
    data_ = static_cast<T*>(address);
    bytes_ = size;
  }

  // Moves the first `used` elements, the only ones still needed, to another buffer if this one is larger than one
  // that would be acquired for them.
  void fit(int64_t used) {
    const size_t bytes = static_cast<size_t>(used) * sizeof(T);
    if (bytes_ <= pool_most(bytes)) return;
    auto [address, size] = pool_acquire(bytes);
    if (bytes > 0) __builtin_memcpy(address, data_, bytes);
    pool_release(std::exchange(data_, static_cast<T*>(address)), std::exchange(bytes_, size));
  }

  // The buffer and its size in bytes, which the caller owns from now on.
  std::pair<T*, size_t> detach() { return {std::exchange(data_, nullptr), std::exchange(bytes_, 0)}; }

 private:
  T* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace gnnscale
