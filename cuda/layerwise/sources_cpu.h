// The sources of stored edges, as a hop of a layer-wise batch reads them on the CPU.
#pragma once

#include <cstdint>

#include "../sample/relation_cpu.h"

namespace gnnscale {

// kStride: bytes from one to the next; 0 if only `stride` has them.
template <typename Id, int64_t kStride>
struct Sources {
  const char* row;
  int64_t stride;
  uint64_t num_src;

  explicit Sources(const Relation& graph)
      : row(graph.row), stride(graph.row_stride), num_src(static_cast<uint64_t>(graph.num_src)) {}

  GNNSCALE_INLINE uint64_t at(int64_t position) const {
    return static_cast<uint64_t>(*reinterpret_cast<const Id*>(row + position * (kStride > 0 ? kStride : stride)));
  }
  // The same; if it is not below num_src, returns 0 and stores the position in `bad`.
  GNNSCALE_INLINE uint64_t checked(int64_t position, int64_t& bad) const {
    const uint64_t id = at(position);
    if (id < num_src) [[likely]]
      return id;
    bad = position;
    return 0;
  }
  // The sources at [first, first + count); those that are not below num_src as checked() has them.
  void read(int64_t first, int64_t count, int64_t* ids, int64_t& bad) const {
    uint64_t signs = 0;  // bit 63 is set if an id is negative or not below num_src
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t id = at(first + i);
      ids[i] = static_cast<int64_t>(id);
      signs |= id | (num_src - 1 - id);
    }
    if (signs >> 63 == 0) [[likely]]
      return;
    for (int64_t i = 0; i < count; ++i) ids[i] = static_cast<int64_t>(checked(first + i, bad));
  }
};

}  // namespace gnnscale
