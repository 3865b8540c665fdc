// Reverse PageRank on the CPU: one pass over the stored edges per iteration.
#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "../memory/checks.h"
#include "../memory/tensor.h"
#include "pagerank.h"
#include "scatter.h"

namespace gnnscale {
namespace {

constexpr int64_t kMostIterations = 1 << 16;  // as in ops/layer_drawing.py

constexpr int64_t kMaxTasks = 8;     // each but the first needs scores of its own
constexpr int64_t kGrain = 1 << 18;  // edges worth a task

// The first column that begins at edge `edge` or after it.
int64_t column_at(const int64_t* colptr, int64_t num_dst, int64_t edge) {
  return std::lower_bound(colptr, colptr + num_dst, edge) - colptr;
}

template <typename Id>
class ReversePageRank {
 public:
  ReversePageRank(const Tensor& colptr, const Tensor& row, int64_t threads)
      : colptr_(static_cast<const int64_t*>(colptr.const_data_ptr())),
        row_(static_cast<const Id*>(row.const_data_ptr())),
        stride_(row.stride(0)),
        num_nodes_(colptr.numel() - 1),
        tasks_(std::min(num_tasks(row.numel(), kGrain, threads), kMaxTasks)),
        num_edges_(row.numel()) {
    for (int64_t task = 0; task < tasks_; ++task) {
      gained_.emplace_back(num_nodes_);
      std::fill_n(gained_.back().data(), num_nodes_, 0);
    }
  }

  // One iteration: scores[v] = teleport + what the nodes that v points to pass on.
  void iterate(int64_t* scores, int64_t teleport, uint64_t damping) {
    run_tasks(tasks_, [&](int64_t task) {
      const auto [from, to] = part(num_edges_, task, tasks_);
      spread(scores, damping, column_at(colptr_, num_nodes_, from),
             task + 1 == tasks_ ? num_nodes_ : column_at(colptr_, num_nodes_, to), gained_[task].data());
    });
    run_tasks(tasks_, [&](int64_t task) {
      const auto [from, to] = part(num_nodes_, task, tasks_);
      std::fill(scores + from, scores + to, teleport);
      for (auto& gained : gained_) {
        for (int64_t node = from; node < to; ++node) scores[node] += std::exchange(gained[node], 0);
      }
    });
  }

  int64_t corrupt() const { return corrupt_.load(); }

 private:
  void spread(const int64_t* scores, uint64_t damping, int64_t from, int64_t to, int64_t* gained) {
    const Id* const row = row_;  // local: members would be read again after each write of a sum
    const int64_t stride = stride_, num_edges = num_edges_;
    const uint64_t num_nodes = static_cast<uint64_t>(num_nodes_);
    for (int64_t node = from; node < to; ++node) {
      const int64_t first = colptr_[node], last = colptr_[node + 1];
      if (first == last) continue;
      const int64_t share = passed_on(scores[node], damping, last - first);
      scatter_add(row, stride, first, last, num_edges, num_nodes, share, gained, corrupt_);
    }
  }

  const int64_t* colptr_;
  const Id* row_;
  const int64_t stride_, num_nodes_, tasks_, num_edges_;
  std::vector<PooledArray<int64_t>> gained_;  // what each task's columns pass on; all 0 between iterations
  std::atomic<int64_t> corrupt_{-1};
};

// See torch_gnnscale.ops.reverse_pagerank, which checks the arguments.
Tensor reverse_pagerank(const Tensor& colptr, const Tensor& row, const Tensor& initial, int64_t iterations,
                        int64_t teleport, int64_t damping, int64_t threads) {
  const int64_t num_nodes = initial.numel();
  STD_TORCH_CHECK(iterations >= 0 && iterations <= kMostIterations, "iterations: expected 0 to ", kMostIterations,
                  ", found ", iterations);
  check_int64("initial", initial);
  check_int64("colptr", colptr, num_nodes + 1);
  check_ids("row", row);
  check_pointer("colptr", colptr, row.numel());
  PooledArray<int64_t> scores(num_nodes);
  std::copy_n(static_cast<const int64_t*>(initial.const_data_ptr()), num_nodes, scores.data());
  dispatch_index(dtype_of(row), [&](auto* tag) {
    ReversePageRank<std::remove_pointer_t<decltype(tag)>> passes(colptr, row, threads);
    for (int64_t i = 0; i < iterations; ++i) passes.iterate(scores.data(), teleport, static_cast<uint64_t>(damping));
    STD_TORCH_CHECK(passes.corrupt() < 0, "the graph is malformed: row[", passes.corrupt(), "] is not in [0, ",
                    num_nodes, ")");
  });
  return to_tensor(std::move(scores), {num_nodes}, ScalarType::Long);
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("reverse_pagerank", TORCH_BOX(&reverse_pagerank)); }

}  // namespace
}  // namespace gnnscale
