// A CSC by source: a counting sort of the destinations, stable in any number of threads.
#include <algorithm>
#include <atomic>
#include <tuple>

#include "../macros.h"
#include "../memory/checks.h"
#include "../memory/tensor.h"

namespace gnnscale {
namespace {

constexpr int64_t kMaxTasks = 4;     // few, because each has a count for every source
constexpr int64_t kGrain = 1 << 18;  // edges worth a task
constexpr int64_t kAhead = 32;       // how far ahead places are prefetched

template <typename Id, typename Out>
class Transposition {
 public:
  Transposition(const Tensor& colptr, const Tensor& row, int64_t num_src, int64_t threads)
      : colptr_(static_cast<const int64_t*>(colptr.const_data_ptr())),
        row_(static_cast<const Id*>(row.const_data_ptr())),
        stride_(row.stride(0)),
        num_dst_(colptr.numel() - 1),
        num_edges_(row.numel()),
        num_src_(num_src),
        tasks_(std::min(num_tasks(num_edges_, kGrain, threads), kMaxTasks)) {}

  // Returns -1, or the position of an edge whose source is not a node; the outputs are then not filled.
  int64_t run(int64_t* out_colptr, Out* out) {
    std::vector<PooledArray<int64_t>> next;  // per task and source: where the task's next edge goes
    for (int64_t task = 0; task < tasks_; ++task) next.emplace_back(num_src_);
    std::atomic<int64_t> corrupt{-1};
    run_tasks(tasks_, [&](int64_t task) {
      int64_t* const count = next[task].data();
      std::fill_n(count, num_src_, 0);
      const auto [from, to] = part(num_edges_, task, tasks_);
      for (int64_t e = from; e < to; ++e) {
        const uint64_t source = static_cast<uint64_t>(row_[e * stride_]);
        source < static_cast<uint64_t>(num_src_) ? void(++count[source]) : corrupt.store(e);
      }
    });
    if (corrupt.load() >= 0) return corrupt.load();
    int64_t sum = 0;
    for (int64_t source = 0; source < num_src_; ++source) {
      out_colptr[source] = sum;
      for (auto& count : next) sum += std::exchange(count[source], sum);
    }
    out_colptr[num_src_] = sum;
    run_tasks(tasks_, [&](int64_t task) {
      int64_t* const place = next[task].data();
      const auto [from, to] = part(num_edges_, task, tasks_);
      int64_t column = std::upper_bound(colptr_, colptr_ + num_dst_ + 1, from) - colptr_ - 1;
      for (int64_t e = from; e < to; ++e) {
        while (colptr_[column + 1] <= e) ++column;
        if (e + kAhead < to) GNNSCALE_PREFETCH_WRITE(place + row_[(e + kAhead) * stride_]);
        out[place[row_[e * stride_]]++] = static_cast<Out>(column);
      }
    });
    return -1;
  }

 private:
  const int64_t* const colptr_;
  const Id* const row_;
  const int64_t stride_, num_dst_, num_edges_, num_src_, tasks_;
};

// See torch_gnnscale.ops.transpose, which checks the arguments.
std::tuple<Tensor, Tensor> transpose(const Tensor& colptr, const Tensor& row, int64_t num_src, int64_t threads) {
  const int64_t num_edges = row.numel(), num_dst = colptr.numel() - 1;
  check_int64("colptr", colptr);
  check_ids("row", row);
  check_pointer("colptr", colptr, num_edges);
  check_count("num_src", num_src);
  const ScalarType type = num_dst <= int64_t{1} << 31 ? ScalarType::Int : ScalarType::Long;
  PooledArray<int64_t> out_colptr(num_src + 1);
  Tensor out = dispatch_index(dtype_of(row), [&](auto* id) {
    return dispatch_index(type, [&](auto* tag) {
      using Out = std::remove_pointer_t<decltype(tag)>;
      PooledArray<Out> neighbors(num_edges);
      Transposition<std::remove_pointer_t<decltype(id)>, Out> transposition(colptr, row, num_src, threads);
      const int64_t corrupt = transposition.run(out_colptr.data(), neighbors.data());
      STD_TORCH_CHECK(corrupt < 0, "the graph is malformed: row[", corrupt, "] is not in [0, ", num_src, ")");
      return to_tensor(std::move(neighbors), {num_edges}, type);
    });
  });
  return {to_tensor(std::move(out_colptr), {num_src + 1}, ScalarType::Long), out};
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("transpose", TORCH_BOX(&transpose)); }

}  // namespace
}  // namespace gnnscale
