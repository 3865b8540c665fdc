// How often each of some numbers was seen.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../mix.h"

namespace gnnscale {

class Tally {
 public:
  struct Entry {
    int64_t value, count;
  };

  Tally() : cells_(kSmallest, 0) {}

  void add(int64_t value) {
    size_t cell = at(value);
    while (cells_[cell] != 0) {
      Entry& entry = entries_[cells_[cell] - 1];
      if (entry.value == value) {
        ++entry.count;
        return;
      }
      cell = (cell + 1) & (cells_.size() - 1);
    }
    entries_.push_back({value, 1});
    cells_[cell] = static_cast<uint32_t>(entries_.size());
    if (2 * entries_.size() > cells_.size()) grow();
  }

  // What was seen, in the order of first occurrence.
  std::vector<Entry>& entries() { return entries_; }

  void clear() {
    if (cells_.size() > kLargest) {
      cells_.assign(kSmallest, 0);
    } else if (8 * entries_.size() > cells_.size()) {
      std::fill(cells_.begin(), cells_.end(), 0);
    } else {
      // Each walk empties an unbroken run of cells to its end, so no entry is left behind an empty cell of its run.
      for (const Entry& entry : entries_) {
        for (size_t cell = at(entry.value); cells_[cell] != 0; cell = (cell + 1) & (cells_.size() - 1))
          cells_[cell] = 0;
      }
    }
    entries_.clear();
  }

 private:
  static constexpr size_t kSmallest = 64, kLargest = 4096;  // cells, powers of two; clear() shrinks a larger table

  size_t at(int64_t value) const { return mix64(static_cast<uint64_t>(value)) >> 32 & (cells_.size() - 1); }

  void grow() {
    cells_.assign(2 * cells_.size(), 0);
    for (size_t i = 0; i < entries_.size(); ++i) {
      size_t cell = at(entries_[i].value);
      while (cells_[cell] != 0) cell = (cell + 1) & (cells_.size() - 1);
      cells_[cell] = static_cast<uint32_t>(i + 1);
    }
  }

  std::vector<Entry> entries_;
  std::vector<uint32_t> cells_;  // 1 + the position of an entry, or 0
};

}  // namespace gnnscale
