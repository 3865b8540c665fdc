// The operator gather_each on the CPU; not with gather_rows, which GPUs have, too.
#include "gather_each_cpu.h"

namespace gnnscale {
namespace {

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("gather_each", TORCH_BOX(&gathered_each)); }

}  // namespace
}  // namespace gnnscale
