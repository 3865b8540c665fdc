// Operators of the pool and of huge pages.
#include <sys/mman.h>

#include <algorithm>

#include "tensor.h"

namespace gnnscale {
namespace {

// See torch_gnnscale.ops.pool_stats.
std::vector<int64_t> stats() {
  const PoolStats now = pool_stats();
  return {now.idle_bytes, now.live_bytes, now.limit_bytes, now.hits, now.misses};
}

void limit(int64_t bytes) { pool_set_limit(bytes); }

void trim() { memory_trim(); }

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1; older kernels refuse, which does no harm
#endif

// See torch_gnnscale.ops.huge_pages.
void huge_pages(const Tensor& tensor) {
  constexpr uintptr_t page = uintptr_t{2} << 20, step = 32 * page;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  const uintptr_t bytes = static_cast<uintptr_t>(tensor.numel()) * tensor.element_size();
  const uintptr_t last = (begin + bytes) / page * page;
  for (uintptr_t at = (begin + page - 1) / page * page; at < last; at += step) {
    madvise(reinterpret_cast<void*>(at), std::min(step, last - at), MADV_COLLAPSE);
  }
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("huge_pages", TORCH_BOX(&huge_pages)); }

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CompositeExplicitAutograd, library) {
  library.impl("pool_stats", TORCH_BOX(&stats));
  library.impl("pool_limit", TORCH_BOX(&limit));
  library.impl("pool_trim", TORCH_BOX(&trim));
}

}  // namespace
}  // namespace gnnscale
