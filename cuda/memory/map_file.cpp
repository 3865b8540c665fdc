// Files as tensors.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tensor.h"

namespace gnnscale {
namespace {

// See torch_gnnscale.ops.map_file, which opens the file, checks its size and closes it. The mapping is private, so
// writing copies pages and leaves the file, and reserves no swap, so a file may be larger than the memory.
Tensor map_file(int64_t descriptor, int64_t offset, int64_t num_bytes) {
  STD_TORCH_CHECK(num_bytes > 0 && offset >= 0, "expected a part of a file, got ", num_bytes, " bytes at ", offset);
  const int64_t page = sysconf(_SC_PAGE_SIZE), first = offset / page * page;
  const size_t length = static_cast<size_t>(offset - first + num_bytes);
  void* base = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, static_cast<int>(descriptor),
                    static_cast<off_t>(first));
  STD_TORCH_CHECK(base != MAP_FAILED, "mmap of ", num_bytes, " bytes at ", offset, ": ", std::strerror(errno));
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
