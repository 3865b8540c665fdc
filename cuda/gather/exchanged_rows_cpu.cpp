// Rows that ranks exchange, as bytes: the sender packs them, the receiver joins them with its own rows.
#include <cstring>

#include "../memory/tensor.h"
#include "copy_rows.h"

namespace gnnscale {
namespace {

int64_t bytes_of_row(const Tensor& rows) {
  int64_t bytes = static_cast<int64_t>(rows.element_size());
  for (int64_t d = 1; d < rows.dim(); ++d) bytes *= rows.size(d);
  return bytes;
}

// See torch_gnnscale.ops.empty_bytes.
Tensor empty_bytes(int64_t count) { return to_tensor(PooledArray<uint8_t>(count), {count}, ScalarType::Byte); }

// See torch_gnnscale.ops.pack_rows, which checks the arguments.
Tensor pack_rows(const std::vector<Tensor>& rows, const std::vector<Tensor>& index, const std::vector<int64_t>& at,
                 int64_t total, int64_t threads) {
  PooledArray<char> out(total);
  int64_t filled = 0;
  for (size_t piece = 0; piece < rows.size(); ++piece) {
    const int64_t count = index[piece].numel(), bytes = bytes_of_row(rows[piece]);
    const int64_t stride = rows[piece].stride(0) * static_cast<int64_t>(rows[piece].element_size());
    char* const to = out.data() + at[piece];
    if (at[piece] > filled) std::memset(out.data() + filled, 0, static_cast<size_t>(at[piece] - filled));
    filled = at[piece] + count * bytes;
    if (count * bytes == 0) continue;
    const char* const table = static_cast<const char*>(rows[piece].const_data_ptr());
    const int64_t* const ids = static_cast<const int64_t*>(index[piece].const_data_ptr());
    const int64_t tasks = num_tasks(count * bytes, kGrainBytes, threads);
    run_tasks(tasks, [&](int64_t task) {
      const auto [begin, end] = part(count, task, tasks);
      copy_rows(
          begin, end, bytes, [&](int64_t i) { return table + ids[i] * stride; },
          [&](int64_t i, const char* row) { copy_row(to + i * bytes, row, bytes); });
    });
  }
  if (total > filled) std::memset(out.data() + filled, 0, static_cast<size_t>(total - filled));
  return to_tensor(std::move(out), {total}, ScalarType::Byte);
}

// See torch_gnnscale.ops.join_rows, which checks the arguments.
Tensor join_rows(const Tensor& own, const Tensor& other, const Tensor& at, const Tensor& place, int64_t threads) {
  const int64_t count = place.numel(), bytes = bytes_of_row(own);
  std::vector<int64_t> sizes{count};
  for (int64_t d = 1; d < own.dim(); ++d) sizes.push_back(own.size(d));
  PooledArray<char> out(count * bytes);
  if (count * bytes > 0) {
    const char* const table = static_cast<const char*>(own.const_data_ptr());
    const char* const came = static_cast<const char*>(other.const_data_ptr());
    const int64_t* const offset = static_cast<const int64_t*>(at.const_data_ptr());
    const int64_t* const places = static_cast<const int64_t*>(place.const_data_ptr());
    const int64_t stride = own.stride(0) * static_cast<int64_t>(own.element_size());
    const int64_t tasks = num_tasks(count * bytes, kGrainBytes, threads);
    run_tasks(tasks, [&](int64_t task) {
      const auto [begin, end] = part(count, task, tasks);
      copy_rows(
          begin, end, bytes,
          [&](int64_t i) { return places[i] >= 0 ? table + places[i] * stride : came + offset[~places[i]]; },
          [&](int64_t i, const char* row) { copy_row(out.data() + i * bytes, row, bytes); });
    });
  }
  return to_tensor(std::move(out), sizes, own.scalar_type());
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("join_rows", TORCH_BOX(&join_rows)); }

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CompositeExplicitAutograd, library) {
  library.impl("empty_bytes", TORCH_BOX(&empty_bytes));
  library.impl("pack_rows", TORCH_BOX(&pack_rows));
}

}  // namespace
}  // namespace gnnscale
