// The loop that copies rows of host memory, prefetched.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "../prefetch.h"

namespace gnnscale {

constexpr int64_t kAheadBytes = 1024;     // how far ahead of the copy rows are prefetched
constexpr int64_t kRowsAhead = 24;        // how many rows ahead first lines are prefetched, for the page table walks
constexpr int64_t kGrainBytes = 1 << 18;  // a task copies at least this much

// Copies a row to `to`, and prefetches the lines kAheadBytes after it, which are written soon.
GNNSCALE_INLINE void copy_row(char* to, const char* row, int64_t bytes) {
  prefetch_lines_to_write(to + kAheadBytes, bytes);
  std::memcpy(to, row, static_cast<size_t>(bytes));
}

// copy(i, from(i)) for i in [begin, end), where from(i) is the address of a row of `bytes` bytes.
template <typename From, typename Copy>
GNNSCALE_INLINE void copy_rows(int64_t begin, int64_t end, int64_t bytes, From&& from, Copy&& copy) {
  const int64_t ahead = std::clamp<int64_t>(kAheadBytes / bytes, 2, 64);
  for (int64_t i = begin; i < end; ++i) {
    if (i + kRowsAhead < end) GNNSCALE_PREFETCH(from(i + kRowsAhead));
    if (i + ahead < end) {
      const char* const row = from(i + ahead);
      prefetch_lines(row, bytes);
      GNNSCALE_PREFETCH(row + bytes - 1);
    }
    copy(i, from(i));
  }
}

}  // namespace gnnscale
