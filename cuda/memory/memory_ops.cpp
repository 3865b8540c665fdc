// The pool as seen from Python.
#include "tensor.h"
#include "workspace.h"

namespace gnnscale {
namespace {

// See torch_gnnscale.ops.pool_stats.
std::vector<int64_t> stats() {
  const PoolStats now = pool_stats();
  return {now.idle_bytes, now.live_bytes, now.limit_bytes, now.hits, now.misses};
}

void limit(int64_t bytes) { pool_set_limit(bytes); }

void trim() {
  pool_trim();
  workspace_trim();
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CompositeExplicitAutograd, library) {
  library.impl("pool_stats", TORCH_BOX(&stats));
  library.impl("pool_limit", TORCH_BOX(&limit));
  library.impl("pool_trim", TORCH_BOX(&trim));
}

}  // namespace
}  // namespace gnnscale
