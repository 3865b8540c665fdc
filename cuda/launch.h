// How kernels are launched.
#pragma once

#include <cstdint>

namespace gnnscale {

constexpr int kThreads = 256;            // of a block
constexpr int64_t kMaxBlocks = 1 << 20;  // of a launch, whose threads take further items in turn

}  // namespace gnnscale
