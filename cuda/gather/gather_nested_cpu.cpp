// Rows of a nested tensor on the CPU: tables whose cells have any number of values each.
#include <algorithm>
#include <tuple>
#include <vector>

#include "../macros.h"
#include "../memory/checks.h"
#include "../memory/tensor.h"

namespace gnnscale {
namespace {

constexpr int64_t kRowsAhead = 16;  // distance at which offsets are prefetched
constexpr int64_t kShort = 32;      // bytes that are copied without a call

// The values and the offsets of rows index[i]. Cell (i, j) of `columns` columns has the values from
// offset[i * columns + j] to offset[i * columns + j + 1]. See torch_gnnscale.ops.gather_nested.
std::tuple<Tensor, Tensor> gather_nested(const Tensor& values, const Tensor& offset, int64_t columns,
                                         const Tensor& index) {
  STD_TORCH_CHECK(values.dim() == 1 && values.is_contiguous(), "values: expected a contiguous vector");
  check_int64("offset", offset);
  check_int64("index", index);
  STD_TORCH_CHECK(columns > 0 && offset.numel() % columns == 1 % columns && offset.numel() > 0,
                  "offset: expected a multiple of ", columns, " columns and 1 more, found ", offset.numel());
  const int64_t* const from = static_cast<const int64_t*>(offset.const_data_ptr());
  const int64_t* const rows = static_cast<const int64_t*>(index.const_data_ptr());
  const int64_t count = index.numel(), stored = values.numel();
  const uint64_t limit = static_cast<uint64_t>((offset.numel() - 1) / columns);
  PooledArray<int64_t> ends(count * columns + 1);
  int64_t total = 0;
  ends[0] = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (i + kRowsAhead < count && static_cast<uint64_t>(rows[i + kRowsAhead]) < limit) {
      GNNSCALE_PREFETCH(from + rows[i + kRowsAhead] * columns);
    }
    STD_TORCH_CHECK(static_cast<uint64_t>(rows[i]) < limit, "index: expected rows in [0, ", limit, "), found ",
                    rows[i]);
    const int64_t* const cell = from + rows[i] * columns;
    for (int64_t j = 0; j < columns; ++j) {
      STD_TORCH_CHECK(0 <= cell[j] && cell[j] <= cell[j + 1] && cell[j + 1] <= stored,
                      "offset: expected ascending places in ", stored, " values, found ", cell[j], ", ", cell[j + 1]);
      ends[i * columns + j + 1] = total += cell[j + 1] - cell[j];
    }
  }
  const int64_t item = static_cast<int64_t>(values.element_size());
  const char* const data = static_cast<const char*>(values.const_data_ptr());
  PooledArray<char> found(total * item + kShort);
  char* out = found.data();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t* const cell = from + rows[i] * columns;
    const int64_t begin = cell[0] * item, bytes = cell[columns] * item - begin;
    if (bytes <= kShort && begin + kShort <= stored * item) {  // the next row overwrites what is copied beyond this one
      __builtin_memcpy(out, data + begin, kShort);
    } else {
      std::copy(data + begin, data + begin + bytes, out);
    }
    out += bytes;
  }
  return {to_tensor(std::move(found), {total}, dtype_of(values)),
          to_tensor(std::move(ends), {count * columns + 1}, ScalarType::Long)};
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("gather_nested", TORCH_BOX(&gather_nested)); }

}  // namespace
}  // namespace gnnscale
