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

// The graph whose number is in a tensor from the operator hold_relations. Raises a RuntimeError for another tensor.
std::shared_ptr<const HeldGraph> held_graph(const Tensor& tensor);

}  // namespace gnnscale
