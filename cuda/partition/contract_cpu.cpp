// The graph between groups of nodes: parallel edges merged, edges within a group dropped.
#include <algorithm>
#include <atomic>
#include <tuple>

#include "neighborhood.h"
#include "tally.h"

namespace gnnscale {
namespace {

constexpr int64_t kBlock = 1 << 8;  // groups that a thread claims at a time

// See torch_gnnscale.ops.contract, which checks the arguments.
std::tuple<Tensor, Tensor, Tensor> contract(const std::vector<Tensor>& colptr, const std::vector<Tensor>& row,
                                            const std::vector<int64_t>& ranges, const std::optional<Tensor>& group,
                                            int64_t num_groups, int64_t most, int64_t threads) {
  check_count("num_groups", num_groups);
  const Neighborhood neighborhood(colptr, row, ranges, group.has_value() ? group->numel() : num_groups);
  const Groups groups(group, num_groups);
  const int64_t* const of = data_or_null(group);
  // Calls f(group, merged neighbors) for every group.
  const auto each = [&](auto f) {
    std::atomic<int64_t> unclaimed{0};
    run_tasks(num_tasks(num_groups, kBlock, threads), [&](int64_t) {
      Tally tally;
      for (int64_t from; (from = unclaimed.fetch_add(kBlock, std::memory_order_relaxed)) < num_groups;) {
        for (int64_t g = from; g < std::min(from + kBlock, num_groups); ++g) {
          groups.each(g, [&](int64_t node) {
            neighborhood.visit(node, [&](int64_t neighbor) {
              const int64_t other = of == nullptr ? neighbor : of[neighbor];
              if (other != g) tally.add(other);
            });
          });
          f(g, tally.entries());
          tally.clear();
        }
      }
    });
    neighborhood.check();
  };

  PooledArray<int64_t> out_colptr(num_groups + 1);
  out_colptr[0] = 0;
  each([&](int64_t g, const auto& entries) { out_colptr[g + 1] = static_cast<int64_t>(entries.size()); });
  for (int64_t g = 0; g < num_groups; ++g) out_colptr[g + 1] += out_colptr[g];
  const int64_t total = out_colptr[num_groups] <= most ? out_colptr[num_groups] : 0;
  PooledArray<int64_t> out_row(total), out_weight(total);
  if (total > 0) {
    each([&](int64_t g, auto& entries) {
      std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.value < b.value; });
      int64_t to = out_colptr[g];
      for (const auto& entry : entries) {
        out_row[to] = entry.value;
        out_weight[to++] = entry.count;
      }
    });
  }
  return {to_tensor(std::move(out_colptr), {num_groups + 1}, ScalarType::Long),
          to_tensor(std::move(out_row), {total}, ScalarType::Long),
          to_tensor(std::move(out_weight), {total}, ScalarType::Long)};
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("contract", TORCH_BOX(&contract)); }

}  // namespace
}  // namespace gnnscale
