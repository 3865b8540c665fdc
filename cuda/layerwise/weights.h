// Weights of sampled edges: in double, rounded once to float. No product is fused with a sum, so that every compiler
// rounds alike.
#pragma once

#include <cmath>
#include <cstdint>

#include "../macros.h"

namespace gnnscale {

enum class Aggregation : int64_t { kMean, kSum, kGcn };
enum class Weights : int64_t { kSelfNormalized, kUnbiased };

// a_e of an edge into a node of `degree` stored edges, from one of `source_degree`.
GNNSCALE_HD double edge_factor(Aggregation aggregation, int64_t degree, int64_t source_degree) {
  if (aggregation == Aggregation::kSum) return 1.0;
  if (aggregation == Aggregation::kMean) return 1.0 / static_cast<double>(degree);
  if (source_degree == 0) return 0.0;
  return 1.0 / std::sqrt(static_cast<double>(degree) * static_cast<double>(source_degree));
}

// The weight of an edge from a_e c_v, if rows keep their sum: `whole` is the sum of a_e over the stored edges of its
// destination, `drawn` that of a_e c_v over the drawn ones.
GNNSCALE_HD double normalized_weight(double weight, double whole, double drawn) {
  return drawn > 0 ? weight * whole / drawn : 0.0;
}

GNNSCALE_HD float rounded_weight(double weight) { return static_cast<float>(weight); }

}  // namespace gnnscale
