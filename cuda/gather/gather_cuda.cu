// Rows gathered on a GPU: of one matrix, of all tiers that it reaches, and of several tables in tiers; one launch each.
#include <torch/csrc/stable/accelerator.h>

#include <optional>
#include <type_traits>

#include "../executor_cuda.h"
#include "../memory/cuda.h"
#include "../memory/room.h"
#include "gather_cuda.h"
#include "gather_tables_cuda.h"
#include "tier_arguments.h"

namespace gnnscale {
namespace {

// See torch_gnnscale.ops.gather_rows, which checks the arguments; `threads` is the CPU's.
Tensor gather_rows(const Tensor& src, const Tensor& index, int64_t /*threads*/) {
  STD_TORCH_CHECK(index.is_cuda() && index.get_device_index() == src.get_device_index(),
                  "gather_rows: index is not on the device of src");
  const TierRows rows = tier_rows(
      {src}, {1}, index, [](const Tensor& segment) { return static_cast<const char*>(segment.const_data_ptr()); });
  const torch::stable::accelerator::DeviceGuard guard(src.get_device_index());
  STD_TORCH_CHECK(rows.stored_bytes <= kMaxRowBytes, "gather_rows: expected rows of at most 512 MiB");
  Tensor out = room_like("gather_rows", src, {rows.sizes.data(), rows.sizes.size()});
  if (out.numel() == 0) return out;
  const cudaStream_t stream = current_stream(src.get_device_index());
  Gather task{};
  task.table = rows.table;
  task.index = index.const_data_ptr();
  task.rows = rows.sizes[0];
  task.out = static_cast<char*>(out.mutable_data_ptr());
  with_kept(task.table, rows.stored_bytes, [&](auto map, int32_t words) {
    using Map = decltype(map);
    task.words = words;
    index.scalar_type() == ScalarType::Int ? launch_gather<Map, int32_t, OneMemory>(task, stream)
                                           : launch_gather<Map, int64_t, OneMemory>(task, stream);
  });
  check("gather_rows", cudaGetLastError());
  return out;
}

// Calls `run` with an entry of the index and a null pointer to what `Place` of the kernel is.
template <typename F>
void with_types(const Tensor& index, const std::optional<Tensor>& place, const TierTable& table, F&& run) {
  const auto with_place = [&](auto id) {
    if (!place && table.segment[table.num_tiers] == 1) return run(id, static_cast<OneMemory*>(nullptr));
    if (!place) return run(id, static_cast<void*>(nullptr));
    return place->scalar_type() == ScalarType::Int ? run(id, static_cast<int32_t*>(nullptr))
                                                   : run(id, static_cast<int64_t*>(nullptr));
  };
  index.scalar_type() == ScalarType::Int ? with_place(int32_t{}) : with_place(int64_t{});
}

// Calls f(map, words) for rows that are stored as `stored` and gathered as `dtype`.
template <typename F>
void with_map(const TierRows& rows, ScalarType stored, ScalarType dtype, F&& f) {
  if (stored == dtype) {
    with_kept(rows.table, rows.stored_bytes, f);
  } else if (stored == ScalarType::Half) {
    dtype == ScalarType::Float ? with_widened<Half, float>(rows.table, rows.items, f)
                               : with_widened<Half, double>(rows.table, rows.items, f);
  } else {
    dtype == ScalarType::Float ? with_widened<BFloat16, float>(rows.table, rows.items, f)
                               : with_widened<BFloat16, double>(rows.table, rows.items, f);
  }
}

// What gather_tiers is asked for, and the output.
struct TieredGather {
  Gather task;
  TierRows rows;
  Tensor out;
};

// Of the operator `name`.
TieredGather tiered_gather(const char* name, const std::vector<Tensor>& segments, const std::vector<int64_t>& spread,
                           const std::optional<Tensor>& place, const Tensor& index, ScalarType dtype,
                           const std::optional<Tensor>& counts) {
  bool over_bus = false;
  TierRows rows = tier_rows(segments, spread, index, [&](const Tensor& segment) {
    over_bus |= !segment.is_cuda();
    return device_address(name, segment);
  });
  STD_TORCH_CHECK(rows.stored_bytes <= kMaxRowBytes, name, ": expected rows of at most 512 MiB");
  Tensor out = room_like(name, index, {rows.sizes.data(), rows.sizes.size()}, dtype);
  Gather task{};
  task.table = rows.table;
  task.index = index.const_data_ptr();
  task.place = place ? place->const_data_ptr() : nullptr;
  task.rows = rows.sizes[0];
  task.out = static_cast<char*>(out.mutable_data_ptr());
  task.counts = counts ? static_cast<int64_t*>(counts->mutable_data_ptr()) : nullptr;
  task.over_bus = over_bus;
  return {task, std::move(rows), std::move(out)};
}

// See torch_gnnscale.ops.gather_tiers, which checks the arguments; `threads` is the CPU's.
Tensor gather_tiers(const std::vector<Tensor>& segments, const std::vector<int64_t>& spread,
                    const std::optional<Tensor>& place, const Tensor& index, bool disk, ScalarType dtype,
                    const std::optional<Tensor>& counts, int64_t /*threads*/) {
  STD_TORCH_CHECK(!disk, "gather_tiers: a GPU cannot read rows on disk");
  STD_TORCH_CHECK(index.is_cuda(), "gather_tiers: index is not on a GPU");
  const torch::stable::accelerator::DeviceGuard guard(index.get_device_index());
  TieredGather of = tiered_gather("gather_tiers", segments, spread, place, index, dtype, counts);
  if (of.out.numel() == 0) return of.out;
  const cudaStream_t stream = current_stream(index.get_device_index());
  with_map(of.rows, segments[0].scalar_type(), dtype, [&](auto map, int32_t words) {
    of.task.words = words;
    with_types(index, place, of.task.table, [&](auto id, auto* tag) {
      launch_gather<decltype(map), decltype(id), std::remove_pointer_t<decltype(tag)>>(of.task, stream);
    });
  });
  check("gather_tiers", cudaGetLastError());
  return of.out;
}

// See torch_gnnscale.ops.gather_tables, which checks the arguments; `threads` is the CPU's.
std::vector<Tensor> gather_tables(const std::vector<Tensor>& segments, const std::vector<int64_t>& spread,
                                  const std::vector<int64_t>& layout, const std::vector<std::optional<Tensor>>& place,
                                  const std::vector<Tensor>& index, const std::vector<Tensor>& counts,
                                  int64_t /*threads*/) {
  STD_TORCH_CHECK(!index.empty(), "gather_tables: expected at least one table");
  const Tensor& first = index[0];
  STD_TORCH_CHECK(first.is_cuda(), "gather_tables: index is not on a GPU");
  const int32_t device = first.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const cudaStream_t stream = current_stream(device);
  TableGathers gathers(kThreads);
  std::vector<Tensor> found;
  each_table(segments, spread, layout, place, index, counts, [&](const TableArguments& of) {
    STD_TORCH_CHECK(!of.disk, "gather_tables: a GPU cannot read rows on disk");
    const Tensor& ids = of.index;
    STD_TORCH_CHECK(ids.is_cuda() && ids.get_device_index() == device, "gather_tables: expected all ids on one GPU");
    const ScalarType stored = of.segments[0].scalar_type();
    TieredGather one = tiered_gather("gather_tables", of.segments, of.spread, of.place, ids, of.dtype, of.counts);
    if (one.out.numel() > 0) {
      with_map(one.rows, stored, of.dtype, [&](auto map, int32_t words) {
        using Map = decltype(map);
        one.task.words = words;
        const int32_t place_bytes = of.place.has_value() ? static_cast<int32_t>(of.place->element_size()) : 0;
        gathers.add({one.task, 0, number_of_map<Map>(MapNumbers{}), static_cast<int32_t>(ids.element_size()),
                     place_bytes, static_cast<int32_t>(sizeof(typename Map::From)),
                     int64_t{words} * static_cast<int64_t>(sizeof(typename Map::To))});
      });
    }
    found.push_back(std::move(one.out));
  });
  if (gathers.empty()) return found;
  const Tensor tables = StreamExecutor("gather_tables", first, stream).upload(gathers.words());
  gathers.launch(static_cast<const int64_t*>(tables.const_data_ptr()), stream);
  check("gather_tables", cudaGetLastError());
  return found;
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CUDA, library) {
  library.impl("gather_rows", TORCH_BOX(&gather_rows));
  library.impl("gather_tiers", TORCH_BOX(&gather_tiers));
  library.impl("gather_tables", TORCH_BOX(&gather_tables));
}

}  // namespace
}  // namespace gnnscale
