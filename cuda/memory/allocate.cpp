#include "allocate.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "pool.h"
#include "workspace.h"

namespace gnnscale {
namespace {

// Reads the beginning of a file into `text`, without an allocation: an empty string if that fails.
template <size_t kSize>
void read_file(const char* path, char (&text)[kSize]) noexcept {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t length = file < 0 ? 0 : read(file, text, kSize - 1);
  if (file >= 0) close(file);
  text[std::max<ssize_t>(length, 0)] = '\0';
}

// Bytes that the process can still get: what the machine has available or, if that is less, what the limit of the
// process's address space leaves. -1 if the system tells neither.
int64_t available_bytes() noexcept {
  char text[1024];
  long long kilobytes = 0, pages = 0;
  int64_t available = -1;
  read_file("/proc/meminfo", text);
  const char* line = std::strstr(text, "MemAvailable:");
  if (line != nullptr && std::sscanf(line, "MemAvailable: %lld", &kilobytes) == 1) available = kilobytes << 10;
  rlimit limit{};
  read_file("/proc/self/statm", text);
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && std::sscanf(text, "%lld", &pages) == 1) {
    const int64_t left = std::max<int64_t>(
        static_cast<int64_t>(limit.rlim_cur) - pages * static_cast<int64_t>(sysconf(_SC_PAGESIZE)), 0);
    available = available < 0 ? left : std::min(available, left);
  }
  return available;
}

}  // namespace

OutOfMemory::OutOfMemory(size_t bytes) noexcept {
  const int64_t available = available_bytes();
  const long long live = pool_stats().live_bytes;
  if (available < 0) {
    std::snprintf(text_, sizeof(text_), "expected %zu bytes of memory, which the system refused", bytes);
  } else {
    std::snprintf(text_, sizeof(text_),
                  "expected %zu bytes of memory, found %lld available beside %lld in use by outputs", bytes,
                  static_cast<long long>(available), live);
  }
}

void memory_trim() noexcept {
  workspace_trim();  // first: tables of workspaces lie in buffers of the pool
  pool_trim();
}

}  // namespace gnnscale
