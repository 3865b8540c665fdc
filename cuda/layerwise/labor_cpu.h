// One hop of LABOR-0 on the CPU: each destination draws among its own edges, by the random numbers of their sources.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "batch_cpu.h"
#include "draws_cpu.h"
#include "sources_cpu.h"

namespace gnnscale {

template <typename Id, int64_t kStride>
class LaborHop {
 public:
  LaborHop(LayerBatch& batch, int hop) : batch_(batch), request_(batch.request), sources_(request_.graph), hop_(hop) {}

  void run() {
    batch_.begin_hop();
    const int64_t fanout = request_.num_nodes[hop_];
    const int draws_of = request_.layer_dependency ? 0 : hop_;
    Vector<DrawnEdge> drawn;
    Vector<int64_t> ids;
    Vector<uint64_t> draws;
    int64_t bad = -1;
    for (int64_t column = batch_.begin; column < batch_.end; ++column) {
      const int64_t node = batch_.nodes.id[column];
      const auto [first, last] = batch_.stored(node);
      const int64_t degree = last - first;
      drawn.clear();
      if (fanout < 0 || fanout >= degree) {
        for (int64_t position = first; position < last; ++position) drawn.push_back({position, 1.0});
      } else if (fanout > 0) {
        const int64_t size = (degree + kLanes - 1) / kLanes * kLanes;  // whole vectors of draws
        ids.assign(size, 0);
        draws.resize(size);
        for (int64_t at = 0; at < degree; ++at) ids[at] = static_cast<int64_t>(sources_.checked(first + at, bad));
        draw_nodes(request_.key, draws_of, ids.data(), size, draws.data());
        const double correction = labor_correction(static_cast<uint64_t>(degree), static_cast<uint64_t>(fanout));
        choose_neighbors(first, degree, draws, fanout);
        for (const int64_t position : positions_) drawn.push_back({position, correction});
      }
      batch_.add_column<Id>(node, drawn);
    }
    batch_.note_bad_row(bad);
    batch_.end_hop();
  }

 private:
  // Stores in positions_ the stored positions of a node's drawn edges, ascending.
  void choose_neighbors(int64_t first, int64_t degree, const Vector<uint64_t>& draws, int64_t fanout) {
    positions_.clear();
    if (request_.scheme == Scheme::kPoisson) {
      for (int64_t at = 0; at < degree; ++at) {
        if (labor_draws(draws[at], static_cast<uint64_t>(degree), static_cast<uint64_t>(fanout))) {
          positions_.push_back(first + at);
        }
      }
      return;
    }
    const auto before = [&](int64_t a, int64_t b) { return draws[a] < draws[b] || (draws[a] == draws[b] && a < b); };
    const double wanted = static_cast<double>(fanout) + 4 * std::sqrt(static_cast<double>(fanout)) + 4;
    const double guess = std::ldexp(wanted / static_cast<double>(degree), kDrawBits);
    const uint64_t limit = guess < 0x1p63 ? static_cast<uint64_t>(guess) : UINT64_MAX;
    for (int64_t at = 0; at < degree; ++at) {
      if (draws[at] <= limit) positions_.push_back(at);
    }
    if (static_cast<int64_t>(positions_.size()) < fanout) {
      positions_.resize(degree);
      std::iota(positions_.begin(), positions_.end(), 0);
    }
    if (static_cast<int64_t>(positions_.size()) > fanout) {
      std::nth_element(positions_.begin(), positions_.begin() + fanout, positions_.end(), before);
    }
    positions_.resize(fanout);
    std::sort(positions_.begin(), positions_.end());
    for (int64_t& position : positions_) position += first;
  }

  LayerBatch& batch_;
  const LayerRequest& request_;
  const Sources<Id, kStride> sources_;
  const int hop_;
  Vector<int64_t> positions_;
};

}  // namespace gnnscale
