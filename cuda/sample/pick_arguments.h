// The checks of requests that both executors of pick_neighbors make.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace gnnscale {

using torch::stable::Tensor;

inline void check_requests(const Tensor& node, const std::vector<int64_t>& node_ptr, const std::vector<int64_t>& keys,
                           const std::optional<Tensor>& tree, const std::optional<Tensor>& time) {
  STD_TORCH_CHECK(node_ptr.size() == keys.size() + 1 && node_ptr.front() == 0 && node_ptr.back() == node.numel() &&
                      std::is_sorted(node_ptr.begin(), node_ptr.end()),
                  "pick_neighbors: expected node_ptr to lead from 0 to ", node.numel(), " in ", keys.size(), " steps");
  for (const auto* const entry : {&tree, &time}) {
    STD_TORCH_CHECK(!entry->has_value() || (*entry)->numel() == node.numel(),
                    "pick_neighbors: expected a tree and a time for each node");
  }
}

}  // namespace gnnscale
