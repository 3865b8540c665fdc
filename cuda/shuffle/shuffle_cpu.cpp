// Rows that ranks of a split send, read and add, in host memory.
#include "../gather/copy_rows.h"
#include "../memory/tensor.h"
#include "shuffle_arguments.h"

namespace gnnscale {
namespace {

constexpr int kItemsAtOnce = 32;

template <typename T>
void add_rows(const ShuffleTask& task, int64_t begin, int64_t end, T* out) {
  for (int64_t i = begin; i < end; ++i) {
    T* const to = out + i * task.width;
    int64_t c = 0;
    for (; c + kItemsAtOnce <= task.width; c += kItemsAtOnce) shuffle_items<T, kItemsAtOnce, false>(task, i, c, to + c);
    for (; c < task.width; ++c) shuffle_items<T, 1, false>(task, i, c, to + c);
  }
}

// Raises unless all entries are rows of the tables.
void check_entries(const std::vector<Tensor>& parts, const ShuffleTask& task, int64_t entries) {
  uint64_t rows[kMaxShuffleParts];
  for (size_t p = 0; p < parts.size(); ++p) rows[p] = static_cast<uint64_t>(parts[p].size(0));
  const uint64_t tables = parts.size();
  bool inside = true;
  for (int64_t j = 0; j < entries; ++j) {
    const uint64_t table = task.part == nullptr ? 0 : static_cast<uint64_t>(task.part[j]);
    inside &= table < tables && static_cast<uint64_t>(task.row[j]) < rows[table < tables ? table : 0];
  }
  STD_TORCH_CHECK(inside, "shuffle_rows: expected rows of the tables");
}

// See torch_gnnscale.ops.shuffle_rows, which checks the arguments.
Tensor shuffle_rows(const std::optional<Tensor>& base, const std::vector<Tensor>& parts,
                    const std::optional<Tensor>& part, const Tensor& row, const std::optional<Tensor>& ptr,
                    int64_t threads) {
  const ShuffleArguments given = shuffle_arguments(base, parts, part, row, ptr, [](const Tensor& tensor) {
    return static_cast<const char*>(tensor.const_data_ptr());
  });
  const ShuffleTask& task = given.task;
  if (task.ptr != nullptr) check_pointer("ptr", *ptr, row.numel());
  check_entries(parts, task, row.numel());
  const int64_t bytes = given.row_bytes, work = task.rows + row.numel();
  PooledArray<char> out(task.rows * bytes);
  if (task.rows * bytes > 0) {
    const int64_t tasks = num_tasks(work * bytes, kGrainBytes, threads);
    run_tasks(tasks, [&](int64_t number) {
      const auto [begin, end] = gnnscale::part(task.rows, number, tasks);
      if (task.base == nullptr && task.ptr == nullptr) {  // as they are, of any dtype
        copy_rows(
            begin, end, bytes, [&](int64_t i) { return task.entry(i); },
            [&](int64_t i, const char* from) { copy_row(out.data() + i * bytes, from, bytes); });
      } else {
        dispatch_float(dtype_of(parts[0]), [&, begin = begin, end = end](auto* tag) {
          add_rows(task, begin, end, reinterpret_cast<std::remove_pointer_t<decltype(tag)>*>(out.data()));
        });
      }
    });
  }
  return to_tensor(std::move(out), given.sizes, dtype_of(parts[0]));
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("shuffle_rows", TORCH_BOX(&shuffle_rows)); }

}  // namespace
}  // namespace gnnscale
