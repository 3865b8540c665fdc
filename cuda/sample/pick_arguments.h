// The checks of what pick_neighbors is asked for.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "../memory/checks.h"
#include "../pick.h"
#include "options.h"

namespace gnnscale {

using torch::stable::Tensor;

// What decides the draws of all requests, besides their keys.
inline void check_draws(int64_t relation, int64_t hop, int64_t fanout) {
  STD_TORCH_CHECK(
      relation >= 0 && relation < kMaxRelations && hop >= 0 && hop < kMaxHops && fanout >= -1 && fanout <= kMostFanout,
      "pick_neighbors: expected a relation below ", kMaxRelations, ", a hop below ", kMaxHops,
      " and a fanout of -1 to ", kMostFanout, ", found ", relation, ", ", hop, " and ", fanout);
}

// The columns that are drawn from.
inline void check_columns(const Tensor& colptr, const Tensor& row, const std::optional<Tensor>& edge_id,
                          const std::optional<Tensor>& weight, const std::optional<Tensor>& time) {
  check_int64("colptr", colptr);
  check_ids("row", row);
  STD_TORCH_CHECK(colptr.numel() > 0, "colptr: expected at least one entry");
  if (edge_id.has_value()) check_ids("edge_id", *edge_id, row.numel());
  check_int64("weight", weight, row.numel());
  check_int64("time", time, row.numel());
}

inline void check_requests(const Tensor& node, const std::vector<int64_t>& node_ptr, const std::vector<int64_t>& keys,
                           const std::optional<Tensor>& tree, const std::optional<Tensor>& time,
                           const std::optional<Tensor>& start_time) {
  check_int64("node", node);
  check_int64("tree", tree);
  check_int64("node_time", time);
  check_int64("node_start_time", start_time);
  STD_TORCH_CHECK(node_ptr.size() == keys.size() + 1 && node_ptr.front() == 0 && node_ptr.back() == node.numel() &&
                      std::is_sorted(node_ptr.begin(), node_ptr.end()),
                  "pick_neighbors: expected node_ptr to lead from 0 to ", node.numel(), " in ", keys.size(), " steps");
  for (const auto* const entry : {&tree, &time, &start_time}) {
    STD_TORCH_CHECK(!entry->has_value() || (*entry)->numel() == node.numel(),
                    "pick_neighbors: expected a tree and times for each node");
  }
}

}  // namespace gnnscale
