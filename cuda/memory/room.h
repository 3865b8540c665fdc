// Uninitialised memory of torch's allocators, which operators take by these functions alone.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#ifdef USE_CUDA
#include "cuda.h"
#endif

// What the last call of torch on this thread ended with; null before torch 2.13, which has no such function.
extern "C" __attribute__((weak)) const char* torch_exception_get_what_without_backtrace();

namespace gnnscale {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// An allocation that failed. torch_gnnscale/ops/arguments.py makes a torch.OutOfMemoryError of it, which it knows by
// "NAME: out of memory: " or, on a GPU, "NAME: CUDA out of memory: ".
class NoRoom : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline int64_t bytes_of(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Short:
    case ScalarType::UInt16:
    case ScalarType::Half:
    case ScalarType::BFloat16:
      return 2;
    case ScalarType::Int:
    case ScalarType::UInt32:
    case ScalarType::Float:
    case ScalarType::ComplexHalf:
      return 4;
    case ScalarType::Long:
    case ScalarType::UInt64:
    case ScalarType::Double:
    case ScalarType::ComplexFloat:
      return 8;
    case ScalarType::ComplexDouble:
      return 16;
    default:
      return 1;
  }
}

// What allocate() returns, which takes a tensor of `bytes` bytes from torch for the operator `name`. Throws NoRoom if
// there is none, and a RuntimeError of CUDA's words if the GPU does nothing more, which allocations tell, too.
template <typename F>
Tensor allocated(const char* name, bool on_gpu, int64_t bytes, F&& allocate) {
  try {
    return allocate();
  } catch (const std::exception&) {
    std::string found;
#ifdef USE_CUDA
    if (on_gpu) {
      size_t left = 0, all = 0;
      check(name, cudaMemGetInfo(&left, &all));
      found = ", found " + std::to_string(left) + " free of " + std::to_string(all);
    }
#endif
    std::string what;
    if (torch_exception_get_what_without_backtrace != nullptr) what = torch_exception_get_what_without_backtrace();
    throw NoRoom(std::string(name) + (on_gpu ? ": CUDA out of memory: expected " : ": out of memory: expected ") +
                 std::to_string(bytes) + " bytes" + found + (what.empty() ? what : "; torch: " + what));
  }
}

// A tensor where `like` is, of its type or of `dtype`.
inline Tensor room_like(const char* name, const Tensor& like, torch::headeronly::IntHeaderOnlyArrayRef sizes,
                        std::optional<ScalarType> dtype = std::nullopt) {
  int64_t bytes = dtype.has_value() ? bytes_of(*dtype) : static_cast<int64_t>(like.element_size());
  for (const int64_t size : sizes) bytes *= size;
  return allocated(name, like.is_cuda(), bytes, [&] { return torch::stable::new_empty(like, sizes, dtype); });
}

// A vector in host memory.
inline Tensor host_room(const char* name, int64_t count, ScalarType dtype) {
  return allocated(name, false, count * bytes_of(dtype), [&] {
    return torch::stable::empty({count}, dtype, std::nullopt,
                                torch::stable::Device(torch::headeronly::DeviceType::CPU));
  });
}

}  // namespace gnnscale
