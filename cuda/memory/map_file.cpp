// Tensors over the pages of a file.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "huge_pages.h"
#include "tensor.h"

namespace gnnscale {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Reserves `length` bytes of addresses that begin at a multiple of kHugePage; null if there are none.
void* aligned_range(size_t length) {
  const size_t reserved = length + kHugePage;
  void* base = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(base) % kHugePage) % kHugePage;
  char* aligned = static_cast<char*>(base) + before;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGE_SIZE)), end = (length + page - 1) / page * page;
  if (before > 0) munmap(base, before);
  if (before + end < reserved) munmap(aligned + end, reserved - before - end);
  return aligned;
}

// See torch_gnnscale.ops.map_file and map_shared, which open the file and check its size. A private mapping copies
// pages when they are written, so the file does not change; it reserves no swap, so the file may be larger than the
// memory. A shared mapping writes to the file; from kHugePage bytes on it asks for huge pages.
Tensor map_file(int64_t descriptor, int64_t offset, int64_t num_bytes, bool shared) {
  STD_TORCH_CHECK(num_bytes > 0 && offset >= 0, "expected a part of a file, got ", num_bytes, " bytes at ", offset);
  const int64_t page = sysconf(_SC_PAGE_SIZE), first = offset / page * page;
  const size_t length = static_cast<size_t>(offset - first + num_bytes);
  void* range = shared && length >= kHugePage ? aligned_range(length) : nullptr;
  const int flags = (shared ? MAP_SHARED : MAP_PRIVATE | MAP_NORESERVE) | (range != nullptr ? MAP_FIXED : 0);
  void* base =
      mmap(range, length, PROT_READ | PROT_WRITE, flags, static_cast<int>(descriptor), static_cast<off_t>(first));
  if (base == MAP_FAILED && range != nullptr) munmap(range, length);
  STD_TORCH_CHECK(base != MAP_FAILED, "mmap of ", num_bytes, " bytes at ", offset, ": ", std::strerror(errno));
  if (range != nullptr) ask_for_huge_pages(base, length);
  const int64_t sizes[] = {num_bytes}, strides[] = {1};
  return torch::stable::from_blob(static_cast<char*>(base) + (offset - first), {sizes, 1}, {strides, 1},
                                  torch::stable::Device(torch::headeronly::DeviceType::CPU), ScalarType::Byte,
                                  [base, length](void*) { munmap(base, length); });
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CompositeExplicitAutograd, library) {
  library.impl("map_file", TORCH_BOX(&map_file));
}

}  // namespace
}  // namespace gnnscale
