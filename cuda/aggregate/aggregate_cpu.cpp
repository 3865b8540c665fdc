// Sums, means and extremes of neighbors' rows over a CSC, and the operators that their gradients need.
//
// Each column is computed by one thread, which reads its entries in stored order, so no result depends on the number of
// threads. Entry k reads the row of node[k] and the weights of edge[k]. Sorted by source, with destinations as nodes,
// the same entries are the transposed graph: the gradient of a sum is the same sum over it.
#include <atomic>
#include <limits>
#include <optional>
#include <string>

#include "../memory/tensor.h"
#include "../prefetch.h"

namespace gnnscale {
namespace {

constexpr int64_t kEntriesAhead = 4;      // rows to read are prefetched this many entries ahead
constexpr int64_t kColumnsAhead = 2;      // rows to write, this many columns ahead
constexpr int64_t kGrainItems = 1 << 15;  // a task adds at least this many numbers

constexpr int64_t kAllEdges = std::numeric_limits<int64_t>::max();

template <typename Id>
struct Entries {
  const int64_t* ptr;  // [columns + 1]
  const Id *node, *edge;
  int64_t columns, count, node_stride, edge_stride;
  int64_t num_nodes, num_edges;  // a column ends before its first entry of an edge >= num_edges

  int64_t node_of(int64_t entry) const { return static_cast<int64_t>(node[entry * node_stride]); }
  int64_t edge_of(int64_t entry) const {
    return edge == nullptr ? entry : static_cast<int64_t>(edge[entry * edge_stride]);
  }
};

// Calls f(column, first entry, end) for every column, in parallel; tasks have about equally many entries. Throws if ptr
// is malformed, or a node or edge is out of range.
template <typename Id, typename F>
void for_each_column(const Entries<Id>& entries, int64_t items_per_entry, int64_t threads, F&& f) {
  const int64_t* ptr = entries.ptr;
  STD_TORCH_CHECK(entries.columns == 0 || (ptr[0] >= 0 && ptr[entries.columns] <= entries.count),
                  "ptr: expected entries in [0, ", entries.count, "], found ", ptr[0], " to ", ptr[entries.columns]);
  for (int64_t i = 0; i < entries.columns; ++i) {
    STD_TORCH_CHECK(ptr[i] <= ptr[i + 1], "ptr[", i + 1, "] = ", ptr[i + 1], " is less than ptr[", i, "] = ", ptr[i]);
  }
  const int64_t first = entries.columns == 0 ? 0 : ptr[0];
  const int64_t work = (entries.columns == 0 ? 0 : ptr[entries.columns] - first) + entries.columns;
  const int64_t tasks = num_tasks(work * items_per_entry, kGrainItems, threads);
  // The work of a column is the number of its entries, plus one.
  const auto boundary = [&](int64_t task) {
    const int64_t target = work * task / tasks;
    int64_t low = 0, high = entries.columns;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (ptr[middle] - first + middle < target) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  };
  std::atomic<int64_t> corrupt{-1};
  run_tasks(tasks, [&](int64_t task) {
    const int64_t to = task + 1 == tasks ? entries.columns : boundary(task + 1);
    for (int64_t i = boundary(task); i < to; ++i) {
      int64_t end = ptr[i];
      for (; end < ptr[i + 1] && entries.edge_of(end) < entries.num_edges; ++end) {
        const uint64_t node = static_cast<uint64_t>(entries.node_of(end));
        const uint64_t edge = static_cast<uint64_t>(entries.edge_of(end));
        if (node >= static_cast<uint64_t>(entries.num_nodes) || edge >= static_cast<uint64_t>(entries.count)) {
          corrupt.store(end);
          return;
        }
      }
      f(i, ptr[i], end);
    }
  });
  if (const int64_t k = corrupt.load(); k >= 0) {
    STD_TORCH_CHECK(false, "entry ", k, ": expected a node below ", entries.num_nodes, " and an edge below ",
                    entries.count, ", found ", entries.node_of(k), " and ", entries.edge_of(k));
  }
}

// The rows of one table, and after them those of another one.
template <typename T>
struct Rows {
  const T *first, *rest;
  int64_t count, width;  // rows of the first table

