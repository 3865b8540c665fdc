// In place of cuda/launch.h: how many threads a block has, and how many blocks a launch, changes from launch to launch.
#pragma once

#include <cuda_runtime.h>

namespace gnnscale_emulated {

using emulated::kMaxBlocks, emulated::kThreads;

}  // namespace gnnscale_emulated
