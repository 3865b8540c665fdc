// Sums, means and extremes of neighbors' rows over a CSC, attention over the edges into each column, and the operators
// that their gradients need, on a GPU.
//
// Nothing is added by atomics, and the host waits for nothing, so that a malformed ptr and ids out of range are found
// by assertions on the GPU alone.
#undef NDEBUG  // the asserts below check what users pass
#include <torch/csrc/stable/ops.h>

#include <cassert>
#include <string>
#include <tuple>
#include <type_traits>

#include "../memory/room.h"
#include "aggregate_arguments.h"
#include "attention.h"
#include "items_cuda.h"
#include "slices.h"

namespace gnnscale {
namespace {

// What a reduction of the columns of `entries` writes, for rows like those of x; the result is of `dtype`.
template <typename Reduction>
Tensor reduced(const char* name, const Tensor& x, const Entries<EitherIds>& entries, Reduction reduction,
               ScalarType dtype) {
  const int64_t width = x.size(1), windows = entries.count > kPiece ? entries.windows() : 0;
  Tensor out = room_like(name, x, {entries.columns, width}, dtype);
  if (out.numel() == 0) return out;
  const ScalarType of_sums = std::is_same_v<typename Reduction::T, double> ? ScalarType::Double : ScalarType::Float;
  Tensor partial = room_like(name, x, {2 * windows, width}, of_sums);
  reduction.entries = entries;
  reduction.windows = windows;
  reduction.width = width;
  reduction.out = static_cast<typename Reduction::Out*>(out.mutable_data_ptr());
  reduction.partial = static_cast<typename Reduction::T*>(partial.mutable_data_ptr());
  for_items(name, x, (windows + entries.columns) * reduction.slices(), SumPieces<Reduction>{reduction});
  for_items(name, x, windows * reduction.slices(), JoinPieces<Reduction>{reduction});
  return out;
}

// Returns f(N as a type), the items of a slice: 16 bytes of a row if parts of rows, `width` items that follow each
// other from these addresses on, are aligned to so many items, else one item.
template <typename Row, typename F, typename... Items>
Tensor with_slice(int64_t width, F&& f, const Items*... rows) {
  constexpr int kMost = static_cast<int>(16 / sizeof(Row));
  const bool aligned = ((reinterpret_cast<uint64_t>(rows) % (kMost * sizeof(Items)) == 0) && ...);
  return aligned && width % kMost == 0 ? f(std::integral_constant<int, kMost>{}) : f(std::integral_constant<int, 1>{});
}

// See torch_gnnscale.ops.aggregate, which checks the arguments; `threads` is the CPU's.
Tensor aggregate(const Tensor& ptr, const Tensor& node, const std::optional<Tensor>& edge, int64_t num_edges,
                 const Tensor& x, const std::optional<Tensor>& more, const std::optional<Tensor>& weight,
                 const std::string& reduce, int64_t /*threads*/) {
  constexpr char kName[] = "aggregate";
  check_place(kName, x, {&ptr, &node, or_null(edge), or_null(more), or_null(weight)});
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const int64_t num_rows = x.size(0) + (more.has_value() ? more->size(0) : 0);
  const Entries<EitherIds> entries = entries_of(ptr, node, edge, num_rows, num_edges, ids_like(node));
  return dispatch_rows("weight", x, weight, [&](auto* row_tag, auto* out_tag) {
    using Row = std::remove_pointer_t<decltype(row_tag)>;
    using Out = std::remove_pointer_t<decltype(out_tag)>;
    const Rows<Row> from = rows_of<Row>(x, more);
    const int64_t heads = weight.has_value() ? weight->size(1) : 1, head = from.width / heads;
    const auto with = [&](auto n) {
      constexpr int N = decltype(n)::value;
      const auto sum = [&](auto reduction) {
        reduction.from = from;
        reduction.is_mean = reduce == "mean";
        return reduction;
      };
      if (weight.has_value()) {
        SumOfWeighted<Row, Out, N> reduction = sum(SumOfWeighted<Row, Out, N>{});
        reduction.weight = data_of<Out>(weight);
        reduction.heads = heads;
        reduction.head = head;
        return reduced(kName, x, entries, reduction, weight->scalar_type());
      }
      if (reduce == "max" || reduce == "min") {
        ExtremeOfRows<Row, N> reduction{};
        reduction.from = from;
        reduction.is_max = reduce == "max";
        return reduced(kName, x, entries, reduction, x.scalar_type());
      }
      return reduced(kName, x, entries, sum(SumOfRows<Row, Row, N>{}), x.scalar_type());
    };
    return with_slice<Row>(head, with, from.first, from.rest);
  });
}

// What edge_dot computes: for the heads of entries.
template <typename Row, typename Out>
struct DotOfHeads {
  Entries<EitherIds> entries;
  const Row* x;
  const Out* y;
  int64_t width, heads;
  Out* out;  // [edges, heads]
};

// The value of lane `lane` of the kDotSums lanes that a thread is one of.
template <typename T>
__device__ T of_lane(T value, int lane) {
  return __shfl_sync(~0u, value, lane, kDotSums);
}

// kDotSums lanes compute the product of one head of an entry, each one of its sums, so that they read their rows
// together. All lanes of a warp take part in the shuffles: those beyond the last item compute it, too.
template <typename Row, typename Out>
__global__ void __launch_bounds__(kThreads) dot_kernel(const __grid_constant__ DotOfHeads<Row, Out> task) {
  const int64_t thread = blockIdx.x * int64_t{kThreads} + threadIdx.x, items = task.entries.count * task.heads;
  const int64_t* const ptr = task.entries.ptr;
  assert(ptr[0] == 0 && ptr[task.entries.columns] == task.entries.count && "ptr is malformed");
  for (int64_t c = thread; c < task.entries.columns; c += gridDim.x * int64_t{kThreads}) {
    assert(ptr[c] <= ptr[c + 1] && "ptr is malformed");
  }
  const int lane = static_cast<int>(threadIdx.x) % kDotSums;
  const int64_t asked = thread / kDotSums, i = asked < items ? asked : items - 1;
  const int64_t entry = i / task.heads, h = i % task.heads, head = task.width / task.heads;
  const int64_t node = task.entries.node_of(entry), edge = task.entries.edge_of(entry);
  assert(task.entries.in_range(node, edge) && "an entry has a node or an edge that is out of range");
  const Row* const a = task.x + node * task.width + h * head;
  const Out* const b = task.y + task.entries.column_of(entry) * task.width + h * head;
  auto sum = dot_sum(a, b, head, lane);
  for (const int other : {4, 1, 2}) sum += of_lane(sum, (lane + other) % kDotSums);
  if (lane != 0 || asked >= items) return;
  add_rest_of_dot(a, b, head, sum);
  narrow(sum, task.out[edge * task.heads + h]);
}

// See torch_gnnscale.ops.edge_dot, which checks the arguments; `threads` is the CPU's.
Tensor edge_dot(const Tensor& ptr, const Tensor& node, const std::optional<Tensor>& edge, const Tensor& x,
                const Tensor& y, int64_t heads, int64_t /*threads*/) {
  constexpr char kName[] = "edge_dot";
  check_place(kName, x, {&ptr, &node, or_null(edge), &y});
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Entries<EitherIds> entries = entries_of(ptr, node, edge, x.size(0), kAllEdges, ids_like(node));
  return dispatch_rows("y", x, y, [&](auto* row_tag, auto* out_tag) {
    using Row = std::remove_pointer_t<decltype(row_tag)>;
    using Out = std::remove_pointer_t<decltype(out_tag)>;
    const int64_t width = x.size(1);
    const Row* from = data_of<Row>(x);
    const Out* other = data_of<Out>(y);
    Tensor out = room_like(kName, y, {entries.count, heads});
    if (out.numel() == 0) return out;
    const DotOfHeads<Row, Out> task{entries, from, other, width, heads, static_cast<Out*>(out.mutable_data_ptr())};
    const unsigned blocks = static_cast<unsigned>((entries.count * heads * kDotSums + kThreads - 1) / kThreads);
    dot_kernel<Row, Out><<<blocks, kThreads, 0, current_stream(x.get_device_index())>>>(task);
    check(kName, cudaGetLastError());
    return out;
  });
}

// See torch_gnnscale.ops.share_of_extremes, which checks the arguments; `threads` is the CPU's.
Tensor share_of_extremes(const Tensor& ptr, const Tensor& node, const Tensor& x, const Tensor& extreme,
                         const Tensor& grad, int64_t /*threads*/) {
  constexpr char kName[] = "share_of_extremes";
  check_place(kName, x, {&ptr, &node, &extreme, &grad});
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Entries<EitherIds> entries = entries_of(ptr, node, std::nullopt, x.size(0), kAllEdges, ids_like(node));
  return dispatch_rows(x, [&](auto* tag) {
    using Row = std::remove_pointer_t<decltype(tag)>;
    const Row *from = data_of<Row>(x), *best = data_of<Row>(extreme), *gradient = data_of<Row>(grad);
    const auto with = [&](auto n) {
      ShareOfExtremes<Row, decltype(n)::value> reduction{};
      reduction.x = from;
      reduction.extreme = best;
      reduction.grad = gradient;
      return reduced(kName, x, entries, reduction, x.scalar_type());
    };
    return with_slice<Row>(x.size(1), with, from, best, gradient);
  });
}

// See torch_gnnscale.ops.extreme_backward, which checks the arguments; `threads` is the CPU's.
Tensor extreme_backward(const Tensor& ptr, const Tensor& node, const std::optional<Tensor>& edge, int64_t num_edges,
                        const Tensor& x, const Tensor& extreme, const Tensor& share, int64_t /*threads*/) {
  constexpr char kName[] = "extreme_backward";
  check_place(kName, x, {&ptr, &node, or_null(edge), &extreme, &share});
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Entries<EitherIds> entries = entries_of(ptr, node, edge, extreme.size(0), num_edges, ids_like(node));
  return dispatch_rows(x, [&](auto* tag) {
    using Row = std::remove_pointer_t<decltype(tag)>;
    const Row *from = data_of<Row>(x), *best = data_of<Row>(extreme), *shares = data_of<Row>(share);
    const auto with = [&](auto n) {
      ExtremeBackward<Row, decltype(n)::value> reduction{};
      reduction.x = from;
      reduction.extreme = best;
      reduction.share = shares;
      return reduced(kName, x, entries, reduction, x.scalar_type());
    };
    return with_slice<Row>(x.size(1), with, from, best, shares);
  });
}

// Of attention: a thread computes a head of a column, whose entries it reads three times.

// Adds up f(entry) over a column's entries, kPiece at a time.
template <typename T, typename F>
GNNSCALE_HD T sum_of_entries(int64_t first, int64_t last, F&& f) {
  T total{0};
  for (int64_t begin = first; begin < last; begin += kPiece) {
    const int64_t end = begin + kPiece < last ? begin + kPiece : last;
    T sum{0};
#pragma unroll 1
    for (int64_t k = begin; k < end; ++k) sum += f(k);
    total += sum;
  }
  return total;
}

template <typename T>
struct Attend {
  Entries<EitherIds> entries;
  AttentionScores<T> scores;
  T* weight;  // [entries, heads]

