// Sums, means and extremes of neighbors' rows over a CSC, and the operators that their gradients need.
//
// Each column is computed by one thread, which reads its entries in stored order (see columns.h), so no result depends
// on the number of threads.
#include <string>
#include <type_traits>
#include <vector>

#include "../prefetch.h"
#include "aggregate_arguments.h"
#include "columns_cpu.h"
#include "row_loops_cpu.h"

namespace gnnscale {
namespace {

constexpr int64_t kColumnsAhead = 2;  // rows to write, this many columns ahead

// Sums the columns of a result, one after the other, in the type Wide<Row>: in the result itself if it has that type,
// else in a row of its own, from which the column is then rounded.
template <typename Row, typename Out>
class Summed {
 public:
  static constexpr bool kInPlace = std::is_same_v<Wide<Row>, Out>;

  Summed(Out* out, int64_t width) : out_(out), width_(width), sum_(static_cast<size_t>(kInPlace ? 0 : width)) {}

  // f(row) writes the row of a column, [width].
  template <typename F>
  void write(int64_t column, F&& f) {
    Out* const to = out_ + column * width_;
    prefetch_lines_to_write(to + kColumnsAhead * width_, width_ * static_cast<int64_t>(sizeof(Out)));
    if constexpr (kInPlace) {
      f(to);
    } else {
      f(sum_.data());
      vectorized<NarrowRow>(to, static_cast<const Wide<Row>*>(sum_.data()), width_);
    }
  }

