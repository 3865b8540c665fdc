// Keyed random numbers in bulk: bits, permutations and R-MAT edges, each a function of its key and position.
#include "../memory/checks.h"
#include "../memory/tensor.h"
#include "../philox.h"
#include "rmat.h"

namespace gnnscale {
namespace {

constexpr int64_t kGrain = 1 << 13;

// Draw number i of `key`: half i % 2 of block i / 2.
uint64_t numbered_draw(uint64_t key, int64_t i) {
  const uint64_t block = static_cast<uint64_t>(i) >> 1;
  return philox_draw(philox(key, static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0), i & 1);
}

// See torch_gnnscale.ops.random_bits.
Tensor random_bits(int64_t count, int64_t key, int64_t offset, int64_t threads) {
  PooledArray<uint64_t> out(count);
  const int64_t tasks = num_tasks(count, kGrain, threads);
  run_tasks(tasks, [&](int64_t task) {
    const auto [begin, end] = part(count, task, tasks);
    for (int64_t i = begin; i < end; ++i) out[i] = numbered_draw(static_cast<uint64_t>(key), offset + i);
  });
  return to_tensor(std::move(out), {count}, ScalarType::Long);
}

// See torch_gnnscale.ops.permutation. The shuffle of Fisher and Yates, front to back.
Tensor permutation(int64_t count, int64_t key) {
  PooledArray<int64_t> out(count);
  for (int64_t i = 0; i < count; ++i) out[i] = i;
  for (int64_t i = 0; i + 1 < count; ++i) {
    const uint64_t other = bounded(numbered_draw(static_cast<uint64_t>(key), i), static_cast<uint64_t>(count - i));
    std::swap(out[i], out[i + static_cast<int64_t>(other)]);
  }
  return to_tensor(std::move(out), {count}, ScalarType::Long);
}

// See torch_gnnscale.ops.rmat_edges.
Tensor rmat_edges(int64_t first, int64_t count, int64_t num_nodes, const std::vector<int64_t>& thresholds, int64_t key,
                  int64_t threads) {
  STD_TORCH_CHECK(thresholds.size() == 3, "expected 3 thresholds, got ", thresholds.size());
  check_count("count", count);
  STD_TORCH_CHECK(num_nodes >= 1 && num_nodes <= int64_t{1} << 40, "num_nodes: expected 1 to 2^40, found ", num_nodes);
  int levels = 0;
  while ((int64_t{1} << levels) < num_nodes) ++levels;
  PooledArray<int64_t> out(2 * count);
  const int64_t tasks = num_tasks(count, kGrain, threads);
  run_tasks(tasks, [&](int64_t task) {
    const auto [begin, end] = part(count, task, tasks);
    for (int64_t i = begin; i < end; ++i) {
      const Edge edge = rmat_edge(static_cast<uint64_t>(key), first + i, num_nodes, levels, thresholds.data());
      out[i] = edge.src;
      out[count + i] = edge.dst;
    }
  });
  return to_tensor(std::move(out), {2, count}, ScalarType::Long);
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CompositeExplicitAutograd, library) {
  library.impl("random_bits", TORCH_BOX(&random_bits));
  library.impl("permutation", TORCH_BOX(&permutation));
  library.impl("rmat_edges", TORCH_BOX(&rmat_edges));
}

}  // namespace
}  // namespace gnnscale
