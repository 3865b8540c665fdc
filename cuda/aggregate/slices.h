// What a thread of a GPU does for the operators on columns. It computes a slice of a row, N items side by side, so a
// row is read by as many threads together as it has slices.
//
// The pieces of columns (see columns.h) are summed at once, by SumPieces. A column that is a single piece is written to
// the output. The pieces of other columns are written to rows of `partial`: a later piece to the row of the window in
// which it begins, a first piece to a further row of the window in which the second one begins. JoinPieces then adds
// them up.
//
// A reduction says what is summed. It is an object with
//
//   State begin(int64_t column, int64_t c)                    what the sum begins with, in .sum
//   Term read(int64_t node, int64_t edge, int64_t c)          what is read for an entry
//   void add(State&, const Term&)                             adds that
//   void join(State&, const Slice& sum)                       adds the sum of a later piece
//   Slice end(State, int64_t column, int64_t c, int64_t entries)   the items of the output, before they are rounded
#pragma once

#undef NDEBUG  // the asserts below check what users pass
#include <cassert>

#include "columns.h"

namespace gnnscale {

constexpr int kEntriesAtOnce = 4;  // whose ids, and then rows, a thread asks for together

// Where all reductions read and write: rows of `RowItem`, a result of `OutItem`.
template <typename RowItem, typename OutItem, int N>
struct Columns {
  using Row = RowItem;
  using Out = OutItem;
  using T = Wide<Row>;
  using Slice = Words<T, N>;
  static constexpr int kItems = N;

  Entries<EitherIds> entries;
  int64_t windows;  // 0 if no column is so long that it has later pieces
  int64_t width;
  Out* out;    // [columns, width]
  T* partial;  // [2, windows, width]: of later pieces, and of first ones that have a second one

  GNNSCALE_HD int64_t slices() const { return width / N; }
  GNNSCALE_HD static Slice all(T value) {
    Slice slice;
    for (int n = 0; n < N; ++n) slice.item[n] = value;
    return slice;
  }
};

template <int N, typename T>
GNNSCALE_HD void store(T* to, const Words<T, N>& words) {
  *reinterpret_cast<Words<T, N>*>(to) = words;
}

template <int N, typename T, typename Out>
GNNSCALE_HD void store_narrowed(Out* to, const Words<T, N>& words) {
  Words<Out, N> narrowed;
  for (int n = 0; n < N; ++n) narrow(words.item[n], narrowed.item[n]);
  store(to, narrowed);
}

template <int N, typename Row>
GNNSCALE_HD Words<Wide<Row>, N> wide_at(const Row* from) {
  const Words<Row, N> row = words_at<N>(from);
  Words<Wide<Row>, N> wide;
  for (int n = 0; n < N; ++n) wide.item[n] = widen(row.item[n]);
  return wide;
}

// Where a column's second piece begins: the number of the window. The column's entries begin at `first`.
GNNSCALE_HD int64_t window_of_second(int64_t first) { return first / kPiece + 1; }

// Adds up the entries [begin, end) but for those of edges >= num_edges, which are the last ones; returns how many it
// added, or -1 if an id is out of range.
template <typename Reduction>
GNNSCALE_HD int64_t add_entries(const Reduction& reduction, int64_t begin, int64_t end, int64_t c,
                                typename Reduction::State& state) {
  const Entries<EitherIds>& entries = reduction.entries;
  const bool reads_edges = Reduction::kReadsEdges || entries.num_edges < entries.count;
  for (int64_t k = begin; k < end; k += kEntriesAtOnce) {
    int count = static_cast<int>(end - k < kEntriesAtOnce ? end - k : kEntriesAtOnce);
    int64_t node[kEntriesAtOnce], edge[kEntriesAtOnce];
    typename Reduction::Term term[kEntriesAtOnce];
#pragma unroll
    for (int u = 0; u < kEntriesAtOnce; ++u) {
      if (u < count) {
        node[u] = entries.node_of(k + u);
        edge[u] = reads_edges ? entries.edge_of(k + u) : 0;
      }
    }
    bool inside = true;
#pragma unroll
    for (int u = 0; u < kEntriesAtOnce; ++u) {
      if (u < count && edge[u] >= entries.num_edges) count = u;
      if (u < count) inside &= entries.in_range(node[u], edge[u]);
    }
    if (!inside) return -1;
#pragma unroll
    for (int u = 0; u < kEntriesAtOnce; ++u) {
      if (u < count) term[u] = reduction.read(node[u], edge[u], c);
    }
#pragma unroll
    for (int u = 0; u < kEntriesAtOnce; ++u) {
      if (u < count) reduction.add(state, term[u]);
    }
    if (count < kEntriesAtOnce) return k + count - begin;
  }
  return end - begin;
}

// Items are the slices of later pieces, by windows, and of first pieces, by columns.
template <typename Reduction>
struct SumPieces {
  Reduction reduction;

