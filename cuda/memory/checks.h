// Checks of tensors, which operators make although their Python wrappers do: torch.ops.gnnscale is open to everybody,
// such as graphs that torch.compile and torch.export have traced.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <optional>

#include "dtype.h"

namespace gnnscale {

// Raises unless it is a contiguous vector of `dtype` with `size` entries; -1: any number.
inline void check_vector(const char* name, const torch::stable::Tensor& tensor, torch::headeronly::ScalarType dtype,
                         int64_t size = -1) {
  STD_TORCH_CHECK(
      dtype_of(tensor) == dtype && tensor.dim() == 1 && (size < 0 || tensor.size(0) == size) && tensor.is_contiguous(),
      name, ": expected a contiguous vector of another dtype or size, found ", tensor.numel(), " entries in ",
      tensor.dim(), " dimensions");
}

inline void check_int64(const char* name, const torch::stable::Tensor& tensor, int64_t size = -1) {
  check_vector(name, tensor, torch::headeronly::ScalarType::Long, size);
}

inline void check_int64(const char* name, const std::optional<torch::stable::Tensor>& tensor, int64_t size = -1) {
  if (tensor.has_value()) check_int64(name, *tensor, size);
}

// Raises unless it is a vector of int32 or int64 with `size` entries, of any stride; -1: any number.
inline void check_ids(const char* name, const torch::stable::Tensor& tensor, int64_t size = -1) {
  using torch::headeronly::ScalarType;
  const ScalarType type = dtype_of(tensor);
  STD_TORCH_CHECK((type == ScalarType::Int || type == ScalarType::Long) && tensor.dim() == 1 &&
                      (size < 0 || tensor.size(0) == size),
                  name, ": expected int32 or int64, ", size, " of them (-1: any number), found ", tensor.numel(),
                  " entries in ", tensor.dim(), " dimensions");
}

// As check_ids, and contiguous.
inline void check_contiguous_ids(const char* name, const torch::stable::Tensor& tensor, int64_t size = -1) {
  check_ids(name, tensor, size);
  STD_TORCH_CHECK(tensor.is_contiguous(), name, ": expected them contiguous");
}

// Raises unless it is a contiguous matrix of `dtype`; -1: any number of rows or columns.
inline void check_matrix(const char* name, const torch::stable::Tensor& tensor, torch::headeronly::ScalarType dtype,
                         int64_t rows = -1, int64_t columns = -1) {
  STD_TORCH_CHECK(dtype_of(tensor) == dtype && tensor.dim() == 2 && (rows < 0 || tensor.size(0) == rows) &&
                      (columns < 0 || tensor.size(1) == columns) && tensor.is_contiguous(),
                  name, ": expected a contiguous matrix of another dtype or shape, found ", tensor.numel(),
                  " entries in ", tensor.dim(), " dimensions");
}

// Raises unless it has rows, each of which is contiguous.
inline void check_table(const char* name, const torch::stable::Tensor& table) {
  STD_TORCH_CHECK(table.dim() > 0, name, ": expected rows, found a scalar");
  if (table.numel() == 0 || table.is_contiguous()) return;
  int64_t stride = 1;
  for (int64_t d = table.dim() - 1; d > 0; --d) {
    STD_TORCH_CHECK(table.size(d) == 1 || table.stride(d) == stride, name, ": expected contiguous rows");
    stride *= table.size(d);
  }
}

// Raises unless `count` items of `bytes` each can be counted in bytes.
inline void check_count(const char* name, int64_t count, int64_t bytes = 16) {
  STD_TORCH_CHECK(count >= 0 && count <= INT64_MAX / bytes, name, ": expected a number of items, found ", count);
}

// Raises unless `ptr` begins at 0, ends at `count` and does not fall. It has at least one entry.
inline void check_pointer(const char* name, const torch::stable::Tensor& ptr, int64_t count) {
  STD_TORCH_CHECK(ptr.numel() > 0, name, ": expected at least one entry");
  const int64_t* const at = static_cast<const int64_t*>(ptr.const_data_ptr());
  const int64_t last = ptr.numel() - 1;
  int64_t falls = 0;
  for (int64_t i = 0; i < last; ++i) falls |= static_cast<int64_t>(at[i + 1] < at[i]);
  STD_TORCH_CHECK(at[0] == 0 && at[last] == count && falls == 0, name, ": expected numbers that rise from 0 to ",
                  count);
}

// Raises unless all ids, int64 and contiguous, are in [0, limit).
inline void check_below(const char* name, const torch::stable::Tensor& ids, int64_t limit) {
  const int64_t* const id = static_cast<const int64_t*>(ids.const_data_ptr());
  const int64_t count = ids.numel();
  uint64_t most = 0;
  for (int64_t i = 0; i < count; ++i) most = static_cast<uint64_t>(id[i]) > most ? static_cast<uint64_t>(id[i]) : most;
  STD_TORCH_CHECK(count == 0 || most < static_cast<uint64_t>(limit), name, ": expected numbers in [0, ", limit, ")");
}

}  // namespace gnnscale