 private:
  Out* out_;
  int64_t width_;
  std::vector<Wide<Row>> sum_;
};

// Writes a column's sum to `out`; f(begin, end, sum) writes that of a piece of its entries.
template <typename T, typename F>
void sum_pieces(int64_t first, int64_t last, T* out, int64_t width, F&& f) {
  f(first, std::min(first + kPiece, last), out);
  if (last - first <= kPiece) return;
  std::vector<T> sum(static_cast<size_t>(width));
  for (int64_t begin = first + kPiece; begin < last; begin += kPiece) {
    f(begin, std::min(begin + kPiece, last), sum.data());
    vectorized<AddRow>(out, static_cast<const T*>(sum.data()), width);
  }
}

// Calls f with null pointers of the types of node ids, of x and of the result; see dispatch_rows.
template <typename F>
Tensor dispatch(const Tensor& node, const Tensor& x, const char* name, const std::optional<Tensor>& other, F&& f) {
  return dispatch_index(dtype_of(node), [&](auto* id) {
    return dispatch_rows(name, x, other, [&](auto* row, auto* out) { return f(id, row, out); });
  });
}

// See torch_gnnscale.ops.aggregate, which checks the arguments.
Tensor aggregate(const Tensor& ptr, const Tensor& node, const std::optional<Tensor>& edge, int64_t num_edges,
                 const Tensor& x, const std::optional<Tensor>& more, const std::optional<Tensor>& weight,
                 const std::string& reduce, int64_t threads) {
  return dispatch(node, x, "weight", weight, [&](auto* id_tag, auto* row_tag, auto* out_tag) {
    using Id = std::remove_pointer_t<decltype(id_tag)>;
    using Row = std::remove_pointer_t<decltype(row_tag)>;
    using Out = std::remove_pointer_t<decltype(out_tag)>;
    using T = Wide<Row>;
    check_matrix("x", x, dtype_of(x));
    if (more.has_value()) check_matrix("more", *more, dtype_of(x), -1, x.size(1));
    if (weight.has_value()) {
      check_matrix("weight", *weight, dtype_of(*weight));
      STD_TORCH_CHECK(weight->size(0) >= std::min(num_edges, node.numel()) && weight->size(1) > 0 &&
                          x.size(1) % weight->size(1) == 0,
                      "weight: expected one for each edge, and heads that divide the width of x");
    }
    const int64_t num_rows = x.size(0) + (more.has_value() ? more->size(0) : 0);
    const Entries<const Id*> entries = entries_of(ptr, node, edge, num_rows, num_edges, as_ids<Id>);
    const int64_t width = x.size(1), heads = weight.has_value() ? weight->size(1) : 1, head = width / heads;
    const Rows<Row> from = rows_of<Row>(x, more);
    const Out* const weights = data_of<Out>(weight);
    const bool is_max = reduce == "max", is_min = reduce == "min", is_mean = reduce == "mean";
    const int64_t row_bytes = width * static_cast<int64_t>(sizeof(Row)), ahead = entries_ahead(row_bytes);
    PooledArray<Out> out(entries.columns * width);
    const auto combine = [&](int64_t begin, int64_t end, T* to) {
      if (begin == end || weights != nullptr) std::fill(to, to + width, begin == end ? T{0} : kNothing<T>);
      for (int64_t k = begin; k < end; ++k) {
        prefetch_entry(entries, k + ahead, from, row_bytes);
        const Row* row = from(entries.node_of(k));
        if (weights != nullptr) {
          prefetch_weight(entries, k + ahead, weights, heads);
          vectorized<AddScaledHeads>(to, row, weights + entries.edge_of(k) * heads, heads, head);
        } else if (k == begin) {
          vectorized<CopyRow>(to, row, width);
        } else if (is_max) {
          vectorized<KeepExtreme<true>>(to, row, width);
        } else if (is_min) {
          vectorized<KeepExtreme<false>>(to, row, width);
        } else {
          vectorized<AddRow>(to, row, width);
        }
      }
    };
    for_each_column(entries, width, threads, [&] {
      return [&, summed = Summed<Row, Out>(out.data(), width)](int64_t column, int64_t first, int64_t last) mutable {
        summed.write(column, [&](T* to) {
          if (is_max || is_min) {
            combine(first, last, to);
          } else {
            sum_pieces(first, last, to, width, combine);
          }
          if (is_mean && last - first > 1) {
            for (int64_t c = 0; c < width; ++c) to[c] /= static_cast<T>(last - first);
          }
        });
      };
    });
    return to_tensor(std::move(out), {entries.columns, width}, weight.has_value() ? dtype_of(*weight) : dtype_of(x));
  });
}

// See torch_gnnscale.ops.edge_dot, which checks the arguments.
Tensor edge_dot(const Tensor& ptr, const Tensor& node, const std::optional<Tensor>& edge, const Tensor& x,
                const Tensor& y, int64_t heads, int64_t threads) {
  return dispatch(node, x, "y", y, [&](auto* id_tag, auto* row_tag, auto* out_tag) {
    using Id = std::remove_pointer_t<decltype(id_tag)>;
    using Row = std::remove_pointer_t<decltype(row_tag)>;
    using Out = std::remove_pointer_t<decltype(out_tag)>;
    check_matrix("x", x, dtype_of(x));
    const Entries<const Id*> entries = entries_of(ptr, node, edge, x.size(0), kAllEdges, as_ids<Id>);
    check_matrix("y", y, dtype_of(y), entries.columns, x.size(1));
    STD_TORCH_CHECK(heads > 0 && x.size(1) % heads == 0, "heads: expected a divisor of ", x.size(1), ", found ", heads);
    STD_TORCH_CHECK(entries.ptr[0] == 0 && entries.ptr[entries.columns] == entries.count, "ptr: expected 0 to ",
                    entries.count, ", found ", entries.ptr[0], " to ", entries.ptr[entries.columns]);
    const int64_t width = x.size(1), head = width / heads;
    const Rows<Row> from = rows_of<Row>(x);
    const Out* other = data_of<Out>(y);
    const int64_t row_bytes = width * static_cast<int64_t>(sizeof(Row)), ahead = entries_ahead(row_bytes);
    PooledArray<Out> out(entries.count * heads);
    for_each_column(entries, width, threads, [&] {
      return [&](int64_t column, int64_t first, int64_t last) {
        for (int64_t k = first; k < last; ++k) {
          prefetch_entry(entries, k + ahead, from, row_bytes);
          vectorized<DotHeads>(out.data() + entries.edge_of(k) * heads, from(entries.node_of(k)),
                               other + column * width, heads, head);
        }
      };
    });
    return to_tensor(std::move(out), {entries.count, heads}, dtype_of(y));
  });
}

// See torch_gnnscale.ops.share_of_extremes, which checks the arguments.
Tensor share_of_extremes(const Tensor& ptr, const Tensor& node, const Tensor& x, const Tensor& extreme,
                         const Tensor& grad, int64_t threads) {
  return dispatch(node, x, "x", std::nullopt, [&](auto* id_tag, auto* row_tag, auto*) {
    using Id = std::remove_pointer_t<decltype(id_tag)>;
    using Row = std::remove_pointer_t<decltype(row_tag)>;
    using T = Wide<Row>;
    check_matrix("x", x, dtype_of(x));
    const Entries<const Id*> entries = entries_of(ptr, node, std::nullopt, x.size(0), kAllEdges, as_ids<Id>);
    check_matrix("extreme", extreme, dtype_of(x), entries.columns, x.size(1));
    check_matrix("grad", grad, dtype_of(x), entries.columns, x.size(1));
    const int64_t width = x.size(1);
    const Rows<Row> from = rows_of<Row>(x);
    const Row *best = data_of<Row>(extreme), *gradient = data_of<Row>(grad);
    const int64_t row_bytes = width * static_cast<int64_t>(sizeof(Row)), ahead = entries_ahead(row_bytes);
    PooledArray<Row> out(entries.columns * width);
    for_each_column(entries, width, threads, [&] {
      return [&, summed = Summed<Row, Row>(out.data(), width)](int64_t column, int64_t first, int64_t last) mutable {
        const Row* bound = best + column * width;
        summed.write(column, [&](T* to) {
          sum_pieces(first, last, to, width, [&](int64_t begin, int64_t end, T* ties) {
            std::fill(ties, ties + width, T{0});
            for (int64_t k = begin; k < end; ++k) {
              prefetch_entry(entries, k + ahead, from, row_bytes);
              vectorized<CountTies>(ties, from(entries.node_of(k)), bound, width);
            }
          });
          for (int64_t c = 0; c < width; ++c) to[c] = share_of(widen(gradient[column * width + c]), to[c]);
        });
      };
    });
    return to_tensor(std::move(out), {entries.columns, width}, dtype_of(x));
  });
}

// See torch_gnnscale.ops.extreme_backward, which checks the arguments.
Tensor extreme_backward(const Tensor& ptr, const Tensor& node, const std::optional<Tensor>& edge, int64_t num_edges,
                        const Tensor& x, const Tensor& extreme, const Tensor& share, int64_t threads) {
  return dispatch(node, x, "x", std::nullopt, [&](auto* id_tag, auto* row_tag, auto*) {
    using Id = std::remove_pointer_t<decltype(id_tag)>;
    using Row = std::remove_pointer_t<decltype(row_tag)>;
    using T = Wide<Row>;
    check_matrix("extreme", extreme, dtype_of(x));
    const Entries<const Id*> entries = entries_of(ptr, node, edge, extreme.size(0), num_edges, as_ids<Id>);
    check_matrix("x", x, dtype_of(x), entries.columns, extreme.size(1));
    check_matrix("share", share, dtype_of(x), extreme.size(0), x.size(1));
    const int64_t width = x.size(1);
    const Row* from = data_of<Row>(x);
    const Rows<Row> best = rows_of<Row>(extreme), shares = rows_of<Row>(share);
    const int64_t row_bytes = width * static_cast<int64_t>(sizeof(Row)), ahead = entries_ahead(row_bytes);
    PooledArray<Row> out(entries.columns * width);
    for_each_column(entries, width, threads, [&] {
      return [&, summed = Summed<Row, Row>(out.data(), width)](int64_t column, int64_t first, int64_t last) mutable {
        const Row* const row = from + column * width;
        summed.write(column, [&](T* to) {
          sum_pieces(first, last, to, width, [&](int64_t begin, int64_t end, T* sum) {
            std::fill(sum, sum + width, T{0});
            for (int64_t k = begin; k < end; ++k) {
              prefetch_entry(entries, k + ahead, best, row_bytes);
              prefetch_entry(entries, k + ahead, shares, row_bytes);
              const int64_t node = entries.node_of(k);
              vectorized<AddGivenBack>(sum, row, best(node), shares(node), width);
            }
          });
        });
      };
    });
    return to_tensor(std::move(out), {entries.columns, width}, dtype_of(x));
  });
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) {
  library.impl("aggregate", TORCH_BOX(&aggregate));
  library.impl("edge_dot", TORCH_BOX(&edge_dot));
  library.impl("share_of_extremes", TORCH_BOX(&share_of_extremes));
  library.impl("extreme_backward", TORCH_BOX(&extreme_backward));
}

}  // namespace
}  // namespace gnnscale
