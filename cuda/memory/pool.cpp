#include "pool.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstdlib>
#include <list>
#include <map>
#include <mutex>
#include <new>

#include "allocate.h"

namespace gnnscale {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSmallest = 4096;
constexpr size_t kLargest = size_t{1} << 46;
constexpr size_t kHugePage = size_t{2} << 20;

// The capacity of a new buffer for `bytes` bytes: 4, 5, 6 or 7 times a power of two, at least kSmallest. Above
// kSmallest less than a quarter of it is unused.
size_t size_class(size_t bytes) {
  if (bytes <= kSmallest) return kSmallest;
  size_t step = kSmallest / 4;
  while (step * 8 < bytes) step *= 2;
  return (bytes + step - 1) / step * step;
}

// Buffers of at least 4 huge pages ask for huge pages: with them there are fewer page faults, and rows that are read at
// random cost fewer walks through the page table.
void* allocate(size_t capacity) {
  const bool huge = capacity >= 4 * kHugePage;
  void* address =
      allocate_or_trim(capacity, [&] { return std::aligned_alloc(huge ? kHugePage : kAlignment, capacity); });
  if (huge) madvise(address, capacity / kHugePage * kHugePage, MADV_HUGEPAGE);
  return address;
}

struct Pool {
  using Buffers = std::list<std::pair<void*, size_t>>;
  using BySize = std::multimap<size_t, Buffers::iterator>;

  std::mutex mutex;
  Buffers idle;  // oldest first
  BySize by_size;
  PoolStats stats{0, 0, 0, 0, 0};

  // Adds an idle buffer. If it throws std::bad_alloc, nothing was added.
  void keep(void* address, size_t capacity) {
    Buffers entry{{address, capacity}};
    by_size.emplace(capacity, entry.begin());
    idle.splice(idle.end(), entry);
    stats.idle_bytes += static_cast<int64_t>(capacity);
  }

  // Removes an idle buffer and returns its address.
  void* take(BySize::iterator found) {
    void* address = found->second->first;
    stats.idle_bytes -= static_cast<int64_t>(found->first);
    idle.erase(found->second);
    by_size.erase(found);
    return address;
  }

  // Frees the oldest idle buffers until at most `limit` bytes are idle.
  void shrink(int64_t limit) {
    while (stats.idle_bytes > limit) {
      auto oldest = idle.begin();
      auto [found, end] = by_size.equal_range(oldest->second);
      while (found != end && found->second != oldest) ++found;
      std::free(take(found));
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

size_t pool_most(size_t bytes) noexcept { return 2 * size_class(bytes); }

std::pair<void*, size_t> pool_acquire(size_t bytes) {
  if (bytes > kLargest) throw OutOfMemory(bytes);
  const size_t capacity = size_class(bytes);
  Pool& p = pool();
  {
    std::lock_guard<std::mutex> lock(p.mutex);
    auto found = p.by_size.lower_bound(capacity);
    if (found != p.by_size.end() && found->first <= pool_most(bytes)) {
      const size_t size = found->first;
      found = std::prev(p.by_size.upper_bound(size));  // the one released last: most likely in a cache
      p.stats.live_bytes += static_cast<int64_t>(size);
      ++p.stats.hits;
      return {p.take(found), size};
    }
    ++p.stats.misses;
  }
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
