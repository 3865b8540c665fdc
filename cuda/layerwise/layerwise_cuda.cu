// The layer-wise operators on the current stream of a GPU.
#include <torch/csrc/stable/accelerator.h>

#include <optional>
#include <tuple>

#include "../executor_cuda.h"
#include "../sample/bulk_rooms.h"
#include "choosing_driver.h"
#include "layer_driver.h"

namespace gnnscale {
namespace {

constexpr char kChooseNodes[] = "choose_nodes";

// For every candidate: whether it is drawn.
struct TakeChosen {
  const double* correction;
  int64_t* taken;

  GNNSCALE_HD void operator()(int64_t i) const { taken[i] = correction[i] != 0; }
};

// For every candidate, after the sum over `taken`: writes those that are drawn to the output.
struct WriteChosen {
  const double* correction;
  const int64_t *taken, *rank;
  int64_t* place;
  double* out;

  GNNSCALE_HD void operator()(int64_t i) const {
    if (taken[i] == 0) return;
    place[rank[i]] = i;
    out[rank[i]] = correction[i];
  }
};

struct CopyScores {
  const int64_t* from;
  uint64_t* to;

  GNNSCALE_HD void operator()(int64_t i) const { to[i] = static_cast<uint64_t>(from[i]); }
};

// See torch_gnnscale.ops.choose_nodes, which checks the arguments.
std::tuple<Tensor, Tensor> choose_nodes(const Tensor& node, const Tensor& score, int64_t count, int64_t scheme,
                                        int64_t key, int64_t hop) {
  const int64_t all = node.numel();
  STD_TORCH_CHECK(all == score.numel() && all <= kMostInHop, "expected a score for each of at most 2^31 nodes");
  STD_TORCH_CHECK(node.is_cuda() && score.is_cuda(), kChooseNodes, ": expected nodes and scores on a GPU");
  const int32_t device = node.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const StreamExecutor executor(kChooseNodes, node, current_stream(device));
  const Tensor words = executor.upload({0, all, key});
  const auto* const begin = static_cast<const int64_t*>(words.const_data_ptr());
  Tensor scores = executor.room(all, ScalarType::Long), correction = executor.room(all, ScalarType::Double);
  Tensor taken = executor.room(all, ScalarType::Long), rank = executor.room(all + 1, ScalarType::Long);
  auto* const own_scores = static_cast<uint64_t*>(scores.mutable_data_ptr());
  auto* const corrections = static_cast<double*>(correction.mutable_data_ptr());
  auto *const flags = static_cast<int64_t*>(taken.mutable_data_ptr()), *const ranks = static_cast<int64_t*>(
                                                                           rank.mutable_data_ptr());
  executor.each(all, CopyScores{static_cast<const int64_t*>(score.const_data_ptr()), own_scores});
  const Candidates candidates{1,          begin,       begin + 2, static_cast<const int64_t*>(node.const_data_ptr()),
                              own_scores, corrections, count,     static_cast<int>(hop),
                              63};
  ChoosingDriver<const StreamExecutor>(executor, candidates, all).run(static_cast<Scheme>(scheme));
  executor.each(all, TakeChosen{corrections, flags});
  executor.sum_before(flags, ranks, all);
  const int64_t found = executor.download(ranks + all, 1)[0];
  Tensor place = executor.room(found, ScalarType::Long), out = executor.room(found, ScalarType::Double);
  executor.each(begin + 1, all,
                WriteChosen{corrections, flags, ranks, static_cast<int64_t*>(place.mutable_data_ptr()),
                            static_cast<double*>(out.mutable_data_ptr())});
  return {place, out};
}

constexpr char kSampleLayersBulk[] = "sample_layers_bulk";

// See torch_gnnscale.ops.sample_layers_bulk, which checks the arguments; `threads` is the CPU's.
LayersResult sample_layers_bulk(const Tensor& colptr, const std::vector<Tensor>& row,
                                const std::vector<Tensor>& edge_id, const std::vector<int64_t>& spread,
                                const Tensor& seeds, const std::optional<Tensor>& score, std::vector<int64_t> seed_ptr,
                                std::vector<int64_t> num_nodes, std::vector<int64_t> keys, std::vector<int64_t> choices,
                                int64_t options, int64_t /*threads*/) {
  STD_TORCH_CHECK(seeds.is_cuda(), kSampleLayersBulk, ": seeds are not on a GPU");
  const int32_t device = seeds.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const auto address = [](const Tensor& part) { return device_address(kSampleLayersBulk, part); };
  const LayersRequest request = layers_request(colptr, row, edge_id, spread, seeds, score, std::move(seed_ptr),
                                               std::move(num_nodes), std::move(keys), choices, options, address);
  StreamExecutor executor(kSampleLayersBulk, seeds, current_stream(device));
  return LayerDriver<StreamExecutor>(executor, request).run();
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CUDA, library) {
  library.impl("choose_nodes", TORCH_BOX(&choose_nodes));
  library.impl("sample_layers_bulk", TORCH_BOX(&sample_layers_bulk));
}

}  // namespace
}  // namespace gnnscale
