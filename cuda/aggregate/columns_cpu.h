// Columns shared out to the threads of the CPU.
#pragma once

#include <algorithm>
#include <atomic>

#include "../memory/tensor.h"
#include "../prefetch.h"
#include "columns.h"

namespace gnnscale {

constexpr int64_t kBytesAhead = 1 << 12;  // rows to read are prefetched this far ahead
constexpr int64_t kGrainItems = 1 << 15;  // a task adds at least this many numbers

// Each task makes an f and calls f(column, first entry, end) for its columns; tasks have about equally many entries.
// Throws if ptr is malformed, or a node or edge is out of range.
template <typename Ids, typename F>
void for_each_column(const Entries<Ids>& entries, int64_t items_per_entry, int64_t threads, F&& make) {
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
    auto f = make();
    const int64_t to = task + 1 == tasks ? entries.columns : boundary(task + 1);
    for (int64_t i = boundary(task); i < to; ++i) {
      int64_t end = ptr[i];
      for (; end < ptr[i + 1] && entries.edge_of(end) < entries.num_edges; ++end) {
        if (!entries.in_range(entries.node_of(end), entries.edge_of(end))) {
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

// How many entries ahead rows of so many bytes are prefetched.
GNNSCALE_INLINE int64_t entries_ahead(int64_t row_bytes) {
  return std::clamp<int64_t>(kBytesAhead / std::max<int64_t>(row_bytes, 1), 4, 32);
}

// Prefetches the row that an entry reads, if there is such an entry; its node is not checked yet.
template <typename Ids, typename Row>
GNNSCALE_INLINE void prefetch_entry(const Entries<Ids>& entries, int64_t entry, const Rows<Row>& from, int64_t bytes) {
  if (entry >= entries.count) return;
  const int64_t node = entries.node_of(entry);
  if (static_cast<uint64_t>(node) < static_cast<uint64_t>(entries.num_nodes)) prefetch_lines(from(node), bytes);
}

template <typename Id>
const Id* as_ids(const void* address) {
  return static_cast<const Id*>(address);
}

// The same of the weights of an entry's edge, unless these follow those of the entry before.
template <typename Ids, typename T>
GNNSCALE_INLINE void prefetch_weight(const Entries<Ids>& entries, int64_t entry, const T* weights, int64_t heads) {
  if (entries.edge == nullptr || entry >= entries.count) return;
  const int64_t edge = entries.edge_of(entry);
  if (static_cast<uint64_t>(edge) < static_cast<uint64_t>(entries.count)) GNNSCALE_PREFETCH(weights + edge * heads);
}

}  // namespace gnnscale
