// Memory from the system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

namespace gnnscale {

// Says how many bytes were asked for and how many are there. Python gets it as MemoryError.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(size_t bytes) noexcept;
  const char* what() const noexcept override { return text_; }

 private:
  char text_[160];
};

// Frees what is kept for later calls: idle workspaces and the pool's idle buffers.
void memory_trim() noexcept;

// The address that `allocate()` returns. If that is null, memory_trim() is called, then `allocate()` again; throws
// OutOfMemory if it is null once more.
template <typename F>
void* allocate_or_trim(size_t bytes, F&& allocate) {
  if (void* address = allocate(); address != nullptr) return address;
  memory_trim();
  if (void* address = allocate(); address != nullptr) return address;
  throw OutOfMemory(bytes);
}

// Memory for a Vector. Throws OutOfMemory.
template <typename T>
struct VectorAllocator {
  using value_type = T;
  VectorAllocator() = default;
  template <typename U>
  VectorAllocator(const VectorAllocator<U>&) noexcept {}

  T* allocate(size_t count) {
    if (count > SIZE_MAX / sizeof(T)) throw OutOfMemory(SIZE_MAX);
    return static_cast<T*>(allocate_or_trim(count * sizeof(T), [&] { return std::malloc(count * sizeof(T)); }));
  }
  void deallocate(T* address, size_t /*count*/) noexcept { std::free(address); }
  bool operator==(const VectorAllocator&) const = default;
};

// A vector whose size grows with the graph, the batch or the fanouts. Smaller ones are std::vector.
template <typename T>
using Vector = std::vector<T, VectorAllocator<T>>;

}  // namespace gnnscale
