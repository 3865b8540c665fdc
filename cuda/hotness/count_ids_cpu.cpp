// The operator count_ids on the CPU: how often each id occurs, in one pass over the ids.
#include <algorithm>
#include <atomic>
#include <vector>

#include "../memory/checks.h"
#include "../memory/tensor.h"
#include "scatter.h"

namespace gnnscale {
namespace {

constexpr int64_t kMaxTasks = 8;     // each but the first needs counts of its own
constexpr int64_t kGrain = 1 << 18;  // ids worth a task

// See torch_gnnscale.ops.count_ids, which checks the arguments.
Tensor count_ids(const Tensor& ids, int64_t size, int64_t threads) {
  check_ids("ids", ids);
  check_count("size", size);
  const int64_t total = ids.numel(), stride = ids.stride(0);
  const int64_t tasks = std::min(num_tasks(total, kGrain, threads), kMaxTasks);
  std::vector<PooledArray<int64_t>> counts;
  for (int64_t task = 0; task < tasks; ++task) {
    counts.emplace_back(size);
    std::fill_n(counts.back().data(), size, 0);
  }
  std::atomic<int64_t> outside{-1};
  dispatch_index(dtype_of(ids), [&](auto* tag) {
    using Id = std::remove_pointer_t<decltype(tag)>;
    const Id* const id = static_cast<const Id*>(ids.const_data_ptr());
    run_tasks(tasks, [&](int64_t task) {
      const auto [from, to] = part(total, task, tasks);
      scatter_add(id, stride, from, to, to, static_cast<uint64_t>(size), 1, counts[task].data(), outside);
    });
  });
  STD_TORCH_CHECK(outside.load() < 0, "ids[", outside.load(), "] is not in [0, ", size, ")");
  run_tasks(tasks, [&](int64_t task) {
    const auto [from, to] = part(size, task, tasks);
    for (int64_t other = 1; other < tasks; ++other) {
      for (int64_t i = from; i < to; ++i) counts[0].data()[i] += counts[other].data()[i];
    }
  });
  return to_tensor(std::move(counts[0]), {size}, ScalarType::Long);
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("count_ids", TORCH_BOX(&count_ids)); }

}  // namespace
}  // namespace gnnscale
