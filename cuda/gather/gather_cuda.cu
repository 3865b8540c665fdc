// Rows gathered on a GPU: of one matrix, and of all tiers that it reaches; one launch each.
#include <torch/csrc/stable/accelerator.h>

#include <optional>
#include <type_traits>

#include "../memory/cuda.h"
#include "../memory/room.h"
#include "gather_cuda.h"
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
  if (index.scalar_type() == ScalarType::Int) {
    gather_kept<int32_t, OneMemory>(task, rows.stored_bytes, stream);
  } else {
    gather_kept<int64_t, OneMemory>(task, rows.stored_bytes, stream);
  }
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

// See torch_gnnscale.ops.gather_tiers, which checks the arguments; `threads` is the CPU's.
Tensor gather_tiers(const std::vector<Tensor>& segments, const std::vector<int64_t>& spread,
                    const std::optional<Tensor>& place, const Tensor& index, bool disk, ScalarType dtype,
                    const std::optional<Tensor>& counts, int64_t /*threads*/) {
  STD_TORCH_CHECK(!disk, "gather_tiers: a GPU cannot read rows on disk");
  STD_TORCH_CHECK(index.is_cuda(), "gather_tiers: index is not on a GPU");
  const torch::stable::accelerator::DeviceGuard guard(index.get_device_index());
  bool over_bus = false;
  const TierRows rows = tier_rows(segments, spread, index, [&over_bus](const Tensor& segment) {
    over_bus |= !segment.is_cuda();
    return device_address("gather_tiers", segment);
  });
  STD_TORCH_CHECK(rows.stored_bytes <= kMaxRowBytes, "gather_tiers: expected rows of at most 512 MiB");
  Tensor out = room_like("gather_tiers", index, {rows.sizes.data(), rows.sizes.size()}, dtype);
  if (out.numel() == 0) return out;
  const cudaStream_t stream = current_stream(index.get_device_index());
  Gather task{};
  task.table = rows.table;
  task.index = index.const_data_ptr();
  task.place = place ? place->const_data_ptr() : nullptr;
  task.rows = rows.sizes[0];
  task.out = static_cast<char*>(out.mutable_data_ptr());
  task.counts = counts ? static_cast<int64_t*>(counts->mutable_data_ptr()) : nullptr;
  task.over_bus = over_bus;
  const ScalarType stored = segments[0].scalar_type();
  with_types(index, place, task.table, [&](auto id, auto* tag) {
    using Index = decltype(id);
    using Place = std::remove_pointer_t<decltype(tag)>;
    if (stored == dtype) {
      gather_kept<Index, Place>(task, rows.stored_bytes, stream);
    } else if (stored == ScalarType::Half) {
      dtype == ScalarType::Float ? gather_widened<Half, float, Index, Place>(task, rows.items, stream)
                                 : gather_widened<Half, double, Index, Place>(task, rows.items, stream);
    } else {
      dtype == ScalarType::Float ? gather_widened<BFloat16, float, Index, Place>(task, rows.items, stream)
                                 : gather_widened<BFloat16, double, Index, Place>(task, rows.items, stream);
    }
  });
  check("gather_tiers", cudaGetLastError());
  return out;
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CUDA, library) {
  library.impl("gather_rows", TORCH_BOX(&gather_rows));
  library.impl("gather_tiers", TORCH_BOX(&gather_tiers));
}

}  // namespace
}  // namespace gnnscale
