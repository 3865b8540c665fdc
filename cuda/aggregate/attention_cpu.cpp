// Attention over the edges into each column. Each column is computed by one thread, a head at a time where heads are
// added up, all heads together elsewhere.
#include <algorithm>
#include <tuple>
#include <vector>

#include "../simd_cpu.h"
#include "aggregate_arguments.h"
#include "attention.h"
#include "columns_cpu.h"

namespace gnnscale {
namespace {

// Writes the scores of a column's entries [first, last), [entries, heads]; they are made leaky if kLeaky. `own`: the
// column's, or null.
template <int kHeads, bool kLeaky>
struct WriteScores {
  template <typename Ids, typename T>
  GNNSCALE_INLINE static void run(const Entries<Ids>* entries, const AttentionScores<T>* scores, const T* own,
                                  int64_t first, int64_t last, T* __restrict to) {
    const int64_t heads = kHeads > 0 ? kHeads : scores->heads, count = last - first, ahead = 16;
    const Rows<T> rows{scores->of_sources, nullptr, entries->num_nodes, heads};
    for (int64_t k = 0; k < count; ++k) {
      prefetch_entry(*entries, first + k + ahead, rows, 1);
      const T* const from = rows(entries->node_of(first + k));
      for (int64_t h = 0; h < heads; ++h) to[k * heads + h] = from[h];
    }
    if (own != nullptr) {
      for (int64_t k = 0; k < count; ++k) {
        for (int64_t h = 0; h < heads; ++h) to[k * heads + h] += own[h];
      }
    }
    if (scores->of_entries != nullptr) {
      const T* const of_entries = scores->of_entries + first * heads;
      for (int64_t i = 0; i < count * heads; ++i) to[i] += of_entries[i];
    }
    if (kLeaky) {
      const T slope = scores->slope;
      for (int64_t i = 0; i < count * heads; ++i) to[i] = leaky(to[i], slope);
    }
  }
};

// Writes the sums of f(i) over a column's entries, of each head: [heads]; i counts in [count, heads]. kPiece entries
// at a time, as a GPU adds them. `piece`: a row.
template <typename T, typename F>
GNNSCALE_INLINE void sum_heads(int64_t count, int64_t heads, T* __restrict piece, T* __restrict total, F&& f) {
  for (int64_t h = 0; h < heads; ++h) total[h] = T{0};
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t end = std::min(begin + kPiece, count);
    for (int64_t h = 0; h < heads; ++h) piece[h] = T{0};
    for (int64_t k = begin; k < end; ++k) {
      for (int64_t h = 0; h < heads; ++h) piece[h] += f(k * heads + h);
    }
    for (int64_t h = 0; h < heads; ++h) total[h] += piece[h];
  }
}

// Makes leaky scores of a column, [count, heads], weights. `held`: three rows.
template <int kHeads>
struct Soften {
  template <typename T>
  GNNSCALE_INLINE static void run(T* __restrict weight, int64_t count, int64_t given_heads, T* __restrict held) {
    const int64_t heads = kHeads > 0 ? kHeads : given_heads, items = count * heads;
    T *const most = held, *const total = held + heads, *const piece = total + heads;
    for (int64_t h = 0; h < heads; ++h) most[h] = weight[h];
    for (int64_t k = 1; k < count; ++k) {
      for (int64_t h = 0; h < heads; ++h) most[h] = larger(most[h], weight[k * heads + h]);
    }
    for (int64_t k = 0; k < count; ++k) {
      for (int64_t h = 0; h < heads; ++h) weight[k * heads + h] -= most[h];
    }
    for (int64_t i = 0; i < items; ++i) weight[i] = exp_below_one(weight[i]);
    sum_heads<T>(count, heads, piece, total, [&](int64_t i) { return weight[i]; });
    for (int64_t k = 0; k < count; ++k) {
      for (int64_t h = 0; h < heads; ++h) weight[k * heads + h] /= total[h];
    }
  }
};

// Makes scores of a column, [count, heads], their gradients; of_column: the sums of these, [heads]. `held`: two rows.
template <int kHeads>
struct GiveBack {
  template <typename T>
  GNNSCALE_INLINE static void run(T* __restrict score, const T* __restrict weight, const T* __restrict grad,
                                  int64_t count, int64_t given_heads, T slope, T* __restrict held,
                                  T* __restrict of_column) {
    const int64_t heads = kHeads > 0 ? kHeads : given_heads;
    T *const mean = held, *const piece = held + heads;
    sum_heads<T>(count, heads, piece, mean, [&](int64_t i) { return product(weight[i], grad[i]); });
    for (int64_t k = 0; k < count; ++k) {
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t i = k * heads + h;
        score[i] = score_gradient(weight[i], grad[i], mean[h], score[i], slope);
      }
    }
    sum_heads<T>(count, heads, piece, of_column, [&](int64_t i) { return score[i]; });
  }
};

