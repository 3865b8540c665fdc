// The comparisons that decide which candidates are drawn, and the corrections c_v. torch_gnnscale.ops.sample_layers has
// the formulas and the names: r_v, q_v, c_v.
#pragma once

#include <cstdint>

#include "../macros.h"
#include "../pick.h"
#include "scores.h"

namespace gnnscale {

using Wide = unsigned __int128;

enum class Scheme : int64_t { kPriority, kPoisson, kReplace, kSuccessive, kSequential };

constexpr int kNodeDraws = 0, kNumberedDraws = 1;  // the counter's relation: for r_v; for draw j of a hop
constexpr int kDrawBits = 64;

// r_v.
GNNSCALE_HD uint64_t node_draw(uint64_t key, int hop, int64_t node) {
  return philox_draw(draw_block(key, make_counter(node, 0, hop, kNodeDraws), 0), 0);
}

// Draw `number` of a hop.
GNNSCALE_HD uint64_t numbered_draw(uint64_t key, int hop, int64_t number) {
  return philox_draw(draw_block(key, make_counter(number, 0, hop, kNumberedDraws), 0), 0);
}

// Rounded to nearest, ties to even: of the leading 64 bits, of which the last one tells of any bit after them.
GNNSCALE_HD double rounded(Wide value) {
  const uint64_t high = static_cast<uint64_t>(value >> 64), low = static_cast<uint64_t>(value);
  if (high == 0) return static_cast<double>(low);
  const int shift = 64 - bit_length(high);
  const Wide moved = value << shift;
  const uint64_t leading = static_cast<uint64_t>(moved >> 64) | (static_cast<uint64_t>(moved) != 0 ? 1 : 0);
  return static_cast<double>(leading) * (0x1p64 / static_cast<double>(uint64_t{1} << shift));
}

// above / below: each is rounded to double, then the quotient is.
GNNSCALE_HD double quotient(Wide above, Wide below) { return rounded(above) / rounded(below); }

GNNSCALE_HD double at_least_one(Wide above, Wide below) { return above > below ? quotient(above, below) : 1.0; }

// A candidate: r_v, q_v, v.
struct Drawn {
  uint64_t draw, score;
  int64_t node;
};

// Whether a comes before b in the order of r_v / q_v, ties by id.
GNNSCALE_HD bool comes_before(const Drawn& a, const Drawn& b) {
  const Wide left = static_cast<Wide>(a.draw) * b.score, right = static_cast<Wide>(b.draw) * a.score;
  return left < right || (left == right && a.node < b.node);
}

// Whether r_v / q_v < limit.
GNNSCALE_HD bool is_below(uint64_t draw, uint64_t score, uint64_t limit) {
  return draw < static_cast<Wide>(score) * limit;
}

// c_v of a node of a priority sample; `next`: the first candidate in order that is not drawn, with r* and q*.
GNNSCALE_HD double priority_correction(uint64_t score, const Drawn& next) {
  const uint64_t draw = next.draw > 1 ? next.draw : 1;
  return at_least_one(static_cast<Wide>(next.score) << kDrawBits, static_cast<Wide>(draw) * score);
}

// Poisson: besides the certain nodes, `left` are drawn in expectation, from others whose scores sum to `rest`.
GNNSCALE_HD bool is_certain(uint64_t score, uint64_t left, uint64_t rest) {
  return static_cast<Wide>(left) * score >= rest;
}
GNNSCALE_HD bool poisson_draws(uint64_t draw, uint64_t score, uint64_t left, uint64_t rest) {
  return bounded(draw, rest) < static_cast<Wide>(left) * score;
}
GNNSCALE_HD double poisson_correction(uint64_t score, uint64_t left, uint64_t rest) {
  return at_least_one(rest, static_cast<Wide>(left) * score);
}

// c_v of a node that `times` of `count` draws found, each in proportion to scores of sum `total`.
GNNSCALE_HD double counted_correction(uint64_t times, uint64_t total, uint64_t count, uint64_t score) {
  return quotient(static_cast<Wide>(times) * total, static_cast<Wide>(count) * score);
}

// LABOR-0, into a destination of `degree` edges: whether scheme `poisson` draws an edge; the correction of drawn edges.
GNNSCALE_HD bool labor_draws(uint64_t draw, uint64_t degree, uint64_t fanout) {
  return static_cast<Wide>(draw) * degree < static_cast<Wide>(fanout) << kDrawBits;
}
// The largest draw with which labor_draws() draws an edge. 0 < fanout < degree.
GNNSCALE_HD uint64_t labor_limit(uint64_t degree, uint64_t fanout) {
  return static_cast<uint64_t>(((static_cast<Wide>(fanout) << kDrawBits) - 1) / degree);
}
GNNSCALE_HD double labor_correction(uint64_t degree, uint64_t fanout) { return at_least_one(degree, fanout); }

}  // namespace gnnscale
