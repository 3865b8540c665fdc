// Weights of sampled edges: computed in double, rounded once to float. No expression adds to a product, so no compiler
// can fuse the two and round differently.
#pragma once

#include <cmath>
#include <cstdint>

#include "../macros.h"

namespace gnnscale {

enum class Aggregation : int64_t { kMean, kSum, kGcn };
enum class Weights : int64_t { kSelfNormalized, kUnbiased };

// a_e of an edge into a node of `degree` stored edges, from a node of `source_degree` stored edges.
GNNSCALE_HD double edge_factor(Aggregation aggregation, int64_t degree, int64_t source_degree) {
  if (aggregation == Aggregation::kSum) return 1.0;
  if (aggregation == Aggregation::kMean) return 1.0 / static_cast<double>(degree);
  if (source_degree == 0) return 0.0;
  return 1.0 / std::sqrt(static_cast<double>(degree) * static_cast<double>(source_degree));
}

// The self-normalized weight: weight * whole / drawn. `weight`: a_e c_v; `whole`: the sum of a_e over the stored edges
// of the destination; `drawn`: the sum of a_e c_v over its drawn edges.
GNNSCALE_HD double normalized_weight(double weight, double whole, double drawn) {
  return drawn > 0 ? weight * whole / drawn : 0.0;
}

GNNSCALE_HD float rounded_weight(double weight) { return static_cast<float>(weight); }

}  // namespace gnnscale
