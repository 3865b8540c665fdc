// LABOR-0 as loops over scanned edges (see layer_phases.h): each column draws among its own edges.
#pragma once

#include <cmath>
#include <cstdint>

#include "layer_phases.h"

namespace gnnscale {

// The edges of a column that may have the `fanout` least draws: those whose draw is at most a limit, or, if these are
// too few, all of its edges. Each of them is compared with the others.
struct LaborScan {
  LayerScan scan;
  int64_t fanout;
  int draws_hop;  // the hop of the draws
  bool is_poisson;
  uint32_t* few;        // [columns]: edges of at most the limit
  uint64_t* few_draw;   // [scanned]: the draws of edges that may be among the least, in stored order
  const int32_t* rank;  // [scanned + 1]: how many of these are before an edge

  GNNSCALE_HD bool draws(int32_t column) const { return fanout >= 0 && fanout < scan.hop.count[column]; }

  // False if the source is malformed.
  GNNSCALE_HD bool draw_of(int64_t e, uint64_t& draw) const {
    const int64_t source = scan.source_at(scan.position_at(e));
    if (source < 0) return false;
    draw = node_draw(static_cast<uint64_t>(scan.bulk.state.key()[scan.batch[scan.column[e]]]), draws_hop, source);
    return true;
  }
};

// Above this no edge is likely to be among the `fanout` least of `degree` draws.
GNNSCALE_HD uint64_t likely_limit(int64_t fanout, int64_t degree) {
  const double wanted = static_cast<double>(fanout) + 8 * std::sqrt(static_cast<double>(fanout)) + 16;
  const double share = wanted / static_cast<double>(degree);
  return share < 1 ? static_cast<uint64_t>(share * 0x1p64) : ~uint64_t{0};
}

// For every scanned edge: whether it is taken, or may be.
struct TakeNeighbor {
  LaborScan by;

  GNNSCALE_HD void operator()(int64_t e) const {
    const int32_t column = by.scan.column[e];
    int32_t& taken = by.scan.taken[e];
    taken = !by.draws(column);
    if (taken != 0 || by.fanout == 0) return;
    uint64_t draw;
    if (!by.draw_of(e, draw)) return;
    const int64_t degree = by.scan.hop.count[column];
    if (by.is_poisson) {
      taken = labor_draws(draw, static_cast<uint64_t>(degree), static_cast<uint64_t>(by.fanout));
    } else if (draw <= likely_limit(by.fanout, degree)) {
      taken = 1;
      atomic_add(by.few[column], uint32_t{1});
    }
  }
};

// For every scanned edge, when `few` is known: takes it, too, if fewer than `fanout` edges of its column are within the
// limit.
struct TakeMore {
  LaborScan by;

  GNNSCALE_HD void operator()(int64_t e) const {
    const int32_t column = by.scan.column[e];
    if (by.fanout > 0 && by.draws(column) && by.few[column] < by.fanout) by.scan.taken[e] = 1;
  }
};

// For every scanned edge, after the sum over `taken`: lists its draw, if it is taken and draws decide.
struct ListDraw {
  LaborScan by;

  GNNSCALE_HD void operator()(int64_t e) const {
    uint64_t draw = 0;
    if (by.scan.taken[e] == 0 || !by.draws(by.scan.column[e])) return;
    by.draw_of(e, draw);
    by.few_draw[by.rank[e]] = draw;
  }
};

// For every scanned edge: it is kept if it is among the `fanout` least, ties in stored order.
struct KeepLeast {
  LaborScan by;

  GNNSCALE_HD void operator()(int64_t e) const {
    const int32_t column = by.scan.column[e];
    if (by.scan.taken[e] == 0 || !by.draws(column)) return;
    const int64_t own = by.rank[e], last = by.rank[by.scan.offset[column + 1]];
    const uint64_t draw = by.few_draw[own];
    int64_t before = 0;
    for (int64_t i = by.rank[by.scan.offset[column]]; i < last && before < by.fanout; ++i) {
      before += by.few_draw[i] < draw || (by.few_draw[i] == draw && i < own);
    }
    if (before >= by.fanout) by.scan.taken[e] = 0;
  }
};

}  // namespace gnnscale
