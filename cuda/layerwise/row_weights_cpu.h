// The weights of drawn edges, destination by destination, on the CPU.
#pragma once

#include <cstdint>

#include "../memory/allocate.h"
#include "../pieces.h"
#include "weights.h"

namespace gnnscale {

class RowWeights {
 public:
  RowWeights(Aggregation aggregation, Weights weights) : aggregation_(aggregation), weights_(weights) {}

  // Writes the weights of a destination's `count` drawn edges. degree: the number of its stored edges; correction(k):
  // c_v of drawn edge k; source_degree(k) and stored_source_degree(s): d_j of the sources of drawn edge k and of stored
  // edge s, for kGcn alone.
  template <typename Correction, typename SourceDegree, typename StoredSourceDegree>
  void weigh(int64_t degree, int64_t count, Correction correction, SourceDegree source_degree,
             StoredSourceDegree stored_source_degree, float* out) {
    const bool gcn = aggregation_ == Aggregation::kGcn;
    const double of_all = gcn ? 0.0 : edge_factor(aggregation_, degree, 0);
    if (std::ssize(value_) < count) value_.resize(count);
    for (int64_t k = 0; k < count; ++k) {
      value_[k] = (gcn ? edge_factor(aggregation_, degree, source_degree(k)) : of_all) * correction(k);
    }
    if (weights_ == Weights::kUnbiased) {
      for (int64_t k = 0; k < count; ++k) out[k] = rounded_weight(value_[k]);
      return;
    }
    const double drawn = sum(count, [this](int64_t k) { return value_[k]; });
    double whole = aggregation_ == Aggregation::kMean ? 1.0 : static_cast<double>(degree);
    if (gcn) whole = sum(degree, [&](int64_t s) { return edge_factor(aggregation_, degree, stored_source_degree(s)); });
    for (int64_t k = 0; k < count; ++k) out[k] = rounded_weight(normalized_weight(value_[k], whole, drawn));
  }

 private:
  template <typename Value>
  static double sum(int64_t count, const Value& value) {
    return sum_pieces(0, count, [&](int64_t begin, int64_t end) { return sum_piece(begin, end, value); });
  }

  Aggregation aggregation_;
  Weights weights_;
  Vector<double> value_;  // a_e c_v of each of the destination's drawn edges
};

}  // namespace gnnscale
