#pragma once

#include <sys/mman.h>

#include <cstddef>

namespace gnnscale {

// Asks for huge pages for a range of addresses: only Linux knows them, and some systems refuse, which does no harm.
inline void ask_for_huge_pages(void* address, size_t bytes) noexcept {
#if defined(MADV_HUGEPAGE)
  madvise(address, bytes, MADV_HUGEPAGE);
#else
  static_cast<void>(address), static_cast<void>(bytes);
#endif
}

}  // namespace gnnscale
