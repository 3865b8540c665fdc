// Rows of several tables, taken or added up: what the ranks of a split send, read and add (GSplit, section 5).
#pragma once

#include <cstdint>
#include <cstring>

#include "../float16.h"
#include "../macros.h"

namespace gnnscale {

constexpr int kMaxShuffleParts = 64;

struct ShuffleTask {
  const char* base;     // null: zeros
  int64_t base_stride;  // bytes from a row to the next
  const char* table[kMaxShuffleParts];
  int64_t stride[kMaxShuffleParts];
  const int64_t* part;  // null: all entries are of table 0
  const int64_t* row;
  const int64_t* ptr;  // null: row i of the output has entry i alone
  int64_t rows;        // of the output
  int64_t width;       // items of a row

  GNNSCALE_HD const char* entry(int64_t j) const {
    const int64_t of = part == nullptr ? 0 : part[j];
    return table[of] + row[j] * stride[of];
  }
};

// Items [column, column + N) of row i of the output: base[i] + entry + entry + ..., in this order. Numbers of 16 bits
// are added as floats, and rounded once. kAligned: all rows are aligned to N items, which are read at once.
template <typename T, int N, bool kAligned>
GNNSCALE_HD void shuffle_items(const ShuffleTask& task, int64_t i, int64_t column, T* __restrict out) {
  decltype(widen(T{})) sum[N];
  const auto each = [](const T* from, auto&& take) {
    if constexpr (kAligned) {
      const Words<T, N> words = words_at<N>(from);
      for (int n = 0; n < N; ++n) take(n, widen(words.item[n]));
    } else {
      for (int n = 0; n < N; ++n) take(n, widen(from[n]));
    }
  };
  if (task.base == nullptr) {
    for (int n = 0; n < N; ++n) sum[n] = 0;
  } else {
    each(reinterpret_cast<const T*>(task.base + i * task.base_stride) + column, [&](int n, auto x) { sum[n] = x; });
  }
  const int64_t end = task.ptr == nullptr ? i + 1 : task.ptr[i + 1];
  for (int64_t j = task.ptr == nullptr ? i : task.ptr[i]; j < end; ++j) {
    each(reinterpret_cast<const T*>(task.entry(j)) + column, [&](int n, auto x) { sum[n] += x; });
  }
  for (int n = 0; n < N; ++n) narrow(sum[n], out[n]);
}

}  // namespace gnnscale
