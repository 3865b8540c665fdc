// The tensors of a graph's relations, handed over once and then sampled any number of times.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "../memory/tensor.h"

namespace gnnscale {

struct HeldRelation {
  Tensor colptr, row;
  std::optional<Tensor> edge_id, weight, time;
  int src, dst, reverse;  // the numbers of its node types and of its reverse relation
};

struct HeldGraph {
  std::vector<HeldRelation> relations;
  std::vector<int64_t> sizes;  // nodes of each type
};

// A number that stands for the graph, in a tensor: int64, shape [1]. The graph is held as long as this tensor lives;
// copies of the tensor stand for the same graph as long as that.
Tensor hold(std::shared_ptr<const HeldGraph> graph);

// The graph that a tensor from hold() stands for. Raises a RuntimeError for another tensor.
std::shared_ptr<const HeldGraph> held_graph(const Tensor& tensor);

}  // namespace gnnscale
