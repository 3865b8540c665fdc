// Operators of the pool and of pages.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "tensor.h"

namespace gnnscale {
namespace {

// See torch_gnnscale.ops.pool_stats.
std::vector<int64_t> stats() {
  const PoolStats now = pool_stats();
  return {now.idle_bytes, now.live_bytes, now.limit_bytes, now.hits, now.misses};
}

void limit(int64_t bytes) {
  STD_TORCH_CHECK(bytes >= 0, "num_bytes: expected at least 0, found ", bytes);
  pool_set_limit(bytes);
}

void trim() { memory_trim(); }

// Moves a range of addresses into huge pages now: since Linux 6.1, whose headers may be older. What refuses does no
// harm.
void collapse([[maybe_unused]] uintptr_t address, [[maybe_unused]] uintptr_t bytes) {
#if defined(__linux__)
  constexpr int kCollapse = 25;  // MADV_COLLAPSE
  madvise(reinterpret_cast<void*>(address), bytes, kCollapse);
#endif
}

// See torch_gnnscale.ops.huge_pages. Threads take pieces in turn, since the kernel needs more time for some than for
// others.
void huge_pages(const Tensor& tensor, int64_t threads) {
  constexpr uintptr_t page = uintptr_t{2} << 20, piece = 32 * page;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  const uintptr_t bytes = static_cast<uintptr_t>(tensor.numel()) * tensor.element_size();
  const uintptr_t first = (begin + page - 1) / page * page, last = (begin + bytes) / page * page;
  if (last <= first) return;
  std::atomic<uintptr_t> next{first};
  run_tasks(num_tasks(static_cast<int64_t>(last - first), piece, threads), [&](int64_t) {
    for (uintptr_t at = next.fetch_add(piece); at < last; at = next.fetch_add(piece)) {
      collapse(at, std::min(piece, last - at));
    }
  });
}

// See torch_gnnscale.ops.release_pages. What the kernel tells of a page (Documentation/admin-guide/mm/pagemap.rst):
// bit 63: it is in memory; bit 62: it is in swap; bit 61: it is a file's or shared, and so not a private copy.
void release_pages(const Tensor& tensor) {
  if (tensor.numel() == 0) return;
  constexpr uint64_t kHeld = uint64_t{3} << 62, kOfFile = uint64_t{1} << 61;
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGE_SIZE)), most = 1 << 16;  // pages asked for at a time
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const uintptr_t begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  const uintptr_t end = (begin + static_cast<uintptr_t>(last + 1) * tensor.element_size() + page - 1) / page;
  const int descriptor = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return;
  std::vector<uint64_t> entry(most);
  for (uintptr_t from = begin / page, count; from < end; from += count) {
    const ssize_t bytes = pread(descriptor, entry.data(), 8 * std::min(most, end - from), static_cast<off_t>(8 * from));
    if (bytes < 8) break;
    count = static_cast<uintptr_t>(bytes) / 8;
    const auto keeps = [&](uintptr_t i) { return (entry[i] & kHeld) != 0 && (entry[i] & kOfFile) == 0; };
    for (uintptr_t i = 0; i < count; ++i) {
      uintptr_t to = i;
      while (to < count && !keeps(to)) ++to;
      if (to > i) madvise(reinterpret_cast<void*>((from + i) * page), (to - i) * page, MADV_DONTNEED);
      i = to;
    }
  }
  close(descriptor);
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) {
  library.impl("huge_pages", TORCH_BOX(&huge_pages));
  library.impl("release_pages", TORCH_BOX(&release_pages));
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CompositeExplicitAutograd, library) {
  library.impl("pool_stats", TORCH_BOX(&stats));
  library.impl("pool_limit", TORCH_BOX(&limit));
  library.impl("pool_trim", TORCH_BOX(&trim));
}

}  // namespace
}  // namespace gnnscale
