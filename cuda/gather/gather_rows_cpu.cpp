// Rows of a matrix in host memory, copied into pooled memory.
#include <cstring>

#include "../macros.h"
#include "../memory/tensor.h"

namespace gnnscale {
namespace {

constexpr int64_t kAheadBytes = 1024;     // how far ahead of the copy rows are prefetched
constexpr int64_t kRowsAhead = 24;        // and their first lines, for the walk through the page table
constexpr int64_t kGrainBytes = 1 << 18;  // a task copies at least this much

GNNSCALE_INLINE void prefetch_row(const char* row, int64_t bytes) {
  for (int64_t offset = 0; offset < bytes; offset += 64) GNNSCALE_PREFETCH(row + offset);
  GNNSCALE_PREFETCH(row + bytes - 1);
}

template <typename Index>
void gather(const char* src, int64_t stride, const Index* index, int64_t begin, int64_t end, int64_t bytes, char* out) {
  const int64_t ahead = std::clamp<int64_t>(kAheadBytes / bytes, 2, 64);
  for (int64_t i = begin; i < end; ++i) {
    if (i + kRowsAhead < end) GNNSCALE_PREFETCH(src + static_cast<int64_t>(index[i + kRowsAhead]) * stride);
    if (i + ahead < end) prefetch_row(src + static_cast<int64_t>(index[i + ahead]) * stride, bytes);
    std::memcpy(out + i * bytes, src + static_cast<int64_t>(index[i]) * stride, static_cast<size_t>(bytes));
  }
}

// See torch_gnnscale.ops.gather_rows, which checks the arguments.
Tensor gather_rows(const Tensor& src, const Tensor& index, int64_t threads) {
  const int64_t rows = index.numel();
  int64_t row_items = 1;
  std::vector<int64_t> sizes{rows};
  for (int64_t d = 1; d < src.dim(); ++d) {
    sizes.push_back(src.size(d));
    row_items *= src.size(d);
  }
  const int64_t item = static_cast<int64_t>(src.element_size()), bytes = row_items * item;
  PooledArray<char> out(rows * bytes);
  if (rows * bytes > 0) {
    const char* from = static_cast<const char*>(src.const_data_ptr());
    const int64_t stride = src.stride(0) * item;
    const int64_t tasks = num_tasks(rows * bytes, kGrainBytes, threads);
    dispatch_index(index.scalar_type(), [&](auto* tag) {
      using Index = std::remove_pointer_t<decltype(tag)>;
      const Index* ids = static_cast<const Index*>(index.const_data_ptr());
      run_tasks(tasks, [&](int64_t task) {
        const auto [begin, end] = part(rows, task, tasks);
        gather(from, stride, ids, begin, end, bytes, out.data());
      });
    });
  }
  return to_tensor(std::move(out), sizes, src.scalar_type());
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("gather_rows", TORCH_BOX(&gather_rows)); }

}  // namespace
}  // namespace gnnscale
