// Attention over the edges into each column, on a GPU: a thread computes a head of a column, whose entries it reads
// three times. The host waits for nothing, so that ids out of range are found by assertions on the GPU alone.
#undef NDEBUG  // the asserts below check what users pass
#include <torch/csrc/stable/ops.h>

#include <cassert>
#include <tuple>

#include "aggregate_arguments.h"
#include "attention.h"
#include "items_cuda.h"

namespace gnnscale {
namespace {

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
Tensor of_heads(const Tensor& x, int64_t count) { return torch::stable::new_empty(x, {count, x.size(1)}); }

// See torch_gnnscale.ops.edge_attention, which checks the arguments; `threads` is the CPU's.
Tensor edge_attention(const Tensor& ptr, const Tensor& node, const Tensor& of_sources,
                      const std::optional<Tensor>& of_columns, const std::optional<Tensor>& of_entries, double slope,
                      int64_t /*threads*/) {
  constexpr char kName[] = "edge_attention";
  return with_scores(kName, ptr, node, of_sources, of_columns, of_entries, slope,
                     [&](const auto& entries, const auto& scores) {
                       using T = std::remove_const_t<decltype(scores.slope)>;
                       Tensor out = of_heads(of_sources, node.numel());
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
                       Tensor of_edges = of_heads(of_sources, node.numel());
                       Tensor sums = of_heads(of_sources, ptr.numel() - 1);
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
  library.impl("edge_attention", TORCH_BOX(&edge_attention));
  library.impl("edge_attention_backward", TORCH_BOX(&edge_attention_backward));
}

}  // namespace
}  // namespace gnnscale
