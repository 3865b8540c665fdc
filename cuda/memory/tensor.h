// Conversions between torch's stable tensors and raw pointers, and loops on torch's threads.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <new>
#include <optional>
#include <vector>

#include "dtype.h"
#include "pool.h"

namespace gnnscale {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// A contiguous CPU tensor over the memory of `array`; the memory is given back to the pool when torch frees the
// tensor's storage.
template <typename T>
Tensor to_tensor(PooledArray<T>&& array, const std::vector<int64_t>& sizes, ScalarType dtype) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<int64_t>(sizes[d], 1);
  auto [data, capacity] = array.detach();
  const size_t bytes = capacity;
  return torch::stable::from_blob(data, {sizes.data(), sizes.size()}, {strides.data(), strides.size()},
                                  torch::stable::Device(torch::headeronly::DeviceType::CPU), dtype,
                                  [bytes](void* address) { pool_release(address, bytes); });
}

// The data of an int64 tensor; null without a tensor.
inline const int64_t* data_or_null(const std::optional<Tensor>& tensor) {
  return tensor.has_value() ? static_cast<const int64_t*>(tensor->const_data_ptr()) : nullptr;
}

// Returns f(null pointer of type int32_t* or int64_t*, as `dtype` is). Raises a RuntimeError for another dtype.
template <typename F>
auto dispatch_index(ScalarType dtype, F&& f) {
  STD_TORCH_CHECK(dtype == ScalarType::Int || dtype == ScalarType::Long, "expected int32 or int64 ids");
  return dtype == ScalarType::Int ? f(static_cast<int32_t*>(nullptr)) : f(static_cast<int64_t*>(nullptr));
}

// ceil(items / grain), at least 1 and at most `threads`, where 0 stands for torch's number of threads.
inline int64_t num_tasks(int64_t items, int64_t grain, int64_t threads) {
  const int64_t most = threads > 0 ? threads : static_cast<int64_t>(torch::stable::get_num_threads());
  return std::clamp<int64_t>((items + grain - 1) / grain, 1, std::max<int64_t>(most, 1));
}

// Calls f(task) for each of `tasks` tasks, on torch's threads if there is more than one. `f` may throw std::bad_alloc
// and nothing else; the first that is thrown is thrown here after all tasks have ended. A task must not wait for a task
// that has not begun.
template <typename F>
void run_tasks(int64_t tasks, F&& f) {
  if (tasks == 1) return f(0);
  std::atomic<bool> failed{false};
  std::exception_ptr error;
  torch::stable::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      try {
        f(task);
      } catch (const std::bad_alloc&) {
        if (!failed.exchange(true)) error = std::current_exception();
      }
    }
  });
  if (failed.load()) std::rethrow_exception(error);
}

// [begin, end) of the items of one task, if `tasks` tasks share [0, items) out equally.
inline std::pair<int64_t, int64_t> part(int64_t items, int64_t task, int64_t tasks) {
  return {items * task / tasks, items * (task + 1) / tasks};
}

}  // namespace gnnscale
