// What LADIES cannot leave out on a GPU: a kernel that claims a cell for each source of a hop's edges and adds to its
// score, and nothing else. Built by limits_gpu.py.
#include <cstdint>

namespace {

constexpr int kThreads = 256, kWarp = 32;
constexpr int kNodeBits = 40;
constexpr unsigned long long kFree = 0;

// See claims_and_adds: a warp for each node.
__global__ void claim_and_add(const int64_t* colptr, const uint32_t* stored, const int64_t* nodes,
                              const int64_t* batches, int64_t num_nodes, unsigned long long* keys,
                              unsigned long long* scores, uint64_t mask) {
  const int64_t warp = (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) / kWarp;
  if (warp >= num_nodes) return;
  const int64_t first = colptr[nodes[warp]], last = colptr[nodes[warp] + 1];
  const unsigned long long batch = static_cast<unsigned long long>(batches[warp] + 1) << kNodeBits;
  for (int64_t e = first + threadIdx.x % kWarp; e < last; e += kWarp) {
    const unsigned long long key = batch | stored[e];
    uint64_t cell = (key * 0x9E3779B97F4A7C15ull) >> 20 & mask;
    for (;; cell = (cell + 1) & mask) {
      const unsigned long long found = keys[cell] == key ? key : atomicCAS(keys + cell, kFree, key);
      if (found == kFree || found == key) break;
    }
    atomicAdd(scores + cell, 1ull);
  }
}

}  // namespace

// For each edge into nodes[i], of batch batches[i]: claims the cell of (batch, source) in a table of `size` cells, a
// power of 2 above the number of such pairs, and adds 1 to its score. Empties the table first. Returns when all is
// queued on the default stream: 0, or CUDA's error.
extern "C" int claims_and_adds(const int64_t* colptr, const uint32_t* stored, const int64_t* nodes,
                               const int64_t* batches, int64_t num_nodes, unsigned long long* keys,
                               unsigned long long* scores, int64_t size) {
  cudaMemsetAsync(keys, 0, size * sizeof(*keys));
  cudaMemsetAsync(scores, 0, size * sizeof(*scores));
  const auto blocks = static_cast<unsigned>((num_nodes * kWarp + kThreads - 1) / kThreads);
  if (blocks > 0) {
    claim_and_add<<<blocks, kThreads>>>(colptr, stored, nodes, batches, num_nodes, keys, scores,
                                        static_cast<uint64_t>(size) - 1);
  }
  return static_cast<int>(cudaGetLastError());
}
