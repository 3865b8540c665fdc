#include "pool.h"

#include <pthread.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <new>

#include "allocate.h"
#include "huge_pages.h"

namespace gnnscale {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSmallest = 4096;
constexpr size_t kLargest = size_t{1} << 46;
constexpr size_t kHugePage = size_t{2} << 20;

// Buffers have the sizes of classes: 4, 5, 6 or 7 times a power of two, at least kSmallest. Above it less than a
// quarter of a new buffer is unused. Class c + kDoubled has twice the size of class c.
constexpr size_t kDoubled = 4;

// The number of the smallest class of at least so many bytes.
constexpr size_t size_class(size_t bytes) {
  if (bytes <= kSmallest) return 0;
  const size_t shift = static_cast<size_t>(std::bit_width((bytes - 1) / (2 * kSmallest)));
  const size_t step = (kSmallest / 4) << shift;
  return kDoubled * shift + (bytes + step - 1) / step - 4;
}

constexpr size_t capacity_of(size_t size_class) {
  return ((kSmallest / 4) << size_class / kDoubled) * (4 + size_class % kDoubled);
}

// Buffers of at least 4 huge pages ask for huge pages: with them there are fewer page faults, and rows that are read at
// random cost fewer walks through the page table.
void* allocate(size_t capacity) {
  const bool huge = capacity >= 4 * kHugePage;
  void* address =
      allocate_or_trim(capacity, [&] { return std::aligned_alloc(huge ? kHugePage : kAlignment, capacity); });
  if (huge) ask_for_huge_pages(address, capacity / kHugePage * kHugePage);
  return address;
}

struct Pool {
  struct Idle {
    void* address;
    uint64_t released;  // ascends with every release
  };

  std::mutex mutex;
  std::array<std::deque<Idle>, size_class(2 * kLargest) + 1> idle;  // of each size class, oldest first
  uint64_t releases = 0;
  PoolStats stats{0, 0, 0, 0, 0};

  // Adds an idle buffer. If it throws std::bad_alloc, nothing was added.
  void keep(void* address, size_t capacity) {
    idle[size_class(capacity)].push_back({address, releases++});
    stats.idle_bytes += static_cast<int64_t>(capacity);
  }

  // Removes the idle buffer of a class that was released last, which is most likely in a cache, and returns its
  // address; null if there is none.
  void* take(size_t number) {
    std::deque<Idle>& of_class = idle[number];
    if (of_class.empty()) return nullptr;
    void* address = of_class.back().address;
    of_class.pop_back();
    stats.idle_bytes -= static_cast<int64_t>(capacity_of(number));
    return address;
  }

  // Frees the oldest idle buffers until at most `limit` bytes are idle.
  void shrink(int64_t limit) {
    while (stats.idle_bytes > limit) {
      size_t oldest = 0;
      const auto age = [&](size_t number) { return idle[number].empty() ? UINT64_MAX : idle[number].front().released; };
      for (size_t number = 1; number < idle.size(); ++number) {
        if (age(number) < age(oldest)) oldest = number;
      }
      std::free(idle[oldest].front().address);
      idle[oldest].pop_front();
      stats.idle_bytes -= static_cast<int64_t>(capacity_of(oldest));
    }
  }
};

// Never destroyed: tensors may be freed after static destruction. The thread that forks holds its lock during the fork,
// so no other thread does, and both processes unlock it.
Pool& pool() {
  static Pool* instance = [] {
    auto* created = new Pool;
    pthread_atfork([] { pool().mutex.lock(); }, [] { pool().mutex.unlock(); }, [] { pool().mutex.unlock(); });
    return created;
  }();
  return *instance;
}

}  // namespace

size_t pool_most(size_t bytes) noexcept { return 2 * capacity_of(size_class(bytes)); }

std::pair<void*, size_t> pool_acquire(size_t bytes) {
  if (bytes > kLargest) throw OutOfMemory(bytes);
  const size_t least = size_class(bytes);
  Pool& p = pool();
  {
    std::lock_guard<std::mutex> lock(p.mutex);
    for (size_t number = least; number <= least + kDoubled; ++number) {
      if (void* address = p.take(number); address != nullptr) {
        p.stats.live_bytes += static_cast<int64_t>(capacity_of(number));
        ++p.stats.hits;
        return {address, capacity_of(number)};
      }
    }
    ++p.stats.misses;
  }
  const size_t capacity = capacity_of(least);
  void* address = allocate(capacity);
  std::lock_guard<std::mutex> lock(p.mutex);
  p.stats.live_bytes += static_cast<int64_t>(capacity);
  return {address, capacity};
}

void pool_release(void* address, size_t capacity) noexcept {
  Pool& p = pool();
  std::lock_guard<std::mutex> lock(p.mutex);
  p.stats.live_bytes -= static_cast<int64_t>(capacity);
  try {
    p.keep(address, capacity);
  } catch (const std::bad_alloc&) {
    std::free(address);
  }
  p.shrink(p.stats.limit_bytes);
}

void pool_trim() noexcept {
  Pool& p = pool();
  std::lock_guard<std::mutex> lock(p.mutex);
  p.shrink(0);
}

void pool_set_limit(int64_t bytes) noexcept {
  Pool& p = pool();
  std::lock_guard<std::mutex> lock(p.mutex);
  p.stats.limit_bytes = bytes;
  p.shrink(bytes);
}

PoolStats pool_stats() noexcept {
  Pool& p = pool();
  std::lock_guard<std::mutex> lock(p.mutex);
  return p.stats;
}

}  // namespace gnnscale
