// The kernel that gathers rows from all memory that a GPU can read: its own, its peers' and pinned host memory.
//
// A row is copied by as many lanes as it has words, up to a warp; a group of lanes has kRowsAtOnce rows in flight,
// whose ids, then places, then words are loaded together: three waits per tile. Hot and cold rows are mixed in a batch,
// so that reads of slow memory overlap reads of fast memory within each warp.
#pragma once

#include <cuda_runtime.h>

#undef NDEBUG  // the assert below checks what users pass
#include <algorithm>
#include <cassert>
#include <cstdint>
#include <type_traits>

#include "../launch.h"
#include "../tier.h"

namespace gnnscale {

constexpr int kRowsAtOnce = 4;
// Blocks per multiprocessor if rows come over a bus, which then limits the gather. Two blocks have 32 KB in flight per
// multiprocessor, in total megabytes, where 100 KB keep the bus busy; they leave half of the registers to training.
constexpr int64_t kBlocksOnBus = 2;
constexpr int64_t kMaxRowBytes = 1 << 29;  // words of a row, and lanes beyond them, are counted in 32 bits

struct Gather {
  TierTable table;
  const void* index;
  const void* place;  // null: an id is a place
  int64_t rows;
  int32_t words;  // of a row
  int32_t lanes;  // of a group: a power of two
  char* out;
  int64_t* counts;  // rows of each tier are added to counts[2 * tier]; or null
  bool over_bus;    // some rows are in host memory
};

// `Place` is void where there is no map.
template <typename Map, typename Index, typename Place>
__global__ void __launch_bounds__(kThreads) gather_kernel(const __grid_constant__ Gather task) {
  using From = typename Map::From;
  using To = typename Map::To;
  __shared__ int found[kMaxTiers];
  if (threadIdx.x < kMaxTiers) found[threadIdx.x] = 0;
  __syncthreads();
  const TierTable& table = task.table;
  const int32_t words = task.words;
  const int32_t shift = __ffs(task.lanes) - 1, lanes = 1 << shift, groups = kThreads >> shift;
  const int32_t group = static_cast<int32_t>(threadIdx.x) >> shift,
                lane = static_cast<int32_t>(threadIdx.x) & (lanes - 1);
  const int64_t tile = int64_t{groups} * kRowsAtOnce;
  for (int64_t first = blockIdx.x * tile; first < task.rows; first += gridDim.x * tile) {
    int64_t at[kRowsAtOnce];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce;
         ++r) {  // beyond the last row: that row again, so that no branch separates the reads
      const int64_t i = first + r * groups + group;
      at[r] = static_cast<int64_t>(static_cast<const Index*>(task.index)[i < task.rows ? i : task.rows - 1]);
    }
    if constexpr (!std::is_void_v<Place>) {
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) at[r] = static_cast<int64_t>(static_cast<const Place*>(task.place)[at[r]]);
    }
    const From* from[kRowsAtOnce];
    int32_t begin[kRowsAtOnce], turns = 0;
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      begin[r] = words;  // nothing to copy
      from[r] = nullptr;
      if (first + r * groups + group >= task.rows) continue;
      const int32_t tier = tier_of(table, at[r]);
      // A device-side assertion, as in torch's own kernels for an index out of range: every later use of the GPU by
      // this process fails. The host does not wait for it.
      assert(tier < table.num_tiers && "place has an entry that is out of range");
      const char* row = row_address(table, tier, at[r]);
      const int32_t before = words_before(row, words, sizeof(From), lanes);
      from[r] = reinterpret_cast<const From*>(row);
      begin[r] = lane - before;
      turns = max(turns, (words + before + lanes - 1) >> shift);
      if (task.counts != nullptr && lane == 0) atomicAdd(&found[tier], 1);
    }
    To* const to = reinterpret_cast<To*>(task.out) + (first + group) * words;
    const int64_t row_step = int64_t{groups} * words;
    for (int32_t turn = 0; turn < turns; ++turn) {
      From word[kRowsAtOnce];
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
        const int32_t w = begin[r] + turn * lanes;
        if (w >= 0 && w < words) word[r] = from[r][w];
      }
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
        const int32_t w = begin[r] + turn * lanes;
        if (w >= 0 && w < words) to[r * row_step + w] = Map::map(word[r]);
      }
    }
  }
  __syncthreads();
  if (task.counts != nullptr && static_cast<int32_t>(threadIdx.x) < table.num_tiers && found[threadIdx.x] > 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(task.counts + 2 * threadIdx.x),
              static_cast<unsigned long long>(found[threadIdx.x]));
  }
}

template <typename Map, typename Index, typename Place>
void launch_gather(Gather task, cudaStream_t stream) {
  task.lanes = lanes_of(task.words);
  const int64_t tile = int64_t{kThreads / task.lanes} * kRowsAtOnce;
  int64_t most = kMaxBlocks;
  if (task.over_bus) {
    int device = 0, multiprocessors = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    most = std::max(multiprocessors, 1) * kBlocksOnBus;
  }
  const int64_t blocks = std::min<int64_t>((task.rows + tile - 1) / tile, most);
  gather_kernel<Map, Index, Place><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(task);
}

// The bitwise or of the row's bytes and of all segments' addresses and strides: its lowest set bit is the alignment
// that they have in common.
inline uint64_t alignment_of(const TierTable& table, int64_t row_bytes) {
  uint64_t bits = static_cast<uint64_t>(row_bytes);
  for (int32_t p = 0; p < table.segment[table.num_tiers]; ++p) {
    bits |= reinterpret_cast<uint64_t>(table.base[p]) | static_cast<uint64_t>(table.stride[p]);
  }
  return bits;
}

// Copies rows of `row_bytes` bytes as they are, in words of the widest type that divides them.
template <typename Index, typename Place>
void gather_kept(Gather task, int64_t row_bytes, cudaStream_t stream) {
  const uint64_t aligned = alignment_of(task.table, row_bytes);
  const auto launch = [&](auto word) {
    task.words = static_cast<int32_t>(row_bytes / static_cast<int64_t>(sizeof(word)));
    launch_gather<Keep<decltype(word)>, Index, Place>(task, stream);
  };
  if (aligned % 16 == 0) {
    launch(uint4{});
  } else if (aligned % 8 == 0) {
    launch(uint64_t{});
  } else if (aligned % 4 == 0) {
    launch(uint32_t{});
  } else if (aligned % 2 == 0) {
    launch(uint16_t{});
  } else {
    launch(uint8_t{});
  }
}

// Widens rows of `items` items.
template <typename Item, typename Out, typename Index, typename Place>
void gather_widened(Gather task, int64_t items, cudaStream_t stream) {
  const uint64_t aligned = alignment_of(task.table, items * static_cast<int64_t>(sizeof(Item)));
  if (aligned % 16 == 0) {
    task.words = static_cast<int32_t>(items / 8);
    launch_gather<Widen<Item, Out, 8>, Index, Place>(task, stream);
  } else if (aligned % 4 == 0) {
    task.words = static_cast<int32_t>(items / 2);
    launch_gather<Widen<Item, Out, 2>, Index, Place>(task, stream);
  } else {
    task.words = static_cast<int32_t>(items);
    launch_gather<Widen<Item, Out, 1>, Index, Place>(task, stream);
  }
}

}  // namespace gnnscale