  GNNSCALE_HD void operator()(int64_t i) const {
    const int64_t slices = reduction.slices(), c = i % slices * Reduction::kItems, window = i / slices;
    const int64_t column = window - reduction.windows;
    const bool is_first = column >= 0;
    const Piece piece = is_first ? reduction.entries.first_piece(column) : reduction.entries.later_piece(window);
    if (piece.column < 0) return;
    const int64_t last = reduction.entries.ptr[piece.column + 1];
    assert(reduction.entries.ptr[piece.column] >= 0 && reduction.entries.ptr[piece.column] <= last &&
           last <= reduction.entries.count && "ptr is malformed");
    // The row of `partial`; -1: the column is whole.
    const int64_t row = !is_first ? window : piece.end == last ? -1 : reduction.windows + window_of_second(piece.begin);
    auto state = reduction.begin(piece.column, c);
    const int64_t added = add_entries(reduction, piece.begin, piece.end, c, state);
    // A device-side assertion, as in torch's own kernels for an index out of range: the host waits for nothing, and
    // every later use of the GPU by this process fails.
    assert(added >= 0 && "an entry has a node or an edge that is out of range");
    if (row < 0) {
      store_narrowed(reduction.out + column * reduction.width + c, reduction.end(state, column, c, added));
    } else {
      store(reduction.partial + row * reduction.width + c, state.sum);
    }
  }
};

// Items are the slices of windows. That of a column's second piece adds all later ones to the first.
template <typename Reduction>
struct JoinPieces {
  Reduction reduction;

  GNNSCALE_HD void operator()(int64_t i) const {
    const int64_t slices = reduction.slices(), c = i % slices * Reduction::kItems, window = i / slices;
    const Piece second = reduction.entries.later_piece(window);
    if (second.column < 0 || second.begin != reduction.entries.ptr[second.column] + kPiece) return;
    const int64_t end = reduction.entries.end_of(second.column);
    auto state = reduction.begin(second.column, c);
    state.sum = words_at<Reduction::kItems>(reduction.partial + (reduction.windows + window) * reduction.width + c);
    for (int64_t begin = second.begin; begin < end; begin += kPiece) {
      reduction.join(state, words_at<Reduction::kItems>(reduction.partial + begin / kPiece * reduction.width + c));
    }
    store_narrowed(reduction.out + second.column * reduction.width + c,
                   reduction.end(state, second.column, c, end - reduction.entries.ptr[second.column]));
  }
};

// What the reductions that add items have in common.
template <typename Row, typename Out, int N>
struct Sums : Columns<Row, Out, N> {
  template <typename State>
  GNNSCALE_HD void join(State& state, const Words<Wide<Row>, N>& sum) const {
    for (int n = 0; n < N; ++n) state.sum.item[n] += sum.item[n];
  }
};

// What the reductions of whole rows have in common: a term is a row of `from`.
template <typename Base>
struct OfRows : Base {
  using typename Base::Slice;
  static constexpr bool kReadsEdges = false;
  struct State {
    Slice sum;
  };
  using Term = Slice;

  Rows<typename Base::Row> from;

  GNNSCALE_HD Term read(int64_t node, int64_t, int64_t c) const { return wide_at<Base::kItems>(from(node) + c); }
};

// Sums and means of rows.
template <typename Row, typename Out, int N>
struct SumOfRows : OfRows<Sums<Row, Out, N>> {
  using typename OfRows<Sums<Row, Out, N>>::Slice;
  using typename OfRows<Sums<Row, Out, N>>::State;
  using typename OfRows<Sums<Row, Out, N>>::Term;
  using T = Wide<Row>;

  bool is_mean;

  GNNSCALE_HD State begin(int64_t, int64_t) const { return {this->all(kNothing<T>)}; }
  GNNSCALE_HD void add(State& state, const Term& term) const { this->join(state, term); }
  GNNSCALE_HD Slice end(const State& state, int64_t, int64_t, int64_t entries) const {
    Slice out = entries == 0 ? this->all(T{0}) : state.sum;
    if (is_mean && entries > 1) {
      for (int n = 0; n < N; ++n) out.item[n] /= static_cast<T>(entries);
    }
    return out;
  }
};

// Sums and means of rows, each times the weight of its edge. A slice is of one head.
template <typename Row, typename Out, int N>
struct SumOfWeighted : SumOfRows<Row, Out, N> {
  using typename Columns<Row, Out, N>::Slice;
  using typename SumOfRows<Row, Out, N>::State;
  using T = Wide<Row>;
  static constexpr bool kReadsEdges = true;
  struct Term {
    Slice row;
    T weight;
  };

