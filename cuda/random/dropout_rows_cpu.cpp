// Dropout of rows by their ids, in host memory.
#include "../memory/checks.h"
#include "../memory/tensor.h"
#include "../shuffle/shuffle_arguments.h"
#include "dropout.h"

namespace gnnscale {
namespace {

constexpr int64_t kGrain = 1 << 13;

// See torch_gnnscale.ops.dropout_rows, which checks the arguments.
Tensor dropout_rows(const Tensor& x, const Tensor& id, int64_t key, int64_t threshold, double scale, int64_t threads) {
  check_matrix("x", x, dtype_of(x));
  check_int64("id", id, x.size(0));
  const int64_t rows = x.size(0), width = x.size(1);
  return dispatch_float(dtype_of(x), [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    using Scale = decltype(widen(T{}));
    const T* const from = static_cast<const T*>(x.const_data_ptr());
    const int64_t* const ids = static_cast<const int64_t*>(id.const_data_ptr());
    PooledArray<T> out(rows * width);
    const int64_t tasks = num_tasks(rows * width, kGrain, threads);
    run_tasks(tasks, [&](int64_t task) {
      const auto [begin, end] = part(rows, task, tasks);
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t c = 0; c < width; c += kColumnsPerBlock) {
          const int count = static_cast<int>(std::min<int64_t>(kColumnsPerBlock, width - c));
          dropout_items(static_cast<uint64_t>(key), ids[i], c / kColumnsPerBlock, count,
                        static_cast<uint64_t>(threshold), static_cast<Scale>(scale), from + i * width + c,
                        out.data() + i * width + c);
        }
      }
    });
    return to_tensor(std::move(out), {rows, width}, dtype_of(x));
  });
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("dropout_rows", TORCH_BOX(&dropout_rows)); }

}  // namespace
}  // namespace gnnscale
