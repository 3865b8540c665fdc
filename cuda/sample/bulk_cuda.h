// The two kernels of sample_bulk: one that writes the host's numbers, and one that is any phase.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace gnnscale {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1 << 16;

struct Arguments {
  static constexpr int kCount = 448;  // a launch takes 4 KB of arguments
  int64_t word[kCount];
};

static __global__ void __launch_bounds__(Arguments::kCount)
    store(const __grid_constant__ Arguments words, int64_t* out, int count) {
  if (static_cast<int>(threadIdx.x) < count) out[threadIdx.x] = words.word[threadIdx.x];
}

template <typename F>
__global__ void __launch_bounds__(kThreads)
    phase(const int64_t* __restrict__ count, int64_t most, const __grid_constant__ F f) {
  const int64_t items = *count < most ? *count : most;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < items; i += gridDim.x * int64_t{kThreads}) f(i);
}

}  // namespace gnnscale
