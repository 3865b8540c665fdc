// The operators first_outside and first_malformed: the first wrong entry of a list of ids, or of a colptr; -1 if all
// entries are right.
#include <atomic>

#include "../memory/checks.h"
#include "../memory/tensor.h"

namespace gnnscale {
namespace {

constexpr int64_t kGrain = 1 << 16;
constexpr int64_t kChunk = 1 << 12;  // entries that are tested together, without a branch

// The first i in [0, count) with bad(i), by several threads.
template <typename Bad>
int64_t find_first(int64_t count, int64_t threads, Bad&& bad) {
  std::atomic<int64_t> first{count};
  const int64_t tasks = num_tasks(count, kGrain, threads);
  run_tasks(tasks, [&](int64_t task) {
    const auto [begin, end] = part(count, task, tasks);
    for (int64_t from = begin; from < end; from += kChunk) {
      const int64_t to = std::min(from + kChunk, end);
      bool any = false;
      for (int64_t i = from; i < to; ++i) any |= bad(i);
      if (!any) continue;
      int64_t found = from;
      while (!bad(found)) ++found;
      int64_t known = first.load();
      while (found < known && !first.compare_exchange_weak(known, found)) {
      }
      return;
    }
  });
  return first.load() == count ? -1 : first.load();
}

Tensor to_scalar(int64_t value) {
  return torch::stable::full({}, static_cast<double>(value), ScalarType::Long);  // exact: below 2^53
}

// See torch_gnnscale.ops.first_outside.
Tensor first_outside(const Tensor& ids, int64_t limit, int64_t threads) {
  check_contiguous_ids("ids", ids);
  return dispatch_index(dtype_of(ids), [&](auto* tag) {
    using Id = std::remove_pointer_t<decltype(tag)>;
    const Id* data = static_cast<const Id*>(ids.const_data_ptr());
    return to_scalar(find_first(ids.numel(), threads, [=](int64_t i) {
      return static_cast<uint64_t>(static_cast<int64_t>(data[i])) >= static_cast<uint64_t>(limit);
    }));
  });
}

// See torch_gnnscale.ops.check_colptr.
Tensor first_malformed(const Tensor& colptr, int64_t num_edges, int64_t threads) {
  check_int64("colptr", colptr);
  STD_TORCH_CHECK(colptr.numel() > 0, "colptr: expected at least one entry");
  const int64_t* data = static_cast<const int64_t*>(colptr.const_data_ptr());
  const int64_t last = colptr.numel() - 1;
  if (data[0] != 0) return to_scalar(0);
  const int64_t found = find_first(last, threads, [=](int64_t i) { return data[i + 1] < data[i]; });
  if (found >= 0) return to_scalar(found + 1);
  return to_scalar(data[last] == num_edges ? -1 : last);
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) {
  library.impl("first_outside", TORCH_BOX(&first_outside));
  library.impl("first_malformed", TORCH_BOX(&first_malformed));
}

}  // namespace
}  // namespace gnnscale