  const T* operator()(int64_t i) const { return i < count ? first + i * width : rest + (i - count) * width; }
};

template <typename T>
void add(T* __restrict out, const T* __restrict x, int64_t width) {
  for (int64_t c = 0; c < width; ++c) out[c] += x[c];
}

template <typename T>
void add_scaled(T* __restrict out, const T* __restrict x, T scale, int64_t width) {
  for (int64_t c = 0; c < width; ++c) out[c] += scale * x[c];
}

template <bool kMax, typename T>
void keep_extreme(T* __restrict out, const T* __restrict x, int64_t width) {
  for (int64_t c = 0; c < width; ++c) out[c] = (kMax ? x[c] > out[c] : x[c] < out[c]) || x[c] != x[c] ? x[c] : out[c];
}

template <typename T>
T dot(const T* a, const T* b, int64_t width) {
  constexpr int64_t kSums = 8;
  T sums[kSums] = {};
  int64_t c = 0;
  for (; c + kSums <= width; c += kSums) {
    for (int64_t s = 0; s < kSums; ++s) sums[s] += a[c + s] * b[c + s];
  }
  T sum = ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
  for (; c < width; ++c) sum += a[c] * b[c];
  return sum;
}

template <typename Id>
Entries<Id> entries_of(const Tensor& ptr, const Tensor& node, const std::optional<Tensor>& edge, int64_t num_nodes,
                       int64_t num_edges) {
  return {static_cast<const int64_t*>(ptr.const_data_ptr()),
          static_cast<const Id*>(node.const_data_ptr()),
          edge.has_value() ? static_cast<const Id*>(edge->const_data_ptr()) : nullptr,
          ptr.numel() - 1,
          node.numel(),
          node.stride(0),
          edge.has_value() ? edge->stride(0) : 0,
          num_nodes,
          num_edges};
}

// Calls f with null pointers of the types of node ids and of x.
template <typename F>
Tensor dispatch(const Tensor& node, const Tensor& x, F&& f) {
  return dispatch_index(node.scalar_type(), [&](auto* id) {
    STD_TORCH_CHECK(x.scalar_type() == ScalarType::Float || x.scalar_type() == ScalarType::Double,
                    "expected float32 or float64 rows");
    if (x.scalar_type() == ScalarType::Float) return f(id, static_cast<float*>(nullptr));
    return f(id, static_cast<double*>(nullptr));
  });
}

// See torch_gnnscale.ops.aggregate, which checks the arguments.
Tensor aggregate(const Tensor& ptr, const Tensor& node, const std::optional<Tensor>& edge, int64_t num_edges,
                 const Tensor& x, const std::optional<Tensor>& more, const std::optional<Tensor>& weight,
                 const std::string& reduce, int64_t threads) {
  return dispatch(node, x, [&](auto* id_tag, auto* item_tag) {
    using Id = std::remove_pointer_t<decltype(id_tag)>;
    using T = std::remove_pointer_t<decltype(item_tag)>;
    const int64_t num_rows = x.size(0) + (more.has_value() ? more->size(0) : 0);
    const Entries<Id> entries = entries_of<Id>(ptr, node, edge, num_rows, num_edges);
    const int64_t width = x.size(1), heads = weight.has_value() ? weight->size(1) : 1, head = width / heads;
    const Rows<T> from{static_cast<const T*>(x.const_data_ptr()),
                       more.has_value() ? static_cast<const T*>(more->const_data_ptr()) : nullptr, x.size(0), width};
    const T* weights = weight.has_value() ? static_cast<const T*>(weight->const_data_ptr()) : nullptr;
    const bool is_mean = reduce == "mean", is_max = reduce == "max", is_min = reduce == "min";
    const int64_t row_bytes = width * static_cast<int64_t>(sizeof(T));
    PooledArray<T> out(entries.columns * width);
    for_each_column(entries, width, threads, [&](int64_t column, int64_t first, int64_t last) {
      T* to = out.data() + column * width;
      prefetch_lines_to_write(to + kColumnsAhead * width, row_bytes);
      if (first == last || weights != nullptr) std::fill(to, to + width, T{0});
      for (int64_t k = first; k < last; ++k) {
        if (k + kEntriesAhead < entries.count) {
          const int64_t ahead = entries.node_of(k + kEntriesAhead);
          if (static_cast<uint64_t>(ahead) < static_cast<uint64_t>(entries.num_nodes)) {
            prefetch_lines(from(ahead), row_bytes);
          }
        }
        const T* row = from(entries.node_of(k));
        if (weights != nullptr) {
          const T* scale = weights + entries.edge_of(k) * heads;
          for (int64_t h = 0; h < heads; ++h) add_scaled(to + h * head, row + h * head, scale[h], head);
        } else if (k == first) {
          std::copy(row, row + width, to);
        } else if (is_max) {
          keep_extreme<true>(to, row, width);
        } else if (is_min) {
          keep_extreme<false>(to, row, width);
        } else {
          add(to, row, width);
        }
      }
      if (is_mean && last - first > 1) {
        for (int64_t c = 0; c < width; ++c) to[c] /= static_cast<T>(last - first);
      }
    });
    return to_tensor(std::move(out), {entries.columns, width}, x.scalar_type());
  });
}

// See torch_gnnscale.ops.edge_dot, which checks the arguments.
Tensor edge_dot(const Tensor& ptr, const Tensor& node, const std::optional<Tensor>& edge, const Tensor& x,
                const Tensor& y, int64_t heads, int64_t threads) {
  return dispatch(node, x, [&](auto* id_tag, auto* item_tag) {
    using Id = std::remove_pointer_t<decltype(id_tag)>;
    using T = std::remove_pointer_t<decltype(item_tag)>;
    const Entries<Id> entries = entries_of<Id>(ptr, node, edge, x.size(0), kAllEdges);
    STD_TORCH_CHECK(entries.ptr[0] == 0 && entries.ptr[entries.columns] == entries.count, "ptr: expected 0 to ",
                    entries.count, ", found ", entries.ptr[0], " to ", entries.ptr[entries.columns]);
    const int64_t width = x.size(1), head = width / heads;
    const T *from = static_cast<const T*>(x.const_data_ptr()), *other = static_cast<const T*>(y.const_data_ptr());
    PooledArray<T> out(entries.count * heads);
    for_each_column(entries, width, threads, [&](int64_t column, int64_t first, int64_t last) {
      for (int64_t k = first; k < last; ++k) {
        const T* row = from + entries.node_of(k) * width;
        T* to = out.data() + entries.edge_of(k) * heads;
        for (int64_t h = 0; h < heads; ++h) to[h] = dot(row + h * head, other + column * width + h * head, head);
      }
    });
    return to_tensor(std::move(out), {entries.count, heads}, x.scalar_type());
  });
}

// See torch_gnnscale.ops.share_of_extremes, which checks the arguments.
Tensor share_of_extremes(const Tensor& ptr, const Tensor& node, const Tensor& x, const Tensor& extreme,
                         const Tensor& grad, int64_t threads) {
  return dispatch(node, x, [&](auto* id_tag, auto* item_tag) {
    using Id = std::remove_pointer_t<decltype(id_tag)>;
    using T = std::remove_pointer_t<decltype(item_tag)>;
    const Entries<Id> entries = entries_of<Id>(ptr, node, std::nullopt, x.size(0), kAllEdges);
    const int64_t width = x.size(1);
    const T *from = static_cast<const T*>(x.const_data_ptr()), *best = static_cast<const T*>(extreme.const_data_ptr());
    const T* gradient = static_cast<const T*>(grad.const_data_ptr());
    PooledArray<T> out(entries.columns * width);
    for_each_column(entries, width, threads, [&](int64_t column, int64_t first, int64_t last) {
      T* to = out.data() + column * width;
      const T* bound = best + column * width;
      std::fill(to, to + width, T{0});
      for (int64_t k = first; k < last; ++k) {
        const T* row = from + entries.node_of(k) * width;
        for (int64_t c = 0; c < width; ++c) to[c] += row[c] == bound[c] ? T{1} : T{0};
      }
      for (int64_t c = 0; c < width; ++c) to[c] = to[c] > 0 ? gradient[column * width + c] / to[c] : T{0};
    });
    return to_tensor(std::move(out), {entries.columns, width}, x.scalar_type());
  });
}

// See torch_gnnscale.ops.extreme_backward, which checks the arguments.
Tensor extreme_backward(const Tensor& ptr, const Tensor& node, const std::optional<Tensor>& edge, int64_t num_edges,
                        const Tensor& x, const Tensor& extreme, const Tensor& share, int64_t threads) {
  return dispatch(node, x, [&](auto* id_tag, auto* item_tag) {
    using Id = std::remove_pointer_t<decltype(id_tag)>;
    using T = std::remove_pointer_t<decltype(item_tag)>;
    const Entries<Id> entries = entries_of<Id>(ptr, node, edge, extreme.size(0), num_edges);
    const int64_t width = x.size(1);
    const T *from = static_cast<const T*>(x.const_data_ptr()), *best = static_cast<const T*>(extreme.const_data_ptr());
    const T* shares = static_cast<const T*>(share.const_data_ptr());
    PooledArray<T> out(entries.columns * width);
    for_each_column(entries, width, threads, [&](int64_t column, int64_t first, int64_t last) {
      T* to = out.data() + column * width;
      const T* row = from + column * width;
      std::fill(to, to + width, T{0});
      for (int64_t k = first; k < last; ++k) {
        const int64_t i = entries.node_of(k) * width;
        for (int64_t c = 0; c < width; ++c) to[c] += row[c] == best[i + c] ? shares[i + c] : T{0};
      }
    });
    return to_tensor(std::move(out), {entries.columns, width}, x.scalar_type());
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
