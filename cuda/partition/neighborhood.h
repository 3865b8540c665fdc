// The neighbors of nodes as they lie in several CSCs between ranges of nodes.
#pragma once

#include <atomic>
#include <vector>

#include "../memory/checks.h"
#include "../memory/tensor.h"

namespace gnnscale {

// See torch_gnnscale.ops.Side.
struct Side {
  const int64_t* colptr;
  const void* row;
  bool wide;  // whether row is int64
  int64_t stride, num_columns, first_node, first_neighbor, num_neighbors;
};

class Neighborhood {
 public:
  // Three numbers per side: first_node, first_neighbor, num_neighbors, all within `num_nodes`.
  Neighborhood(const std::vector<Tensor>& colptr, const std::vector<Tensor>& row, const std::vector<int64_t>& ranges,
               int64_t num_nodes) {
    STD_TORCH_CHECK(row.size() == colptr.size() && ranges.size() == 3 * colptr.size(),
                    "sides: expected sources and three numbers for each of ", colptr.size());
    for (size_t i = 0; i < colptr.size(); ++i) {
      check_int64("colptr", colptr[i]);
      check_ids("row", row[i]);
      check_pointer("colptr", colptr[i], row[i].numel());
      const int64_t columns = colptr[i].numel() - 1;
      const int64_t* const of = ranges.data() + 3 * i;
      STD_TORCH_CHECK(of[0] >= 0 && of[0] <= num_nodes - columns && of[1] >= 0 && of[2] >= 0 && of[2] <= num_nodes &&
                          of[1] <= num_nodes - of[2],
                      "sides: expected nodes in [0, ", num_nodes, ")");
      sides_.push_back({static_cast<const int64_t*>(colptr[i].const_data_ptr()), row[i].const_data_ptr(),
                        dtype_of(row[i]) == ScalarType::Long, row[i].stride(0), colptr[i].numel() - 1, ranges[3 * i],
                        ranges[3 * i + 1], ranges[3 * i + 2]});
    }
  }

  // Calls f(neighbor) for every stored neighbor of a node.
  template <typename F>
  void visit(int64_t node, F f) const {
    for (const Side& side : sides_) {
      const int64_t column = node - side.first_node;
      if (column < 0 || column >= side.num_columns) continue;
      const int64_t from = side.colptr[column], to = side.colptr[column + 1];
      side.wide ? visit<int64_t>(side, from, to, f) : visit<int32_t>(side, from, to, f);
    }
  }

  int64_t degree(int64_t node) const {
    int64_t sum = 0;
    for (const Side& side : sides_) {
      const int64_t column = node - side.first_node;
      if (column >= 0 && column < side.num_columns) sum += side.colptr[column + 1] - side.colptr[column];
    }
    return sum;
  }

  // Raises if a row that was visited held a number that is not a node.
  void check() const {
    STD_TORCH_CHECK(corrupt_.load() < 0, "the graph is malformed: row[", corrupt_.load(), "] is no node");
  }

 private:
  template <typename Id, typename F>
  void visit(const Side& side, int64_t from, int64_t to, F& f) const {
    const Id* const row = static_cast<const Id*>(side.row);
    for (int64_t e = from; e < to; ++e) {
      const uint64_t neighbor = static_cast<uint64_t>(row[e * side.stride]);
      if (neighbor < static_cast<uint64_t>(side.num_neighbors)) {
        f(side.first_neighbor + static_cast<int64_t>(neighbor));
      } else {
        corrupt_.store(e);
      }
    }
  }

  std::vector<Side> sides_;
  mutable std::atomic<int64_t> corrupt_{-1};
};

// Nodes by group: those of group g are node[begin[g]] .. node[begin[g + 1] - 1], ascending. Without groups, each node
// is a group of its own.
class Groups {
 public:
  Groups(const std::optional<Tensor>& group, int64_t count) {
    if (!group.has_value()) return;
    const int64_t* const of = static_cast<const int64_t*>(group->const_data_ptr());
    const int64_t num_nodes = group->numel();
    check_int64("group", *group);
    check_below("group", *group, count);
    begin_ = PooledArray<int64_t>(count + 1);
    node_ = PooledArray<int64_t>(num_nodes);
    std::fill_n(begin_.data(), count + 1, 0);
    for (int64_t node = 0; node < num_nodes; ++node) ++begin_[of[node]];
    int64_t sum = 0;
    for (int64_t g = 0; g <= count; ++g) begin_[g] = sum += begin_[g];
    for (int64_t node = num_nodes; node-- > 0;) node_[--begin_[of[node]]] = node;
  }

  template <typename F>
  void each(int64_t group, F f) const {
    if (node_.data() == nullptr) return f(group);
    for (int64_t i = begin_[group]; i < begin_[group + 1]; ++i) f(node_[i]);
  }

 private:
  PooledArray<int64_t> begin_, node_;
};

}  // namespace gnnscale
