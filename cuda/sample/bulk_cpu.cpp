// The operator sample_bulk by the threads of a host: the phases that a GPU runs, where there is none.
#include <cstring>

#include "../memory/tensor.h"
#include "bulk_driver.h"

namespace gnnscale {
namespace {

constexpr int64_t kGrainItems = 256;  // a task has at least as many

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

 private:
  const Tensor& like_;
  const int64_t threads_;
};

// See torch_gnnscale.ops.sample_bulk, which checks the arguments.
BulkResult sample_bulk(const Tensor& colptr, const std::vector<Tensor>& row, const std::vector<Tensor>& edge_id,
                       const Tensor& seeds, std::vector<int64_t> seed_ptr, std::vector<int64_t> fanouts,
                       std::vector<int64_t> keys, int64_t options, std::vector<int64_t> rooms, int64_t threads) {
  const BulkRequest request = bulk_request(
      colptr, row, edge_id, seeds, std::move(seed_ptr), std::move(fanouts), std::move(keys), options, std::move(rooms),
      [](const Tensor& tensor) { return static_cast<const char*>(tensor.const_data_ptr()); });
  HostExecutor executor(seeds, threads);
  return BulkDriver<HostExecutor>(executor, request).run();
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("sample_bulk", TORCH_BOX(&sample_bulk)); }

}  // namespace
}  // namespace gnnscale
