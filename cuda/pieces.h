// Sums of columns take their items in order, kPiece at a time: each piece is summed by itself, and the sums of pieces
// are added in their order. So several threads share a hub, and no sum depends on who computes what.
#pragma once

#include <cstdint>

#include "macros.h"

namespace gnnscale {

constexpr int64_t kPiece = 128;

// Items [begin, end) of a column.
struct Piece {
  int64_t column, begin, end;
};

// Windows are kPiece items long: [0, kPiece), [kPiece, 2 kPiece), ...
GNNSCALE_HD int64_t num_windows(int64_t count) { return (count + kPiece - 1) / kPiece; }

// The column of an item in [ptr[0], ptr[columns]).
GNNSCALE_HD int64_t column_of_item(const int64_t* ptr, int64_t columns, int64_t item) {
  int64_t low = 0, high = columns;  // ptr[low] <= item < ptr[high]
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (ptr[middle] <= item ? low : high) = middle;
  }
  return low;
}

// The piece, other than a first one, that begins in a window. There is at most one: the piece before it in its column
// is kPiece long, so that column has the window's first item. Column -1: there is none.
GNNSCALE_HD Piece piece_in_window(const int64_t* ptr, int64_t columns, int64_t window) {
  const int64_t at = window * kPiece;
  if (columns == 0 || at < ptr[0] || at >= ptr[columns]) return {-1, 0, 0};
  const int64_t column = column_of_item(ptr, columns, at), first = ptr[column], last = ptr[column + 1];
  const int64_t begin = first + num_windows(at - first) * kPiece;
  if (begin == first || begin >= last) return {-1, 0, 0};
  return {column, begin, last - begin > kPiece ? begin + kPiece : last};
}

// The sum of value(i) for begin <= i < end, at most a piece.
template <typename Value>
GNNSCALE_HD double sum_piece(int64_t begin, int64_t end, const Value& value) {
  double sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += value(i);
  return sum;
}

// The sum of a column of items [begin, end), of whose piece from `at` on of_piece(at, end of the piece) is the sum.
template <typename OfPiece>
GNNSCALE_HD double sum_pieces(int64_t begin, int64_t end, const OfPiece& of_piece) {
  double sum = 0;
  for (int64_t at = begin; at < end; at += kPiece) sum += of_piece(at, end - at > kPiece ? at + kPiece : end);
  return sum;
}

}  // namespace gnnscale
