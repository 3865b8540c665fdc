// Rows of a matrix in host memory, copied into pooled memory.
#include "../memory/checks.h"
#include "../memory/tensor.h"
#include "copy_rows.h"

namespace gnnscale {
namespace {

// See torch_gnnscale.ops.gather_rows, which checks the arguments.
Tensor gather_rows(const Tensor& src, const Tensor& index, int64_t threads) {
  check_table("src", src);
  check_contiguous_ids("index", index);
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
    const uint64_t limit = static_cast<uint64_t>(src.size(0));
    STD_TORCH_CHECK(limit > 0, "index: expected no rows of none");
    const int64_t tasks = num_tasks(rows * bytes, kGrainBytes, threads);
    std::atomic<bool> outside{false};
    dispatch_index(dtype_of(index), [&](auto* tag) {
      using Index = std::remove_pointer_t<decltype(tag)>;
      const Index* ids = static_cast<const Index*>(index.const_data_ptr());
      run_tasks(tasks, [&](int64_t task) {
        const auto [begin, end] = part(rows, task, tasks);
        if (bytes == sizeof(uint32_t) || bytes == sizeof(uint64_t)) {
          const bool found =
              bytes == sizeof(uint32_t)
                  ? copy_words<uint32_t>(table, stride, limit, ids + begin, end - begin, out.data() + begin * bytes)
                  : copy_words<uint64_t>(table, stride, limit, ids + begin, end - begin, out.data() + begin * bytes);
          if (!found) outside.store(true, std::memory_order_relaxed);
          return;
        }
        copy_rows(
            begin, end, bytes,
            [&](int64_t i) {
              const uint64_t id = static_cast<uint64_t>(static_cast<int64_t>(ids[i]));
              if (id < limit) return table + static_cast<int64_t>(id) * stride;
              outside.store(true, std::memory_order_relaxed);
              return table;
            },
            [&](int64_t i, const char* row) { copy_row(out.data() + i * bytes, row, bytes); });
      });
    });
    STD_TORCH_CHECK(!outside.load(), "index: expected rows in [0, ", limit, ")");
  }
  return to_tensor(std::move(out), sizes, dtype_of(src));
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("gather_rows", TORCH_BOX(&gather_rows)); }

}  // namespace
}  // namespace gnnscale
