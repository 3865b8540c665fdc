// Weights of drawn edges (weights.h) as loops over drawn edges and over columns.
#pragma once

#include <cstdint>

#include "layer_phases.h"
#include "weights.h"

namespace gnnscale {

struct Weighing {
  LayerScan scan;
  Aggregation aggregation;
  double *whole, *sum;  // [columns]: of a_e over the stored edges of each column, of a_e c_v over the drawn ones
  double* factor;       // [scanned]: a_e of each stored edge, where it depends on the edge's source; else null

  // a_e of the edge at a stored position.
  GNNSCALE_HD double factor_at(int64_t position, int64_t degree) const {
    if (aggregation != Aggregation::kGcn) return edge_factor(aggregation, degree, 0);
    const int64_t source = scan.source_at(position);
    if (source < 0) return 0;
    const BulkRelation& graph = scan.graph();
    const int64_t first = graph.colptr[source], last = graph.colptr[source + 1];
    if (first < 0 || last < first || last > graph.num_edges) {
      scan.bulk.state.note(BulkState::kBadNode, 0, source);
      return 0;
    }
    return edge_factor(aggregation, degree, last - first);
  }
};

// For every drawn edge: c_v becomes a_e c_v.
struct WeighEdge {
  Weighing weighing;

  GNNSCALE_HD void operator()(int64_t e) const {
    const int64_t degree = weighing.scan.hop.count[weighing.scan.hop.column[e]];
    weighing.scan.correction[e] = weighing.factor_at(weighing.scan.hop.draw[e], degree) * weighing.scan.correction[e];
  }
};

// For every scanned edge, where a_e depends on its source: a_e, 0 in a column without drawn edges. So a thread that
// adds up those of a hub reads them one after the other, and waits for no pointers.
struct FindFactor {
  Weighing weighing;

  GNNSCALE_HD void operator()(int64_t e) const {
    const LayerScan& scan = weighing.scan;
    const int64_t i = part_at(scan.offset, *scan.bulk.state.columns(scan.hop.hop), e);
    const bool is_drawn = scan.hop.offset[i] < scan.hop.offset[i + 1];
    const int64_t position = scan.hop.first[i] + e - scan.offset[i];
    weighing.factor[e] = is_drawn ? weighing.factor_at(position, scan.hop.count[i]) : 0;
  }
};

// For every column: adds up the weights of its edges, in stored order.
struct SumWeights {
  Weighing weighing;

  GNNSCALE_HD void operator()(int64_t i) const {
    const BulkHop& hop = weighing.scan.hop;
    const int64_t degree = hop.count[i];
    double whole = weighing.aggregation == Aggregation::kMean ? 1 : static_cast<double>(degree), sum = 0;
    if (weighing.factor != nullptr) {
      whole = 0;
      for (int64_t e = weighing.scan.offset[i]; e < weighing.scan.offset[i] + degree; ++e) whole += weighing.factor[e];
    }
    for (int64_t e = hop.offset[i]; e < hop.offset[i + 1]; ++e) sum += weighing.scan.correction[e];
    weighing.whole[i] = whole;
    weighing.sum[i] = sum;
  }
};

// For every drawn edge: its weight, rounded. `sum` null: weights stay unbiased; else they are normalized.
struct RoundWeight {
  Weighing weighing;

  GNNSCALE_HD void operator()(int64_t e) const {
    const int32_t column = weighing.scan.hop.column[e];
    double weight = weighing.scan.correction[e];
    if (weighing.sum != nullptr) weight = normalized_weight(weight, weighing.whole[column], weighing.sum[column]);
    weighing.scan.hop.weight[e] = rounded_weight(weight);
  }
};

}  // namespace gnnscale
