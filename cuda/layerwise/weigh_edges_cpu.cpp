// The operator weigh_edges on the CPU.
#include <optional>

#include "../memory/checks.h"
#include "../memory/tensor.h"
#include "row_weights_cpu.h"

namespace gnnscale {
namespace {

// See torch_gnnscale.ops.weigh_edges, which checks the arguments.
Tensor weigh_edges(const Tensor& degree, const Tensor& row, const Tensor& correction,
                   const std::optional<Tensor>& source_degree, const std::optional<Tensor>& stored_source_degree,
                   int64_t aggregation, int64_t weights) {
  const int64_t rows = degree.numel(), edges = row.numel();
  const bool gcn = static_cast<Aggregation>(aggregation) == Aggregation::kGcn;
  const auto* const degrees = static_cast<const int64_t*>(degree.const_data_ptr());
  const auto* const of_row = static_cast<const int64_t*>(row.const_data_ptr());
  const auto* const corrections = static_cast<const double*>(correction.const_data_ptr());
  const int64_t *const of_source = data_or_null(source_degree), *const of_stored = data_or_null(stored_source_degree);
  check_int64("degree", degree);
  check_int64("row", row);
  check_vector("correction", correction, ScalarType::Double, edges);
  check_int64("source_degree", source_degree);
  check_int64("stored_source_degree", stored_source_degree);
  STD_TORCH_CHECK(!gcn || (of_source != nullptr || edges == 0), "expected degrees of sources");
  STD_TORCH_CHECK(!gcn || edges == 0 || source_degree->numel() == edges, "expected a source's degree for each edge");
  PooledArray<float> found(edges);
  RowWeights of_rows(static_cast<Aggregation>(aggregation), static_cast<Weights>(weights));
  int64_t first = 0, stored = 0;
  for (int64_t i = 0; i < rows; ++i) {
    int64_t last = first;
    while (last < edges && of_row[last] == i) ++last;
    const int64_t of_edges = gcn ? degrees[i] : 0;
    STD_TORCH_CHECK(
        !gcn || (0 <= of_edges && of_edges <= (of_stored == nullptr ? 0 : stored_source_degree->numel()) - stored),
        "expected a source's degree for each stored edge");
    if (last > first) {
      of_rows.weigh(
          degrees[i], last - first, [&](int64_t k) { return corrections[first + k]; },
          [&](int64_t k) { return of_source[first + k]; }, [&](int64_t s) { return of_stored[stored + s]; },
          found.data() + first);
    }
    first = last;
    stored += of_edges;
  }
  STD_TORCH_CHECK(first == edges, "row: expected ascending numbers of rows");
  return to_tensor(std::move(found), {edges}, ScalarType::Float);
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("weigh_edges", TORCH_BOX(&weigh_edges)); }

}  // namespace
}  // namespace gnnscale
