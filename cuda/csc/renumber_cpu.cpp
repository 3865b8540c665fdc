// A CSC with its nodes in another order (Data Tiering, section 3.2, algorithm 2), on the CPU.
#include <atomic>
#include <optional>
#include <tuple>

#include "../macros.h"
#include "../memory/checks.h"
#include "../memory/tensor.h"

namespace gnnscale {
namespace {

constexpr int64_t kAhead = 32;       // how many edges ahead the new ids of sources are prefetched
constexpr int64_t kGrain = 1 << 14;  // nodes of a task, at least

template <typename Id, typename EdgeId, typename Out>
struct Renumbering {
  const int64_t *colptr, *order, *rank;  // order: the old id of each new node; rank: the new id of each old one
  const Id* row;
  const EdgeId* edge_id;  // null: an edge's id is its position
  int64_t row_stride, edge_id_stride, num_dst, num_src, threads;
  std::atomic<int64_t> corrupt{-1};

  void run(int64_t* new_colptr, Out* pairs) {
    new_colptr[0] = 0;
    const int64_t tasks = num_tasks(num_dst, kGrain, threads);
    run_tasks(tasks, [&](int64_t task) {
      const auto [from, to] = part(num_dst, task, tasks);
      for (int64_t node = from; node < to; ++node) {
        new_colptr[node + 1] = colptr[order[node] + 1] - colptr[order[node]];
      }
    });
    for (int64_t node = 0; node < num_dst; ++node) new_colptr[node + 1] += new_colptr[node];
    STD_TORCH_CHECK(new_colptr[num_dst] == colptr[num_dst], "order: expected each node once");
    std::atomic<int64_t> unclaimed{0};
    run_tasks(tasks, [&](int64_t) {
      for (int64_t from; (from = unclaimed.fetch_add(kGrain / 16, std::memory_order_relaxed)) < num_dst;) {
        const int64_t to = std::min(from + kGrain / 16, num_dst);
        for (int64_t node = from; node < to; ++node) {
          if (node + 4 < to) GNNSCALE_PREFETCH(row + colptr[order[node + 4]] * row_stride);
          move(colptr[order[node]], colptr[order[node] + 1], pairs + 2 * new_colptr[node]);
        }
      }
    });
  }

  void move(int64_t first, int64_t last, Out* out) {
    for (int64_t e = first; e < last; ++e) {
      if (e + kAhead < last) {
        const uint64_t ahead = static_cast<uint64_t>(row[(e + kAhead) * row_stride]);
        if (ahead < static_cast<uint64_t>(num_src)) GNNSCALE_PREFETCH(rank + ahead);
      }
      uint64_t source = static_cast<uint64_t>(row[e * row_stride]);
      if (source >= static_cast<uint64_t>(num_src)) {
        corrupt.store(e);
        source = 0;
      }
      *out++ = static_cast<Out>(rank[source]);
      *out++ = edge_id == nullptr ? static_cast<Out>(e) : static_cast<Out>(edge_id[e * edge_id_stride]);
    }
  }
};

// See torch_gnnscale.ops.renumber, which checks the arguments.
std::tuple<Tensor, Tensor> renumber(const Tensor& colptr, const Tensor& row, const std::optional<Tensor>& edge_id,
                                    const Tensor& order, const Tensor& rank, bool int32, int64_t threads) {
  const int64_t num_dst = colptr.numel() - 1, num_edges = row.numel();
  check_int64("colptr", colptr);
  check_ids("row", row);
  if (edge_id.has_value()) check_ids("edge_id", *edge_id, num_edges);
  check_pointer("colptr", colptr, num_edges);
  check_int64("order", order, num_dst);
  check_int64("rank", rank, num_dst);
  check_below("order", order, num_dst);
  PooledArray<int64_t> new_colptr(num_dst + 1);
  const auto run = [&](auto* id_tag, auto* edge_tag, auto* out_tag) {
    using Id = std::remove_pointer_t<decltype(id_tag)>;
    using EdgeId = std::remove_pointer_t<decltype(edge_tag)>;
    using Out = std::remove_pointer_t<decltype(out_tag)>;
    PooledArray<Out> pairs(2 * num_edges);
    Renumbering<Id, EdgeId, Out> task{
        static_cast<const int64_t*>(colptr.const_data_ptr()),
        static_cast<const int64_t*>(order.const_data_ptr()),
        static_cast<const int64_t*>(rank.const_data_ptr()),
        static_cast<const Id*>(row.const_data_ptr()),
        edge_id.has_value() ? static_cast<const EdgeId*>(edge_id->const_data_ptr()) : nullptr,
        row.stride(0),
        edge_id.has_value() ? edge_id->stride(0) : 0,
        num_dst,
        rank.numel(),
        threads};
    task.run(new_colptr.data(), pairs.data());
    STD_TORCH_CHECK(task.corrupt.load() < 0, "the graph is malformed: row[", task.corrupt.load(), "] is not in [0, ",
                    rank.numel(), ")");
    return to_tensor(std::move(pairs), {num_edges, 2}, int32 ? ScalarType::Int : ScalarType::Long);
  };
  const ScalarType edge_type = edge_id.has_value() ? dtype_of(*edge_id) : ScalarType::Int;
  Tensor pairs = dispatch_index(dtype_of(row), [&](auto* id) {
    return dispatch_index(edge_type, [&](auto* edge) {
      return dispatch_index(int32 ? ScalarType::Int : ScalarType::Long, [&](auto* out) { return run(id, edge, out); });
    });
  });
  return {to_tensor(std::move(new_colptr), {num_dst + 1}, ScalarType::Long), pairs};
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("renumber", TORCH_BOX(&renumber)); }

}  // namespace
}  // namespace gnnscale