  const Out* weight;  // [edges, heads]
  int64_t heads, head;

  GNNSCALE_HD Term read(int64_t node, int64_t edge, int64_t c) const {
    return {wide_at<N>(this->from(node) + c), widen(weight[edge * heads + c / head])};
  }
  GNNSCALE_HD void add(State& state, const Term& term) const {
    for (int n = 0; n < N; ++n) state.sum.item[n] += product(term.weight, term.row.item[n]);
  }
};

// Maxima or minima of rows.
template <typename Row, int N>
struct ExtremeOfRows : OfRows<Columns<Row, Row, N>> {
  using typename OfRows<Columns<Row, Row, N>>::Slice;
  using typename OfRows<Columns<Row, Row, N>>::State;
  using typename OfRows<Columns<Row, Row, N>>::Term;
  using T = Wide<Row>;

  bool is_max;

  GNNSCALE_HD State begin(int64_t, int64_t) const {
    return {this->all(is_max ? kNoExtreme<true, T> : kNoExtreme<false, T>)};
  }
  GNNSCALE_HD void add(State& state, const Term& term) const { join(state, term); }
  GNNSCALE_HD void join(State& state, const Slice& sum) const {
    for (int n = 0; n < N; ++n) {
      T& best = state.sum.item[n];
      best = is_max ? extreme_of<true>(best, sum.item[n]) : extreme_of<false>(best, sum.item[n]);
    }
  }
  GNNSCALE_HD Slice end(const State& state, int64_t, int64_t, int64_t entries) const {
    return entries == 0 ? this->all(T{0}) : state.sum;
  }
};

// The gradient of a column's extreme, divided by how many of its entries reach it.
template <typename Row, int N>
struct ShareOfExtremes : Sums<Row, Row, N> {
  using typename Columns<Row, Row, N>::Slice;
  using T = Wide<Row>;
  static constexpr bool kReadsEdges = false;
  struct State {
    Slice sum, extreme;
  };
  using Term = Slice;

  const Row *x, *extreme, *grad;

  GNNSCALE_HD State begin(int64_t column, int64_t c) const {
    return {this->all(T{0}), wide_at<N>(extreme + column * this->width + c)};
  }
  GNNSCALE_HD Term read(int64_t node, int64_t, int64_t c) const { return wide_at<N>(x + node * this->width + c); }
  GNNSCALE_HD void add(State& state, const Term& term) const {
    for (int n = 0; n < N; ++n) state.sum.item[n] += tie(term.item[n], state.extreme.item[n]);
  }
  GNNSCALE_HD Slice end(const State& state, int64_t column, int64_t c, int64_t) const {
    Slice out = wide_at<N>(grad + column * this->width + c);
    for (int n = 0; n < N; ++n) out.item[n] = share_of(out.item[n], state.sum.item[n]);
    return out;
  }
};

// The gradient of rows under a maximum or minimum: columns are sources, and nodes the destinations of their edges.
template <typename Row, int N>
struct ExtremeBackward : Sums<Row, Row, N> {
  using typename Columns<Row, Row, N>::Slice;
  using T = Wide<Row>;
  static constexpr bool kReadsEdges = false;
  struct State {
    Slice sum, row;
  };
  struct Term {
    Slice extreme, share;
  };

  const Row *x, *extreme, *share;

  GNNSCALE_HD State begin(int64_t column, int64_t c) const {
    return {this->all(T{0}), wide_at<N>(x + column * this->width + c)};
  }
  GNNSCALE_HD Term read(int64_t node, int64_t, int64_t c) const {
    return {wide_at<N>(extreme + node * this->width + c), wide_at<N>(share + node * this->width + c)};
  }
  GNNSCALE_HD void add(State& state, const Term& term) const {
    for (int n = 0; n < N; ++n) {
      state.sum.item[n] += given_back(state.row.item[n], term.extreme.item[n], term.share.item[n]);
    }
  }
  GNNSCALE_HD Slice end(const State& state, int64_t, int64_t, int64_t) const { return state.sum; }
};

}  // namespace gnnscale
