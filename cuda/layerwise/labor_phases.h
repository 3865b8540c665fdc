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
  LaborScan labor;

  GNNSCALE_HD void operator()(int64_t e) const {
    const int32_t column = labor.scan.column[e];
    int32_t& taken = labor.scan.taken[e];
    taken = !labor.draws(column);
    if (taken != 0 || labor.fanout == 0) return;
    uint64_t draw;
    if (!labor.draw_of(e, draw)) return;
    const int64_t degree = labor.scan.hop.count[column];
    if (labor.is_poisson) {
      taken = labor_draws(draw, static_cast<uint64_t>(degree), static_cast<uint64_t>(labor.fanout));
    } else if (draw <= likely_limit(labor.fanout, degree)) {
      taken = 1;
      atomic_add(labor.few[column], uint32_t{1});
    }
  }
};

// For every scanned edge, when `few` is known: takes it, too, if fewer than `fanout` edges of its column are within the
// limit.
struct TakeMore {
  LaborScan labor;

  GNNSCALE_HD void operator()(int64_t e) const {
    const int32_t column = labor.scan.column[e];
    if (labor.fanout > 0 && labor.draws(column) && labor.few[column] < labor.fanout) labor.scan.taken[e] = 1;
  }
};

// For every scanned edge, after the sum over `taken`: lists its draw, if it is taken and draws decide.
struct ListDraw {
  LaborScan labor;

  GNNSCALE_HD void operator()(int64_t e) const {
    uint64_t draw = 0;
    if (labor.scan.taken[e] == 0 || !labor.draws(labor.scan.column[e])) return;
    labor.draw_of(e, draw);
    labor.few_draw[labor.rank[e]] = draw;
  }
};

// For every scanned edge: it is kept if it is among the `fanout` least, ties in stored order.
struct KeepLeast {
  LaborScan labor;

  GNNSCALE_HD void operator()(int64_t e) const {
    const int32_t column = labor.scan.column[e];
    if (labor.scan.taken[e] == 0 || !labor.draws(column)) return;
    const int64_t own = labor.rank[e], last = labor.rank[labor.scan.offset[column + 1]];
    const uint64_t draw = labor.few_draw[own];
    int64_t before = 0;
    for (int64_t i = labor.rank[labor.scan.offset[column]]; i < last && before < labor.fanout; ++i) {
      before += labor.few_draw[i] < draw || (labor.few_draw[i] == draw && i < own);
    }
    if (before >= labor.fanout) labor.scan.taken[e] = 0;
  }
};

}  // namespace gnnscale
