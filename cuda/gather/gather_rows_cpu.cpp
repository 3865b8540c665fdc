// The operator gather_rows on the CPU.
#include "gather_each_cpu.h"

namespace gnnscale {
namespace {

// See torch_gnnscale.ops.gather_rows, which checks the arguments.
Tensor gather_rows(const Tensor& src, const Tensor& index, int64_t threads) {
  return std::move(gathered_each({src}, {index}, {1}, threads)[0]);
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("gather_rows", TORCH_BOX(&gather_rows)); }

}  // namespace
}  // namespace gnnscale
