// The column pointer of edges that are sorted by destination, on the CPU.
#include <atomic>

#include "../memory/checks.h"
#include "../memory/tensor.h"

namespace gnnscale {
namespace {

constexpr int64_t kGrain = 1 << 16;

// The destinations of `count` edges, in [0, num_dst) and in rising order, as the caller says.
template <typename Id>
struct Destinations {
  const Id* dst;
  int64_t count, num_dst;

  // That of an edge; before the first edge -1, after the last num_dst.
  int64_t operator[](int64_t edge) const { return edge < 0 ? -1 : edge == count ? num_dst : dst[edge]; }

  // For each of the edges [begin, end): writes the entries of `colptr` after the destination of the edge before it, up
  // to its own destination. So different edges write different entries. Returns whether these edges are in order; if
  // not, some entries are not written.
  bool point(int64_t begin, int64_t end, int64_t* colptr) const {
    for (int64_t edge = begin; edge < end; ++edge) {
      const int64_t before = (*this)[edge - 1], to = (*this)[edge];
      // An end that is out of range is found here, or by the next edge: another task may have it.
      if (to < before || (edge > 0 && before < 0) || (edge < count && to >= num_dst)) return false;
      for (int64_t column = before + 1; column <= to; ++column) colptr[column] = edge;
    }
    return true;
  }
};

// See torch_gnnscale.ops.colptr_of_sorted, which checks types and shapes.
Tensor colptr_of_sorted(const Tensor& dst, int64_t num_dst, int64_t threads) {
  check_contiguous_ids("dst", dst);
  check_count("num_dst", num_dst);
  return dispatch_index(dtype_of(dst), [&](auto* tag) {
    using Id = std::remove_pointer_t<decltype(tag)>;
    const Destinations<Id> edges{static_cast<const Id*>(dst.const_data_ptr()), dst.numel(), num_dst};
    PooledArray<int64_t> colptr(num_dst + 1);
    const int64_t ends = edges.count + 1;  // one more than the edges: the entries after the last one
    const int64_t tasks = num_tasks(ends, kGrain, threads);
    std::atomic<bool> sorted{true};
    run_tasks(tasks, [&](int64_t task) {
      const auto [begin, end] = part(ends, task, tasks);
      if (!edges.point(begin, end, colptr.data())) sorted.store(false);
    });
    STD_TORCH_CHECK(sorted.load(), "expected destinations in [0, ", num_dst, "), in rising order");
    return to_tensor(std::move(colptr), {num_dst + 1}, ScalarType::Long);
  });
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("colptr_of_sorted", TORCH_BOX(&colptr_of_sorted)); }

}  // namespace
}  // namespace gnnscale
