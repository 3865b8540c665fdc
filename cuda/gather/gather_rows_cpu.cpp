// Rows of matrices in host memory, copied into pooled memory.
#include "../memory/checks.h"
#include "../memory/tensor.h"
#include "gather_each_cpu.h"

namespace gnnscale {
namespace {

using Tensors = std::vector<Tensor>;

// See torch_gnnscale.ops.select_each, which checks the arguments.
Tensors gather_each(const Tensors& src, const Tensor& index, int64_t threads) {
  check_contiguous_ids("index", index);
  const int64_t rows = index.numel();
  std::vector<Source> sources;
  std::vector<PooledArray<char>> out;
  std::vector<std::vector<int64_t>> sizes;
  for (const Tensor& of : src) {
    check_table("src", of);
    int64_t items = 1;
    sizes.push_back({rows});
    for (int64_t d = 1; d < of.dim(); ++d) {
      sizes.back().push_back(of.size(d));
      items *= of.size(d);
    }
    const int64_t item = static_cast<int64_t>(of.element_size()), bytes = items * item;
    out.emplace_back(rows * bytes);
    if (rows * bytes == 0) continue;
    STD_TORCH_CHECK(of.size(0) > 0, "index: expected no rows of none");
    sources.push_back({static_cast<const char*>(of.const_data_ptr()), of.stride(0) * item, bytes,
                       static_cast<uint64_t>(of.size(0)), out.back().data()});
  }
  dispatch_index(dtype_of(index), [&](auto* tag) {
    using Index = std::remove_pointer_t<decltype(tag)>;
    const uint64_t limit = copy_each(sources, static_cast<const Index*>(index.const_data_ptr()), rows, threads);
    STD_TORCH_CHECK(limit == 0, "index: expected rows in [0, ", limit, ")");
  });
  Tensors found;
  for (size_t s = 0; s < src.size(); ++s) found.push_back(to_tensor(std::move(out[s]), sizes[s], dtype_of(src[s])));
  return found;
}

// See torch_gnnscale.ops.gather_rows, which checks the arguments.
Tensor gather_rows(const Tensor& src, const Tensor& index, int64_t threads) {
  return std::move(gather_each({src}, index, threads)[0]);
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) {
  library.impl("gather_rows", TORCH_BOX(&gather_rows));
  library.impl("gather_each", TORCH_BOX(&gather_each));
}

}  // namespace
}  // namespace gnnscale
