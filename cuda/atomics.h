// Atomic operations on ordinary memory, by CUDA's intrinsics on a device and by std::atomic_ref on a host. All are
// relaxed: what one phase writes is read by the next, after the end of a kernel or a join of threads.
#pragma once

#include <atomic>
#include <cstdint>

#include "macros.h"

namespace gnnscale {

GNNSCALE_HD uint64_t atomic_read(uint64_t& cell) {
#ifdef __CUDA_ARCH__
  return *const_cast<volatile uint64_t*>(&cell);
#else
  return std::atomic_ref<uint64_t>(cell).load(std::memory_order_relaxed);
#endif
}

GNNSCALE_HD uint32_t atomic_read(uint32_t& cell) {
#ifdef __CUDA_ARCH__
  return *const_cast<volatile uint32_t*>(&cell);
#else
  return std::atomic_ref<uint32_t>(cell).load(std::memory_order_relaxed);
#endif
}

// Replaces `expected` by `desired`; returns what was found.
GNNSCALE_HD uint64_t atomic_replace(uint64_t& cell, uint64_t expected, uint64_t desired) {
#ifdef __CUDA_ARCH__
  return atomicCAS(reinterpret_cast<unsigned long long*>(&cell), static_cast<unsigned long long>(expected),
                   static_cast<unsigned long long>(desired));
#else
  std::atomic_ref<uint64_t>(cell).compare_exchange_strong(expected, desired, std::memory_order_relaxed);
  return expected;
#endif
}

GNNSCALE_HD uint32_t atomic_replace(uint32_t& cell, uint32_t expected, uint32_t desired) {
#ifdef __CUDA_ARCH__
  return atomicCAS(&cell, expected, desired);
#else
  std::atomic_ref<uint32_t>(cell).compare_exchange_strong(expected, desired, std::memory_order_relaxed);
  return expected;
#endif
}

// Lowers the cell to `value` if it exceeds that.
GNNSCALE_HD void atomic_lower(uint64_t& cell, uint64_t value) {
#ifdef __CUDA_ARCH__
  if (atomic_read(cell) > value) {
    atomicMin(reinterpret_cast<unsigned long long*>(&cell), static_cast<unsigned long long>(value));
  }
#else
  std::atomic_ref<uint64_t> atomic(cell);
  uint64_t seen = atomic.load(std::memory_order_relaxed);
  while (seen > value && !atomic.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
#endif
}

GNNSCALE_HD void atomic_lower(uint32_t& cell, uint32_t value) {
#ifdef __CUDA_ARCH__
  atomicMin(&cell, value);
#else
  std::atomic_ref<uint32_t> atomic(cell);
  uint32_t seen = atomic.load(std::memory_order_relaxed);
  while (seen > value && !atomic.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
#endif
}

// Adds `value`; returns what was found.
GNNSCALE_HD uint64_t atomic_add(uint64_t& cell, uint64_t value) {
#ifdef __CUDA_ARCH__
  return atomicAdd(reinterpret_cast<unsigned long long*>(&cell), static_cast<unsigned long long>(value));
#else
  return std::atomic_ref<uint64_t>(cell).fetch_add(value, std::memory_order_relaxed);
#endif
}

GNNSCALE_HD uint32_t atomic_add(uint32_t& cell, uint32_t value) {
#ifdef __CUDA_ARCH__
  return atomicAdd(&cell, value);
#else
  return std::atomic_ref<uint32_t>(cell).fetch_add(value, std::memory_order_relaxed);
#endif
}

}  // namespace gnnscale
