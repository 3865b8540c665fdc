// The operator choose_nodes on the CPU.
#include <tuple>

#include "../memory/checks.h"
#include "../memory/tensor.h"
#include "choosing_cpu.h"

namespace gnnscale {
namespace {

// See torch_gnnscale.ops.choose_nodes, which checks the arguments.
std::tuple<Tensor, Tensor> choose_nodes(const Tensor& node, const Tensor& score, int64_t count, int64_t scheme,
                                        int64_t key, int64_t hop) {
  check_int64("node", node);
  check_int64("score", score, node.numel());
  const auto* const ids = static_cast<const int64_t*>(node.const_data_ptr());
  const auto* const scores = static_cast<const int64_t*>(score.const_data_ptr());
  Scored from(node.numel());
  for (int64_t i = 0; i < node.numel(); ++i) from.add_if(true, ids[i], static_cast<uint64_t>(scores[i]));
  Vector<Chosen> chosen;
  choose(from, count, static_cast<Scheme>(scheme), static_cast<uint64_t>(key), static_cast<int>(hop), chosen);
  // From ids back to their places in `node`, by a sorted list of (id, place).
  Vector<std::pair<int64_t, int64_t>> places(node.numel());
  for (int64_t i = 0; i < node.numel(); ++i) places[i] = {ids[i], i};
  std::sort(places.begin(), places.end());
  Vector<std::pair<int64_t, double>> found;
  for (const Chosen& entry : chosen) {
    const auto at = std::lower_bound(places.begin(), places.end(), std::pair<int64_t, int64_t>(entry.node, 0));
    found.push_back({at->second, entry.correction});
  }
  std::sort(found.begin(), found.end());
  const int64_t size = static_cast<int64_t>(found.size());
  PooledArray<int64_t> place(size);
  PooledArray<double> correction(size);
  for (int64_t i = 0; i < size; ++i) {
    place[i] = found[i].first;
    correction[i] = found[i].second;
  }
  return {to_tensor(std::move(place), {size}, ScalarType::Long),
          to_tensor(std::move(correction), {size}, ScalarType::Double)};
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("choose_nodes", TORCH_BOX(&choose_nodes)); }

}  // namespace
}  // namespace gnnscale
