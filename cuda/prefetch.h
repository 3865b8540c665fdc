// Prefetches of whole ranges: hints that all of their cache lines are read, or written, soon. The range may lie
// beyond the end of its buffer.
#pragma once

#include <cstdint>

#include "macros.h"

namespace gnnscale {

constexpr int64_t kLineBytes = 64;

GNNSCALE_INLINE void prefetch_lines(const void* address, int64_t bytes) {
  const char* const begin = static_cast<const char*>(address);
  for (int64_t offset = 0; offset < bytes; offset += kLineBytes) GNNSCALE_PREFETCH(begin + offset);
}

// A line is read before it is written, even if all of it is.
GNNSCALE_INLINE void prefetch_lines_to_write(const void* address, int64_t bytes) {
  const char* const begin = static_cast<const char*>(address);
  for (int64_t offset = 0; offset < bytes; offset += kLineBytes) GNNSCALE_PREFETCH_WRITE(begin + offset);
}

}  // namespace gnnscale
