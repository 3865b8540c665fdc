// The arguments of shuffle_rows, whose Python wrapper checks them.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <vector>

#include "../memory/checks.h"
#include "shuffle.h"

namespace gnnscale {

using torch::stable::Tensor;

struct ShuffleArguments {
  ShuffleTask task{};
  std::vector<int64_t> sizes;  // of the output
  int64_t row_bytes = 0;
};

// address(tensor): where rows of a table are read; the table may be a peer's.
template <typename Address>
ShuffleArguments shuffle_arguments(const std::optional<Tensor>& base, const std::vector<Tensor>& parts,
                                   const std::optional<Tensor>& part, const Tensor& row,
                                   const std::optional<Tensor>& ptr, Address&& address) {
  STD_TORCH_CHECK(!parts.empty() && parts.size() <= kMaxShuffleParts, "parts: expected 1 to ", kMaxShuffleParts,
                  " tables, found ", parts.size());
  const auto check_rows = [&](const char* name, const Tensor& table) {
    check_table(name, table);
    STD_TORCH_CHECK(dtype_of(table) == dtype_of(parts[0]) && table.dim() == parts[0].dim(), name,
                    ": expected rows of one dtype and shape");
    for (int64_t d = 1; d < table.dim(); ++d) {
      STD_TORCH_CHECK(table.size(d) == parts[0].size(d), name, ": expected rows of one shape");
    }
  };
  for (const Tensor& table : parts) check_rows("parts", table);
  check_int64("row", row);
  check_int64("part", part, row.numel());
  check_int64("ptr", ptr);
  STD_TORCH_CHECK(!ptr.has_value() || ptr->numel() > 0, "ptr: expected at least one entry");
  if (base.has_value()) {
    check_rows("base", *base);
    const int64_t rows = ptr.has_value() ? ptr->numel() - 1 : row.numel();
    STD_TORCH_CHECK(base->size(0) == rows, "base: expected ", rows, " rows, found ", base->size(0));
  }
  ShuffleArguments found;
  ShuffleTask& task = found.task;
  const auto numbers = [](const Tensor& tensor) { return static_cast<const int64_t*>(tensor.const_data_ptr()); };
  const int64_t item = static_cast<int64_t>(parts[0].element_size());
  if (base.has_value()) {
    task.base = static_cast<const char*>(base->const_data_ptr());
    task.base_stride = base->stride(0) * item;
  }
  for (size_t p = 0; p < parts.size(); ++p) {
    task.table[p] = address(parts[p]);
    task.stride[p] = parts[p].stride(0) * item;
  }
  task.part = part.has_value() ? numbers(*part) : nullptr;
  task.row = numbers(row);
  task.ptr = ptr.has_value() ? numbers(*ptr) : nullptr;
  task.rows = ptr.has_value() ? ptr->numel() - 1 : row.numel();
  task.width = 1;
  found.sizes = {task.rows};
  for (int64_t d = 1; d < parts[0].dim(); ++d) {
    found.sizes.push_back(parts[0].size(d));
    task.width *= parts[0].size(d);
  }
  found.row_bytes = task.width * item;
  return found;
}

// Returns f(a null pointer to the type of the numbers). Raises a RuntimeError if the dtype is not a float type.
template <typename F>
auto dispatch_float(torch::headeronly::ScalarType dtype, F&& f) {
  using torch::headeronly::ScalarType;
  STD_TORCH_CHECK(dtype == ScalarType::Float || dtype == ScalarType::Double || dtype == ScalarType::Half ||
                      dtype == ScalarType::BFloat16,
                  "expected float rows");
  if (dtype == ScalarType::Float) return f(static_cast<float*>(nullptr));
  if (dtype == ScalarType::Double) return f(static_cast<double*>(nullptr));
  if (dtype == ScalarType::Half) return f(static_cast<Half*>(nullptr));
  return f(static_cast<BFloat16*>(nullptr));
}

}  // namespace gnnscale
