// Entries of columns, and what is computed of the rows that they read, item by item: CPU and GPU do it alike.
//
// Entry k reads the row of node[k] and the weights of edge[k]. Sorted by source, with destinations as nodes, the same
// entries are the transposed graph: the gradient of a sum is the same sum over it.
//
// A sum takes a column's entries by pieces (pieces.h), in stored order. Rows of 16 bits are summed as floats, and a
// result of 16 bits is rounded once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "../float16.h"
#include "../macros.h"
#include "../pieces.h"
#include "../tier.h"

namespace gnnscale {

constexpr int64_t kAllEdges = std::numeric_limits<int64_t>::max();

// Ids of 4 or 8 bytes.
struct EitherIds {
  const void* data;
  bool wide;

  GNNSCALE_HD bool operator==(std::nullptr_t) const { return data == nullptr; }
  GNNSCALE_HD int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};

// `Ids` are a pointer to ids, or EitherIds.
template <typename Ids>
struct Entries {
  const int64_t* ptr;  // [columns + 1]
  Ids node, edge;      // edge: null if entry k is edge k
  int64_t columns, count, node_stride, edge_stride;
  int64_t num_nodes, num_edges;  // a column ends before its first entry of an edge >= num_edges

  GNNSCALE_HD int64_t node_of(int64_t entry) const { return static_cast<int64_t>(node[entry * node_stride]); }
  GNNSCALE_HD int64_t edge_of(int64_t entry) const {
    return edge == nullptr ? entry : static_cast<int64_t>(edge[entry * edge_stride]);
  }
  GNNSCALE_HD bool in_range(int64_t of_node, int64_t of_edge) const {
    return static_cast<uint64_t>(of_node) < static_cast<uint64_t>(num_nodes) &&
           static_cast<uint64_t>(of_edge) < static_cast<uint64_t>(count);
  }

  // The column of an entry in [ptr[0], ptr[columns]).
  GNNSCALE_HD int64_t column_of(int64_t entry) const { return column_of_item(ptr, columns, entry); }

  // Where a column ends; its edges rise, or all are below num_edges.
  GNNSCALE_HD int64_t end_of(int64_t column) const {
    int64_t low = ptr[column], high = ptr[column + 1];
    if (num_edges >= count) return high;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (edge_of(middle) < num_edges) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  // The first piece of a column.
  GNNSCALE_HD Piece first_piece(int64_t column) const {
    const int64_t begin = ptr[column], end = ptr[column + 1];
    return {column, begin, end - begin > kPiece ? begin + kPiece : end};
  }

  GNNSCALE_HD int64_t windows() const { return num_windows(count); }
  GNNSCALE_HD Piece later_piece(int64_t window) const { return piece_in_window(ptr, columns, window); }
};

// The type in which rows of `Row` are summed.
template <typename Row>
using Wide = decltype(widen(Row{}));

// The rows of one table, and after them those of another one.
template <typename T>
struct Rows {
  const T *first, *rest;
  int64_t count, width;  // rows of the first table

  GNNSCALE_HD const T* operator()(int64_t i) const {
    return i < count ? first + i * width : rest + (i - count) * width;
  }
};

// a * b, rounded by itself: nvcc would make one operation of a product and a sum, which rounds once.
template <typename T>
GNNSCALE_HD T product(T a, T b) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, float>) {
    return __fmul_rn(a, b);
  } else {
    return __dmul_rn(a, b);
  }
#else
  return a * b;
#endif
}

// What a sum begins with: added to it, every number stays what it is, -0 too.
template <typename T>
constexpr T kNothing = T{-0.0};

// What a maximum or minimum begins with.
template <bool kMax, typename T>
constexpr T kNoExtreme = kMax ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::infinity();

// The larger (smaller) one of the extreme so far and x; of equal ones the earlier one. NaN where one of them is.
template <bool kMax, typename T>
GNNSCALE_HD T extreme_of(T best, T x) {
  return (kMax ? x > best : x < best) || x != x ? x : best;
}

// What an entry counts among those that share the gradient of an extreme.
template <typename T>
GNNSCALE_HD T tie(T x, T extreme) {
  return x == extreme ? T{1} : T{0};
}

template <typename T>
GNNSCALE_HD T share_of(T grad, T ties) {
  return ties > 0 ? grad / ties : T{0};
}

// What a column's extreme gives to the gradient of an item x of one of its rows.
template <typename T>
GNNSCALE_HD T given_back(T x, T extreme, T share) {
  return x == extreme ? share : T{0};
}

// A dot product is kDotSums sums, of the items whose number has the same remainder, which are added as dot() adds them,
// and after them one by one the items beyond the last whole kDotSums.
constexpr int kDotSums = 8;

// Sum number s. `width`: of the row.
template <typename A, typename B>
GNNSCALE_HD Wide<A> dot_sum(const A* a, const B* b, int64_t width, int s) {
  static_assert(std::is_same_v<Wide<A>, Wide<B>>);
  Wide<A> sum{};
  for (int64_t c = s; c < width / kDotSums * kDotSums; c += kDotSums) sum += product(widen(a[c]), widen(b[c]));
  return sum;
}

// Adds the items beyond the last whole kDotSums.
template <typename A, typename B>
GNNSCALE_HD void add_rest_of_dot(const A* a, const B* b, int64_t width, Wide<A>& sum) {
  for (int64_t c = width / kDotSums * kDotSums; c < width; ++c) sum += product(widen(a[c]), widen(b[c]));
}

// All sums side by side, in a loop that GCC turns into vectors.
template <typename A, typename B>
inline Wide<A> dot(const A* a, const B* b, int64_t width) {
  static_assert(std::is_same_v<Wide<A>, Wide<B>>);
  Wide<A> sums[kDotSums] = {};
  for (int64_t c = 0; c + kDotSums <= width; c += kDotSums) {
    for (int s = 0; s < kDotSums; ++s) sums[s] += product(widen(a[c + s]), widen(b[c + s]));
  }
  Wide<A> sum = ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
  add_rest_of_dot(a, b, width, sum);
  return sum;
}

}  // namespace gnnscale
