// Scratch memory of an operator in one piece, so that it is asked for once.
#pragma once

#include <cstdint>

#include "executor.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace gnnscale {

// Hands out arrays one after the other; those of an arena without memory are only counted.
class Arena {
 public:
  explicit Arena(char* memory = nullptr) : memory_(memory) {}

  template <typename T>
  T* take(int64_t count) {
    const int64_t begin = bytes_, size = count * static_cast<int64_t>(sizeof(T));
    const int64_t room = (size + kGap + kAlignment - 1) / kAlignment * kAlignment;
    bytes_ += room;
    if (memory_ == nullptr) return nullptr;
#ifdef __SANITIZE_ADDRESS__
    __asan_poison_memory_region(memory_ + begin + size, static_cast<size_t>(room - size));
#endif
    return reinterpret_cast<T*>(memory_ + begin);
  }

  int64_t bytes() const { return bytes_; }

 private:
  static constexpr int64_t kAlignment = 256;
#ifdef __SANITIZE_ADDRESS__
  static constexpr int64_t kGap = 1;  // between arrays at least, so that what is read or written beyond one is seen
#else
  static constexpr int64_t kGap = 0;
#endif

  char* const memory_;
  int64_t bytes_ = 0;
};

// Calls lay_out(arena), which takes arrays and keeps their addresses, twice: to count their bytes, and with memory
// where the executor works, which is returned.
template <typename Executor, typename LayOut>
Tensor one_piece(Executor& executor, const LayOut& lay_out) {
  Arena counted;
  lay_out(counted);
  Tensor memory = executor.room(counted.bytes(), ScalarType::Byte);
  Arena arena(static_cast<char*>(memory.mutable_data_ptr()));
  lay_out(arena);
  return memory;
}

}  // namespace gnnscale
