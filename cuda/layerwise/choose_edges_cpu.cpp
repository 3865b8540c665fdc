// The operator choose_edges on the CPU.
#include <tuple>
#include <vector>

#include "../memory/checks.h"
#include "../memory/tensor.h"
#include "labor_cpu.h"

namespace gnnscale {
namespace {

// See torch_gnnscale.ops.choose_edges, which checks the arguments.
std::tuple<Tensor, Tensor> choose_edges(const Tensor& source, const Tensor& degree,
                                        const std::vector<int64_t>& column_ptr, const std::vector<int64_t>& keys,
                                        int64_t hop, int64_t fanout, int64_t scheme) {
  check_int64("source", source);
  check_int64("degree", degree);
  STD_TORCH_CHECK(column_ptr.size() == keys.size() + 1, "expected one entry of column_ptr more than keys");
  const auto* const ids = static_cast<const int64_t*>(source.const_data_ptr());
  const auto* const degrees = static_cast<const int64_t*>(degree.const_data_ptr());
  LaborChoice choice(fanout, static_cast<Scheme>(scheme));
  Vector<uint64_t> draws;
  Vector<int64_t> place;
  Vector<double> correction;
  int64_t first = 0;  // the first edge of a column
  for (size_t b = 0; b < keys.size(); ++b) {
    STD_TORCH_CHECK(0 <= column_ptr[b] && column_ptr[b] <= column_ptr[b + 1] && column_ptr[b + 1] <= degree.numel(),
                    "column_ptr is out of range");
    for (int64_t column = column_ptr[b]; column < column_ptr[b + 1]; ++column) {
      const int64_t edges = degrees[column];
      STD_TORCH_CHECK(0 <= edges && edges <= source.numel() - first, "degree is out of range");
      if (!choice.draws(edges)) {
        for (int64_t k = 0; k < edges; ++k) place.push_back(first + k);
        correction.resize(place.size(), 1.0);
      } else if (fanout > 0) {
        if (std::ssize(draws) < edges) draws.resize(edges);
        draw_nodes(static_cast<uint64_t>(keys[b]), static_cast<int>(hop), ids + first, edges, draws.data());
        const int64_t count = choice.choose(draws.data(), edges);
        for (int64_t k = 0; k < count; ++k) place.push_back(first + choice.chosen()[k]);
        correction.resize(place.size(), choice.correction(edges));
      }
      first += edges;
    }
  }
  const int64_t size = std::ssize(place);
  PooledArray<int64_t> places(size);
  PooledArray<double> corrections(size);
  std::copy_n(place.data(), size, places.data());
  std::copy_n(correction.data(), size, corrections.data());
  return {to_tensor(std::move(places), {size}, ScalarType::Long),
          to_tensor(std::move(corrections), {size}, ScalarType::Double)};
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("choose_edges", TORCH_BOX(&choose_edges)); }

}  // namespace
}  // namespace gnnscale
