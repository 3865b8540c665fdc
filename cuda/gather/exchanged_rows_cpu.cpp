// Rows that ranks exchange, as bytes: the sender packs them, the receiver joins them with its own rows.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "../memory/checks.h"
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
void pack_rows(const std::vector<Tensor>& rows, const std::vector<Tensor>& index, const std::vector<int64_t>& at,
               Tensor out, int64_t threads) {
  STD_TORCH_CHECK(index.size() == rows.size() && at.size() == rows.size(), "pack_rows: expected as many of each");
  check_vector("out", out, ScalarType::Byte);
  STD_TORCH_CHECK(out.is_cpu(), "pack_rows: expected out in host memory");
  const int64_t total = out.numel();
  char* const packed = total > 0 ? static_cast<char*>(out.mutable_data_ptr()) : nullptr;
  std::atomic<bool> outside{false};
  int64_t filled = 0;
  for (size_t piece = 0; piece < rows.size(); ++piece) {
    check_table("rows", rows[piece]);
    check_int64("index", index[piece]);
    STD_TORCH_CHECK(on_host(rows[piece]) && on_host(index[piece]), "pack_rows: expected tensors in host memory");
    const int64_t room = total - std::max(at[piece], filled), row = bytes_of_row(rows[piece]);
    STD_TORCH_CHECK(at[piece] >= filled && room >= 0 && (row == 0 || index[piece].numel() <= room / row), "at[", piece,
                    "]: expected bytes between ", filled, " and ", total, ", found ", at[piece]);
    const int64_t count = index[piece].numel(), bytes = bytes_of_row(rows[piece]);
    const int64_t stride = rows[piece].stride(0) * static_cast<int64_t>(rows[piece].element_size());
    char* const to = packed + at[piece];
    if (at[piece] > filled) std::memset(packed + filled, 0, static_cast<size_t>(at[piece] - filled));
    filled = at[piece] + count * bytes;
    if (count * bytes == 0) continue;
    const char* const table = static_cast<const char*>(rows[piece].const_data_ptr());
    const int64_t* const ids = static_cast<const int64_t*>(index[piece].const_data_ptr());
    const uint64_t limit = static_cast<uint64_t>(rows[piece].size(0));
    STD_TORCH_CHECK(limit > 0, "index[", piece, "]: expected no rows of none");
    const int64_t tasks = num_tasks(count * bytes, kGrainBytes, threads);
    run_tasks(tasks, [&](int64_t task) {
      const auto [begin, end] = part(count, task, tasks);
      copy_rows(
          begin, end, bytes,
          [&](int64_t i) {
            if (static_cast<uint64_t>(ids[i]) < limit) return table + ids[i] * stride;
            outside.store(true, std::memory_order_relaxed);
            return table;
          },
          [&](int64_t i, const char* row) { copy_row(to + i * bytes, row, bytes); });
    });
  }
  STD_TORCH_CHECK(!outside.load(), "index: expected rows of the tables");
  if (total > filled) std::memset(packed + filled, 0, static_cast<size_t>(total - filled));
}

// See torch_gnnscale.ops.join_rows, which checks the arguments.
Tensor join_rows(const Tensor& own, const Tensor& other, const Tensor& at, const Tensor& place, int64_t threads) {
  check_table("own", own);
  check_vector("other", other, ScalarType::Byte);
  check_int64("at", at);
  check_int64("place", place);
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
    const uint64_t own_rows = static_cast<uint64_t>(own.size(0)), other_rows = static_cast<uint64_t>(at.numel());
    const int64_t last = other.numel() - bytes;  // where a row may begin at most
    const int64_t tasks = num_tasks(count * bytes, kGrainBytes, threads);
    std::atomic<bool> outside{false};
    run_tasks(tasks, [&](int64_t task) {
      const auto [begin, end] = part(count, task, tasks);
      copy_rows(
          begin, end, bytes,
          [&](int64_t i) {
            const int64_t own_place = places[i], other_place = ~own_place;
            if (static_cast<uint64_t>(own_place) < own_rows) return table + own_place * stride;
            if (static_cast<uint64_t>(other_place) < other_rows && offset[other_place] >= 0 &&
                offset[other_place] <= last) {
              return came + offset[other_place];
            }
            outside.store(true, std::memory_order_relaxed);
            return static_cast<const char*>(out.data());
          },
          [&](int64_t i, const char* row) { copy_row(out.data() + i * bytes, row, bytes); });
    });
    STD_TORCH_CHECK(!outside.load(), "place: expected rows of own or of other");
  }
  return to_tensor(std::move(out), sizes, dtype_of(own));
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("join_rows", TORCH_BOX(&join_rows)); }

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CompositeExplicitAutograd, library) {
  library.impl("empty_bytes", TORCH_BOX(&empty_bytes));
  library.impl("pack_rows", TORCH_BOX(&pack_rows));
}

}  // namespace
}  // namespace gnnscale
