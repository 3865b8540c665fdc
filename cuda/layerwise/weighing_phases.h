// Weights of drawn edges (weights.h) as loops over drawn edges and over columns.
#pragma once

#include <cstdint>

#include "../pieces.h"
#include "layer_phases.h"
#include "weights.h"

namespace gnnscale {

struct Weighing {
  LayerScan scan;
  Aggregation aggregation;
  double *whole, *sum;  // [columns]: of a_e over the stored edges of each column, of a_e c_v over the drawn ones
  double* factor;       // [scanned]: a_e of each stored edge, where it depends on the edge's source; else null
  double *sum_piece, *factor_piece;  // by window: the sum of the later piece that begins there, of a_e c_v and of a_e
  int64_t edges, scanned;            // scanned: 0 if `factor` is null

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
// adds up a piece of them reads them one after the other, and waits for no pointers.
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

// For every window of drawn edges, then of scanned ones, where `factor` is given: sums the later piece that begins
// there.
struct SumLaterPieces {
  Weighing weighing;

  GNNSCALE_HD int64_t count() const { return num_windows(weighing.edges) + num_windows(weighing.scanned); }

  GNNSCALE_HD void operator()(int64_t i) const {
    const LayerScan& scan = weighing.scan;
    const int64_t columns = *scan.bulk.state.columns(scan.hop.hop), of_drawn = num_windows(weighing.edges);
    const bool drawn = i < of_drawn;
    const int64_t window = drawn ? i : i - of_drawn;
    const double* const value = drawn ? scan.correction : weighing.factor;
    const Piece piece = piece_in_window(drawn ? scan.hop.offset : scan.offset, columns, window);
    if (piece.column < 0) return;
    double* const sums = drawn ? weighing.sum_piece : weighing.factor_piece;
    sums[window] = sum_piece(piece.begin, piece.end, [value](int64_t e) { return value[e]; });
  }
};

// For every column: adds up the weights of its edges, the first piece by itself.
struct SumWeights {
  Weighing weighing;

  GNNSCALE_HD static double sum_column(int64_t begin, int64_t end, const double* value, const double* later) {
    return sum_pieces(begin, end, [=](int64_t at, int64_t last) {
      return at == begin ? sum_piece(at, last, [value](int64_t e) { return value[e]; }) : later[at / kPiece];
    });
  }

  GNNSCALE_HD void operator()(int64_t i) const {
    const LayerScan& scan = weighing.scan;
    const int64_t degree = scan.hop.count[i], begin = scan.offset[i];
    double whole = weighing.aggregation == Aggregation::kMean ? 1 : static_cast<double>(degree);
    if (weighing.factor != nullptr) {
      whole = sum_column(begin, begin + degree, weighing.factor, weighing.factor_piece);
    }
    weighing.whole[i] = whole;
    weighing.sum[i] = sum_column(scan.hop.offset[i], scan.hop.offset[i + 1], scan.correction, weighing.sum_piece);
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
