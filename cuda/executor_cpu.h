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

// Errors are raised in the name of the operator `name`; memory is allocated like `like`, which must outlive it.
// threads: 0 for all of torch's.
class HostExecutor {
 public:
  HostExecutor(const char* name, const Tensor& like, int64_t threads) : name_(name), like_(like), threads_(threads) {}

  Tensor room(int64_t count, ScalarType dtype) const { return room_like(name_, like_, {count}, dtype); }

  void upload(const std::vector<int64_t>& values, int64_t* to) const { std::copy(values.begin(), values.end(), to); }

  Tensor upload(const std::vector<int64_t>& values) const { return on_host(values); }

  Tensor on_host(const std::vector<int64_t>& values) const { return host_numbers(name_, values); }

  std::vector<int64_t> download(const int64_t* values, int64_t count) const { return {values, values + count}; }

  template <typename T>
  void fill(T* items, int64_t count) const {
    std::memset(items, 0xFF, static_cast<size_t>(count) * sizeof(T));
  }

  template <typename F>
  void each(int64_t count, F f) const {
    each(nullptr, count, f);
  }

  template <typename F>
  void each(const int64_t* count, int64_t most, F f) const {
    const int64_t items = items_of(count, most), tasks = num_tasks(items, kGrainItems, threads_);
    run_tasks(tasks, [&](int64_t task) {
      const auto [begin, end] = part(items, task, tasks);
      for (int64_t i = begin; i < end; ++i) f(i);
    });
  }

  template <typename F>
  void each_by_warp(int64_t count, F f) const {
    each(count, [f](int64_t i) { f(i, OneLane{}); });
  }

  template <typename Values, typename T>
  void sum_before(Values values, T* out, int64_t count) const {
    sum_before(values, out, nullptr, count);
  }

  template <typename Values, typename T>
  void sum_before(Values values, T* out, const int64_t* count, int64_t most) const {
    const int64_t items = items_of(count, most);
    T sum = 0;
    for (int64_t i = 0; i < items; ++i) {
      out[i] = sum;
      sum += number_at(values, i);
    }
    std::fill(out + items, out + most + 1, sum);
  }

  template <typename Values, typename T>
  void reserve_sum(Values, T*, int64_t) const {}  // needs none

  bool sort(int64_t* keys, int64_t* /*spare_keys*/, int32_t* values, int32_t* /*spare_values*/, int64_t count,
            int /*bits*/ = 64) const {
    std::vector<std::pair<int64_t, int32_t>> pairs(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) pairs[i] = {keys[i], values[i]};
    std::sort(pairs.begin(), pairs.end());
    for (int64_t i = 0; i < count; ++i) std::tie(keys[i], values[i]) = pairs[i];
    return false;
  }

 private:
  const char* const name_;
  const Tensor& like_;
  const int64_t threads_;
};

}  // namespace gnnscale
