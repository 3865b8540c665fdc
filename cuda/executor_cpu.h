// An executor (see executor.h) by the threads of a host.
#pragma once

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "executor.h"
#include "memory/tensor.h"

namespace gnnscale {

constexpr int64_t kGrainItems = 256;  // of a phase that are worth a task

// Memory is allocated like `like`, which must outlive it. threads: 0 for all of torch's.
class HostExecutor {
 public:
  HostExecutor(const Tensor& like, int64_t threads) : like_(like), threads_(threads) {}

  Tensor room(int64_t count, ScalarType dtype) const { return torch::stable::new_empty(like_, {count}, dtype); }

  Tensor upload(const std::vector<int64_t>& values) const { return on_host(values); }

  std::vector<int64_t> download(const int64_t* values, int64_t count) const { return {values, values + count}; }

  void fill(Tensor& tensor) const {
    std::memset(tensor.mutable_data_ptr(), 0xFF, static_cast<size_t>(tensor.numel()) * tensor.element_size());
  }

  template <typename F>
  void each(const int64_t* count, int64_t most, F f) const {
    const int64_t items = std::min(*count, most), tasks = num_tasks(items, kGrainItems, threads_);
    run_tasks(tasks, [&](int64_t task) {
      const auto [begin, end] = part(items, task, tasks);
      for (int64_t i = begin; i < end; ++i) f(i);
    });
  }

  template <typename T>
  void sum_before(const T* in, T* out, const int64_t* count, int64_t most) const {
    T sum = 0;
    out[0] = sum;
    for (int64_t i = 0; i < std::min(*count, most); ++i) out[i + 1] = sum += in[i];
  }

  bool sort(int64_t* keys, int64_t* /*spare_keys*/, int32_t* values, int32_t* /*spare_values*/, int64_t count) const {
    std::vector<std::pair<int64_t, int32_t>> pairs(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) pairs[i] = {keys[i], values[i]};
    std::sort(pairs.begin(), pairs.end());
    for (int64_t i = 0; i < count; ++i) std::tie(keys[i], values[i]) = pairs[i];
    return false;
  }

 private:
  const Tensor& like_;
  const int64_t threads_;
};

}  // namespace gnnscale
