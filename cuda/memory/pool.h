// A pool of buffers whose pages the process already has: a page fault costs more than copying the rows of a page, so
// the memory of an output that was dropped is used again for a later one. The bytes of idle buffers are bounded.
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
// The largest capacity that pool_acquire returns for `bytes`: at most 2.5 * bytes, or 8 KiB if that is more.
size_t pool_most(size_t bytes) noexcept;
// Gives a buffer back. Then the idle buffers that were released first are freed until the others are within the limit.
void pool_release(void* address, size_t capacity) noexcept;
// Frees every idle buffer.
void pool_trim() noexcept;
// Bounds the idle bytes. Until then the bound is 0: torch_gnnscale.ops sets it when it is imported.
void pool_set_limit(int64_t bytes) noexcept;
PoolStats pool_stats() noexcept;

// An array in a buffer of the pool. Its destructor gives the buffer back, unless it was detached.
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

  // Makes room for `capacity` elements; keeps the first `used` ones. Throws OutOfMemory.
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

  // Moves the first `used` elements to another buffer, and drops the rest, if this buffer is larger than any that
  // pool_acquire would return for them. Throws OutOfMemory.
  void fit(int64_t used) {
    const size_t bytes = static_cast<size_t>(used) * sizeof(T);
    if (bytes_ <= pool_most(bytes)) return;
    auto [address, size] = pool_acquire(bytes);
    if (bytes > 0) __builtin_memcpy(address, data_, bytes);
    pool_release(std::exchange(data_, static_cast<T*>(address)), std::exchange(bytes_, size));
  }

  // Returns the buffer and its size in bytes; the caller must pass both to pool_release.
  std::pair<T*, size_t> detach() { return {std::exchange(data_, nullptr), std::exchange(bytes_, 0)}; }

 private:
  T* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace gnnscale
