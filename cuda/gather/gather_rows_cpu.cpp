// Rows of a matrix in host memory, copied into pooled memory.
#include "../memory/tensor.h"
#include "copy_rows.h"

namespace gnnscale {
namespace {

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
    const char* table = static_cast<const char*>(src.const_data_ptr());
    const int64_t stride = src.stride(0) * item;
    const int64_t tasks = num_tasks(rows * bytes, kGrainBytes, threads);
    dispatch_index(index.scalar_type(), [&](auto* tag) {
      using Index = std::remove_pointer_t<decltype(tag)>;
      const Index* ids = static_cast<const Index*>(index.const_data_ptr());
      run_tasks(tasks, [&](int64_t task) {
        const auto [begin, end] = part(rows, task, tasks);
        copy_rows(
            begin, end, bytes, [&](int64_t i) { return table + static_cast<int64_t>(ids[i]) * stride; },
            [&](int64_t i, const char* row) { copy_row(out.data() + i * bytes, row, bytes); });
      });
    });
  }
  return to_tensor(std::move(out), sizes, src.scalar_type());
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("gather_rows", TORCH_BOX(&gather_rows)); }

}  // namespace
}  // namespace gnnscale
