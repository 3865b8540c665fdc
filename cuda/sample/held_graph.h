// The tensors of a graph's relations, handed over once and then sampled any number of times.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "../memory/tensor.h"

namespace gnnscale {

struct HeldRelation {
  Tensor colptr, row;
  std::optional<Tensor> edge_id, weight, time;
  int src, dst, reverse;  // the numbers of its node types and of its reverse relation
  // Whether all stored edges have different sources, as those of a foreign key from its table to another.
  bool sources_differ(int64_t num_src) const;
  // Whether edge i is the only one into node i, as of a foreign key in the other direction, if it is in all rows.
  bool one_each() const;

  // Found out when it is first asked for, by a look at all edges. Threads that ask at once find the same.
  enum class Found { kUnknown, kYes, kNo };
  std::unique_ptr<std::atomic<Found>[]> found{new std::atomic<Found>[2]{}};  // by question, in the order above
};

// Which of the relations into a node type have edges into a node: most have none, where there are many relations.
struct IncomingRelations {
  static constexpr size_t kFrom = 32;  // relations from which on this is looked up

  std::vector<int> numbers;  // of the relations, ascending; none if there are fewer than kFrom
  int64_t words = 0;         // of 64 bits, per node
  Vector<uint64_t> bits;     // bit i % 64 of bits[node * words + i / 64]: numbers[i] has edges into the node
};

struct HeldGraph {
  std::vector<HeldRelation> relations;
  std::vector<int64_t> sizes;               // nodes of each type
  std::vector<IncomingRelations> incoming;  // of each type
};

// The graph whose number is in a tensor from the operator hold_relations. Raises a RuntimeError for another tensor.
std::shared_ptr<const HeldGraph> held_graph(const Tensor& tensor);

}  // namespace gnnscale
