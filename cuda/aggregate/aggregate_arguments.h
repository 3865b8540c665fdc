// The arguments of the operators on columns, whose Python wrappers check types and shapes.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <type_traits>

#include "../memory/checks.h"
#include "../memory/tensor.h"
#include "attention.h"
#include "columns.h"

namespace gnnscale {

// make(address): the ids that lie there; null for none.
template <typename F>
auto entries_of(const Tensor& ptr, const Tensor& node, const std::optional<Tensor>& edge, int64_t num_nodes,
                int64_t num_edges, F&& make) -> Entries<decltype(make(nullptr))> {
  check_int64("ptr", ptr);
  STD_TORCH_CHECK(ptr.numel() > 0, "ptr: expected at least one entry");
  check_ids("node", node);
  if (edge.has_value()) {
    check_ids("edge", *edge, node.numel());
    STD_TORCH_CHECK(dtype_of(*edge) == dtype_of(node), "edge: expected the dtype of node");
  }
  return {static_cast<const int64_t*>(ptr.const_data_ptr()),
          make(node.const_data_ptr()),
          make(edge.has_value() ? edge->const_data_ptr() : nullptr),
          ptr.numel() - 1,
          node.numel(),
          node.stride(0),
          edge.has_value() ? edge->stride(0) : 0,
          num_nodes,
          num_edges};
}

template <typename T>
const T* data_of(const Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}

template <typename T>
const T* data_of(const std::optional<Tensor>& tensor) {
  return tensor.has_value() ? data_of<T>(*tensor) : nullptr;
}

template <typename T>
Rows<T> rows_of(const Tensor& x, const std::optional<Tensor>& more = std::nullopt) {
  return {data_of<T>(x), data_of<T>(more), x.size(0), x.size(1)};
}

// Calls f with a null pointer of the type of x.
template <typename F>
Tensor dispatch_rows(const Tensor& x, F&& f) {
  const ScalarType type = dtype_of(x);
  if (type == ScalarType::Float) return f(static_cast<float*>(nullptr));
  if (type == ScalarType::Double) return f(static_cast<double*>(nullptr));
  if (type == ScalarType::BFloat16) return f(static_cast<BFloat16*>(nullptr));
  STD_TORCH_CHECK(type == ScalarType::Half, "expected rows of float32, float64, float16 or bfloat16");
  return f(static_cast<Half*>(nullptr));
}

// Calls f with null pointers of the type of x and of the type of what its rows are multiplied by, which is that of the
// result: `other` has the type of x, or the one in which its rows are summed.
template <typename F>
Tensor dispatch_rows(const char* name, const Tensor& x, const std::optional<Tensor>& other, F&& f) {
  return dispatch_rows(x, [&](auto* row) {
    using Sum = Wide<std::remove_pointer_t<decltype(row)>>;
    if (!other.has_value() || dtype_of(*other) == dtype_of(x)) return f(row, row);
    const bool is_sum = std::is_same_v<Sum, float> && dtype_of(*other) == ScalarType::Float;
    STD_TORCH_CHECK(is_sum, name, ": expected the dtype of x, or float32 beside rows of 16 bits");
    return f(row, static_cast<Sum*>(nullptr));
  });
}

// Calls f with the AttentionScores of an attention, which are floats or doubles.
template <typename F>
auto dispatch_attention(const Tensor& ptr, const Tensor& node, const Tensor& of_sources,
                        const std::optional<Tensor>& of_columns, const std::optional<Tensor>& of_entries, double slope,
                        F&& f) {
  const ScalarType type = dtype_of(of_sources);
  const int64_t heads = of_sources.dim() == 2 ? of_sources.size(1) : 0;
  STD_TORCH_CHECK(heads > 0, "of_sources: expected [N, heads]");
  check_matrix("of_sources", of_sources, type);
  if (of_columns.has_value()) check_matrix("of_columns", *of_columns, type, ptr.numel() - 1, heads);
  if (of_entries.has_value()) check_matrix("of_entries", *of_entries, type, node.numel(), heads);
  const auto with = [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    return f(AttentionScores<T>{data_of<T>(of_sources), data_of<T>(of_columns), data_of<T>(of_entries),
                                static_cast<T>(slope), heads});
  };
  if (type == ScalarType::Double) return with(static_cast<double*>(nullptr));
  STD_TORCH_CHECK(type == ScalarType::Float, "of_sources: expected float32 or float64");
  return with(static_cast<float*>(nullptr));
}

}  // namespace gnnscale
