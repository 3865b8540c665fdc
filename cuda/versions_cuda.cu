// Which CUDA this library was built with and which one the driver knows, asked before anything is launched.
#include <cuda_runtime.h>

// 1000 * major + 10 * minor each; 0 for a driver that is not there. Makes no context.
extern "C" __attribute__((visibility("default"))) void gnnscale_cuda_versions(int* runtime, int* driver) {
  if (cudaRuntimeGetVersion(runtime) != cudaSuccess) *runtime = 0;
  if (cudaDriverGetVersion(driver) != cudaSuccess) *driver = 0;
}
