// Executors run algorithms that are sequences of phases: by the threads of a host (executor_cpu.h), or on the stream of
// a GPU (executor_cuda.h). A phase is a functor of an index, called for every index in any order. An executor has
//
//   Tensor room(int64_t count, ScalarType dtype)             uninitialised memory where it works; may throw NoRoom
//   void upload(const std::vector<int64_t>&, int64_t* to)    copies the host's numbers there
//   Tensor upload(const std::vector<int64_t>&)               the same, to memory of their own
//   Tensor on_host(const std::vector<int64_t>&)              the numbers, in host memory
//   std::vector<int64_t> download(const int64_t*, int64_t)   waits for all work so far and copies back
//   void fill(T* items, int64_t count)                       sets all bits
//   void each(int64_t count, functor)                        functor(i) for i < count
//   void each(const int64_t* count, int64_t most, functor)   functor(i) for i < items_of(count, most)
//   void each_by_warp(int64_t count, functor)                functor(i, lanes) for i < count: each by lanes that work
//                                                            together, or by one
//   void sum_before(values, T* out, int64_t count)           out[i] = number_at(values, 0) + ... + (values, i - 1) for
//                                                            each i <= count
//   void sum_before(values, T* out, const int64_t* count, int64_t most)
//                                                            the same over items_of(count, most) values, for i <= most:
//                                                            out[most] is the sum of all
//   void reserve_sum(values, T* out, int64_t most)           takes the memory that sums of up to so many values need
//   bool sort(int64_t* keys, int64_t* spare_keys, int32_t* values, int32_t* spare_values, int64_t count, int bits = 64)
//                                                            sorts pairs by their keys, of at most so many bits, in
//                                                            place or, if it returns true, into the spare arrays
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "macros.h"
#include "memory/room.h"

namespace gnnscale {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// How many items a phase has whose number is stored at `count`, where there is room for `most`: none if there are more.
// All of the room if `count` is null.
GNNSCALE_HD int64_t items_of(const int64_t* count, int64_t most) {
  return count == nullptr ? most : *count <= most ? *count : 0;
}

// What a thread does alone that the lanes of a warp do together (Warp in executor_cuda.h).
struct OneLane {
  // The first of `children` ascending sums that exceeds `unit`, from which the one before it is subtracted.
  GNNSCALE_HD int descend(const uint64_t* sums, int children, uint64_t& unit) const {
    int child = 0;
    for (int k = 0; k < children; ++k) child += sums[k] <= unit;
    if (child > 0) unit -= sums[child - 1];
    return child;
  }

  // f(k) for first <= k < last, which are at most 32.
  template <typename F>
  GNNSCALE_HD void each(int first, int last, const F& f) const {
    for (int k = first; k < last; ++k) f(k);
  }
};

// Number i of an array, or of a functor of an index.
template <typename Values>
GNNSCALE_HD auto number_at(const Values& values, int64_t i) {
  if constexpr (std::is_pointer_v<Values>) {
    return values[i];
  } else {
    return values(i);
  }
}

// The numbers in a tensor in host memory, for the operator `name`.
inline Tensor host_numbers(const char* name, const std::vector<int64_t>& values) {
  Tensor tensor = host_room(name, static_cast<int64_t>(values.size()), ScalarType::Long);
  std::copy(values.begin(), values.end(), static_cast<int64_t*>(tensor.mutable_data_ptr()));
  return tensor;
}

}  // namespace gnnscale