  GNNSCALE_HD void operator()(int64_t i) const {
    const int64_t heads = scores.heads, column = i / heads, head = i % heads;
    const int64_t first = entries.ptr[column], last = entries.ptr[column + 1];
    assert(first >= 0 && first <= last && last <= entries.count);
    T most{0};
    for (int64_t k = first; k < last; ++k) {
      const int64_t node = entries.node_of(k);
      assert(entries.in_range(node, k));
      const T score = leaky(scores.of(k, node, column, head), scores.slope);
      weight[k * heads + head] = score;
      most = k == first ? score : larger(most, score);
    }
    const T total = sum_of_entries<T>(first, last, [&](int64_t k) {
      return weight[k * heads + head] = exp_below_one(weight[k * heads + head] - most);
    });
#pragma unroll 1  // nvcc 12 spills registers for four divisions of doubles at a time
    for (int64_t k = first; k < last; ++k) weight[k * heads + head] /= total;
  }
};

template <typename T>
struct AttendBackward {
  Entries<EitherIds> entries;
  AttentionScores<T> scores;
  const T *weight, *grad;  // [entries, heads]
  T *of_edges, *sums;      // [entries, heads], [columns, heads]

  GNNSCALE_HD void operator()(int64_t i) const {
    const int64_t heads = scores.heads, column = i / heads, head = i % heads;
    const int64_t first = entries.ptr[column], last = entries.ptr[column + 1];
    assert(first >= 0 && first <= last && last <= entries.count);
    const T mean = sum_of_entries<T>(
        first, last, [&](int64_t k) { return product(weight[k * heads + head], grad[k * heads + head]); });
    sums[i] = sum_of_entries<T>(first, last, [&](int64_t k) {
      const int64_t node = entries.node_of(k), at = k * heads + head;
      assert(entries.in_range(node, k));
      const T score = scores.of(k, node, column, head);
      return of_edges[at] = score_gradient(weight[at], grad[at], mean, score, scores.slope);
    });
  }
};

// Calls f(entries, scores) for what edge_attention reads, on the device of of_sources.
template <typename F>
auto with_scores(const char* name, const Tensor& ptr, const Tensor& node, const Tensor& of_sources,
                 const std::optional<Tensor>& of_columns, const std::optional<Tensor>& of_entries, double slope,
                 F&& f) {
  check_place(name, of_sources, {&ptr, &node, or_null(of_columns), or_null(of_entries)});
  const torch::stable::accelerator::DeviceGuard guard(of_sources.get_device_index());
  return dispatch_attention(ptr, node, of_sources, of_columns, of_entries, slope, [&](auto scores) {
    return f(entries_of(ptr, node, std::nullopt, of_sources.size(0), kAllEdges, ids_like(node)), scores);
  });
}

// Numbers like those of x, of as many heads.
Tensor of_heads(const char* name, const Tensor& x, int64_t count) { return room_like(name, x, {count, x.size(1)}); }

// See torch_gnnscale.ops.edge_attention, which checks the arguments; `threads` is the CPU's.
Tensor edge_attention(const Tensor& ptr, const Tensor& node, const Tensor& of_sources,
                      const std::optional<Tensor>& of_columns, const std::optional<Tensor>& of_entries, double slope,
                      int64_t /*threads*/) {
  constexpr char kName[] = "edge_attention";
  return with_scores(kName, ptr, node, of_sources, of_columns, of_entries, slope,
                     [&](const auto& entries, const auto& scores) {
                       using T = std::remove_const_t<decltype(scores.slope)>;
                       Tensor out = of_heads(kName, of_sources, node.numel());
                       const Attend<T> attend{entries, scores, static_cast<T*>(out.mutable_data_ptr())};
                       for_items(kName, of_sources, entries.columns * scores.heads, attend);
                       return out;
                     });
}

// See torch_gnnscale.ops.edge_attention_backward, which checks the arguments; `threads` is the CPU's.
std::tuple<Tensor, Tensor> edge_attention_backward(const Tensor& ptr, const Tensor& node, const Tensor& of_sources,
                                                   const std::optional<Tensor>& of_columns,
                                                   const std::optional<Tensor>& of_entries, double slope,
                                                   const Tensor& weight, const Tensor& grad, int64_t /*threads*/) {
  constexpr char kName[] = "edge_attention_backward";
  check_place(kName, of_sources, {&weight, &grad});
  return with_scores(kName, ptr, node, of_sources, of_columns, of_entries, slope,
                     [&](const auto& entries, const auto& scores) {
                       using T = std::remove_const_t<decltype(scores.slope)>;
                       Tensor of_edges = of_heads(kName, of_sources, node.numel());
                       Tensor sums = of_heads(kName, of_sources, ptr.numel() - 1);
                       const AttendBackward<T> attend{entries,
                                                      scores,
                                                      data_of<T>(weight),
                                                      data_of<T>(grad),
                                                      static_cast<T*>(of_edges.mutable_data_ptr()),
                                                      static_cast<T*>(sums.mutable_data_ptr())};
                       for_items(kName, of_sources, entries.columns * scores.heads, attend);
                       return std::tuple{of_edges, sums};
                     });
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CUDA, library) {
  library.impl("aggregate", TORCH_BOX(&aggregate));
  library.impl("edge_dot", TORCH_BOX(&edge_dot));
  library.impl("share_of_extremes", TORCH_BOX(&share_of_extremes));
  library.impl("extreme_backward", TORCH_BOX(&extreme_backward));
  library.impl("edge_attention", TORCH_BOX(&edge_attention));
  library.impl("edge_attention_backward", TORCH_BOX(&edge_attention_backward));
}

}  // namespace
}  // namespace gnnscale