// Returns f(H as a type) for a number of heads that is usual, else for 0.
template <typename F>
auto with_heads(int64_t heads, F&& f) {
  switch (heads) {
    case 1:
      return f(std::integral_constant<int, 1>{});
    case 2:
      return f(std::integral_constant<int, 2>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
    case 8:
      return f(std::integral_constant<int, 8>{});
    default:
      return f(std::integral_constant<int, 0>{});
  }
}

// Returns f(entries, scores, H as a type) for what edge_attention reads.
template <typename F>
auto with_scores(const Tensor& ptr, const Tensor& node, const Tensor& of_sources,
                 const std::optional<Tensor>& of_columns, const std::optional<Tensor>& of_entries, double slope,
                 F&& f) {
  return dispatch_attention(ptr, node, of_sources, of_columns, of_entries, slope, [&](auto scores) {
    return dispatch_index(dtype_of(node), [&](auto* id_tag) {
      using Id = std::remove_pointer_t<decltype(id_tag)>;
      const auto as_these = [](const void* address) { return static_cast<const Id*>(address); };
      const auto entries = entries_of(ptr, node, std::nullopt, of_sources.size(0), kAllEdges, as_these);
      STD_TORCH_CHECK(entries.ptr[0] == 0 && entries.ptr[entries.columns] == entries.count, "ptr: expected 0 to ",
                      entries.count, ", found ", entries.ptr[0], " to ", entries.ptr[entries.columns]);
      return with_heads(scores.heads, [&](auto heads) { return f(entries, scores, heads); });
    });
  });
}

// See torch_gnnscale.ops.edge_attention, which checks the arguments.
Tensor edge_attention(const Tensor& ptr, const Tensor& node, const Tensor& of_sources,
                      const std::optional<Tensor>& of_columns, const std::optional<Tensor>& of_entries, double slope,
                      int64_t threads) {
  return with_scores(ptr, node, of_sources, of_columns, of_entries, slope,
                     [&](const auto& entries, const auto& scores, auto of_heads) {
                       using T = decltype(scores.slope);
                       constexpr int kHeads = decltype(of_heads)::value;
                       const int64_t heads = scores.heads;
                       PooledArray<T> out(entries.count * heads);
                       for_each_column(entries, heads, threads, [&] {
                         return [&, held = std::vector<T>(static_cast<size_t>(3 * heads))](
                                    int64_t column, int64_t first, int64_t last) mutable {
                           if (first == last) return;
                           T* const to = out.data() + first * heads;
                           const T* const own =
                               scores.of_columns == nullptr ? nullptr : scores.of_columns + column * heads;
                           vectorized<WriteScores<kHeads, true>>(&entries, &scores, own, first, last, to);
                           vectorized<Soften<kHeads>>(to, last - first, heads, held.data());
                         };
                       });
                       return to_tensor(std::move(out), {entries.count, heads}, dtype_of(of_sources));
                     });
}

// See torch_gnnscale.ops.edge_attention_backward, which checks the arguments.
std::tuple<Tensor, Tensor> edge_attention_backward(const Tensor& ptr, const Tensor& node, const Tensor& of_sources,
                                                   const std::optional<Tensor>& of_columns,
                                                   const std::optional<Tensor>& of_entries, double slope,
                                                   const Tensor& weight, const Tensor& grad, int64_t threads) {
  return with_scores(ptr, node, of_sources, of_columns, of_entries, slope,
                     [&](const auto& entries, const auto& scores, auto of_heads) {
                       using T = decltype(scores.slope);
                       constexpr int kHeads = decltype(of_heads)::value;
                       const int64_t heads = scores.heads;
                       check_matrix("weight", weight, dtype_of(of_sources), entries.count, heads);
                       check_matrix("grad", grad, dtype_of(of_sources), entries.count, heads);
                       PooledArray<T> of_edges(entries.count * heads), sums(entries.columns * heads);
                       const T *const weights = data_of<T>(weight), *const grads = data_of<T>(grad);
                       for_each_column(entries, heads, threads, [&] {
                         return [&, held = std::vector<T>(static_cast<size_t>(2 * heads))](
                                    int64_t column, int64_t first, int64_t last) mutable {
                           const int64_t at = first * heads;
                           T* const to = of_edges.data() + at;
                           const T* const own =
                               scores.of_columns == nullptr ? nullptr : scores.of_columns + column * heads;
                           vectorized<WriteScores<kHeads, false>>(&entries, &scores, own, first, last, to);
                           vectorized<GiveBack<kHeads>>(to, weights + at, grads + at, last - first, heads, scores.slope,
                                                        held.data(), sums.data() + column * heads);
                         };
                       });
                       return std::tuple{to_tensor(std::move(of_edges), {entries.count, heads}, dtype_of(of_sources)),
                                         to_tensor(std::move(sums), {entries.columns, heads}, dtype_of(of_sources))};
                     });
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) {
  library.impl("edge_attention", TORCH_BOX(&edge_attention));
  library.impl("edge_attention_backward", TORCH_BOX(&edge_attention_backward));
}

}  // namespace
}  // namespace gnnscale
