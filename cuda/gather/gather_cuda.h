// The kernel that gathers rows from all memory that a GPU can read: its own, its peers' and pinned host memory.
//
// A row is copied by as many lanes as it has words, up to a warp; a group of lanes has kRowsAtOnce rows in flight,
// whose ids, then places, then words are loaded together: three waits per tile. Hot and cold rows are mixed in a batch,
// so that reads of slow memory overlap reads of fast memory within each warp. One lane of a group finds the address of
// a row and shares it. In the plain case, one memory and no map, it is a product that each lane computes.
#pragma once

#include <cuda_runtime.h>

#undef NDEBUG  // the asserts below check what users pass
#include <algorithm>
#include <cassert>
#include <cstdint>
#include <type_traits>

#include "../atomics.h"
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

// `Place` of a gather whose ids are places in a table of one tier of one segment. Else it is the type of the map's
// entries, or void where there is no map.
struct OneMemory {};

// Blocks that a multiprocessor must have registers for: 5 leave 48 to a thread, 4 leave 64, 3 leave 80. CUDA 12's nvcc
// needs more registers than that, and would spill some to memory.
#if defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ < 13
constexpr int kSpareBlocks = 1;
#else
constexpr int kSpareBlocks = 0;
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kBlocksOfOneMemory = 4;  // which are all the threads that it has
#else
constexpr int kBlocksOfOneMemory = 5;
#endif
template <typename Map, typename Place>
constexpr int kLeastBlocks =
    (sizeof(typename Map::To) > 16 ? 3 : (std::is_same_v<Place, OneMemory> ? kBlocksOfOneMemory : 4)) - kSpareBlocks;

// The logarithm of a power of two. nvcc compiles initializers of a constructor for the host, too, which lacks __ffs.
__device__ inline int32_t log_of(int32_t power) { return __ffs(power) - 1; }

// What a thread is in its block. Row r of a group is row r * groups + group of the block's tile.
struct GroupLane {
  int32_t shift, lanes, groups, group, lane;

  __device__ explicit GroupLane(int32_t count)
      : shift(log_of(count)),
        lanes(1 << shift),
        groups(kThreads >> shift),
        group(static_cast<int32_t>(threadIdx.x) >> shift),
        lane(static_cast<int32_t>(threadIdx.x) & (lanes - 1)) {}
};

// Finds the addresses of a group's rows in the tile that begins with row `first`; null beyond the last row.
template <typename Index>
__device__ void find_in_one_memory(const Gather& task, const GroupLane& own, int64_t first,
                                   const char* (&row)[kRowsAtOnce]) {
  int64_t id[kRowsAtOnce];
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {  // beyond the last row that row's, so that no branch separates the reads
    const int64_t i = first + r * own.groups + own.group;
    id[r] = static_cast<int64_t>(static_cast<const Index*>(task.index)[i < task.rows ? i : task.rows - 1]);
  }
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    // As below, for ids that the host has not checked.
    assert(static_cast<uint64_t>(id[r]) < static_cast<uint64_t>(task.table.first[1]) && "an id is out of range");
    const bool there = first + r * own.groups + own.group < task.rows;
    row[r] = there ? task.table.base[0] + id[r] * task.table.stride[0] : nullptr;
  }
}

// The same for any table, whose place_of(i) is the place of row i: lane r finds row r. Where a group has fewer lanes
// than rows, for rows of one or two words, lanes find several, one after the other. Adds the rows of each tier to
// `counted`.
template <typename PlaceOf>
__device__ void find_in_tiers(const Gather& task, const GroupLane& own, int64_t first, int* counted,
                              const PlaceOf& place_of, const char* (&row)[kRowsAtOnce]) {
  const TierTable& table = task.table;
#pragma unroll 1
  for (int32_t turn = 0; turn << own.shift < kRowsAtOnce; ++turn) {
    const int32_t mine = (turn << own.shift) + own.lane;
    const int64_t i = first + mine * own.groups + own.group;
    const char* address = nullptr;
    if (mine < kRowsAtOnce && i < task.rows) {
      const int64_t place = place_of(i);
      const int32_t tier = tier_of(table, place);
      // A device-side assertion, as in torch's own kernels for an index out of range: every later use of the GPU by
      // this process fails. The host does not wait for it.
      assert(tier < table.num_tiers && "place has an entry that is out of range");
      address = row_address(table, tier, place);
      if (task.counts != nullptr) atomicAdd(&counted[tier], 1);
    }
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const unsigned long long shared =
          __shfl_sync(~0u, reinterpret_cast<unsigned long long>(address), r & (own.lanes - 1), own.lanes);
      if (r >> own.shift == turn) row[r] = reinterpret_cast<const char*>(shared);
    }
  }
}

// Copies a group's rows to out, out + row_step, ...; every lane of the group calls it.
template <typename Map>
__device__ void copy_group(const char* const (&row)[kRowsAtOnce], int32_t words, const GroupLane& own,
                           typename Map::To* out, int64_t row_step) {
  using From = typename Map::From;
  int32_t begin[kRowsAtOnce], end = 0;  // the lane's first word of each row, which may be less than 0
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    const int32_t before = words_before(row[r], words, sizeof(From), own.lanes);
    begin[r] = row[r] == nullptr ? words : own.lane - before;
    if (row[r] != nullptr) end = max(end, words + before);
  }
#pragma unroll 1
  for (int32_t turn = 0; turn < end; turn += own.lanes) {
    From word[kRowsAtOnce];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const uint32_t w = static_cast<uint32_t>(begin[r] + turn);
      if (w >= static_cast<uint32_t>(words)) continue;
      __builtin_assume(__isGlobal(row[r]));  // which a shuffle does not tell the compiler
      word[r] = reinterpret_cast<const From*>(row[r])[w];
    }
    typename Map::To* to = out;
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r, to += row_step) {
      const uint32_t w = static_cast<uint32_t>(begin[r] + turn);
      if (w < static_cast<uint32_t>(words)) to[w] = Map::map(word[r]);
    }
  }
}

__device__ inline void count_rows(const Gather& task, int32_t tier, int64_t rows) {
  atomic_add(reinterpret_cast<uint64_t&>(task.counts[2 * tier]), static_cast<uint64_t>(rows));
}

template <typename Map, typename Index, typename Place>
__global__ void __launch_bounds__(kThreads, kLeastBlocks<Map, Place>)
    gather_kernel(const __grid_constant__ Gather task) {
  using To = typename Map::To;
  constexpr bool kOneMemory = std::is_same_v<Place, OneMemory>;
  __shared__ int counted[kMaxTiers];
  if constexpr (!kOneMemory) {
    if (threadIdx.x < kMaxTiers) counted[threadIdx.x] = 0;
    __syncthreads();
  }
  const GroupLane own(task.lanes);
  const int64_t tile = int64_t{own.groups} * kRowsAtOnce;
  for (int64_t first = blockIdx.x * tile; first < task.rows; first += gridDim.x * tile) {
    const char* row[kRowsAtOnce];
    if constexpr (kOneMemory) {
      find_in_one_memory<Index>(task, own, first, row);
    } else {
      const auto place_of = [&task](int64_t i) {
        const int64_t id = static_cast<int64_t>(static_cast<const Index*>(task.index)[i]);
        if constexpr (std::is_void_v<Place>) {
          return id;
        } else {
          return static_cast<int64_t>(static_cast<const Place*>(task.place)[id]);
        }
      };
      find_in_tiers(task, own, first, counted, place_of, row);
    }
    To* const out = reinterpret_cast<To*>(task.out) + (first + own.group) * task.words;
    copy_group<Map>(row, task.words, own, out, int64_t{own.groups} * task.words);
  }
  if (task.counts == nullptr) return;
  const int32_t tier = static_cast<int32_t>(threadIdx.x);
  if constexpr (kOneMemory) {
    if (blockIdx.x == 0 && tier == 0) count_rows(task, 0, task.rows);
  } else {
    __syncthreads();
    if (tier < task.table.num_tiers && counted[tier] > 0) count_rows(task, tier, counted[tier]);
  }
}

// How many tiles of rows a gather has; its `lanes` are known.
inline int64_t tiles_of(const Gather& task) {
  const int64_t tile = int64_t{kThreads / task.lanes} * kRowsAtOnce;
  return (task.rows + tile - 1) / tile;
}

// So many blocks for each multiprocessor of the device.
inline int64_t blocks_of_device(int64_t of_each) {
  int device = 0, multiprocessors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  return std::max(multiprocessors, 1) * of_each;
}

template <typename Map, typename Index, typename Place>
void launch_gather(Gather task, cudaStream_t stream) {
  task.lanes = lanes_of(task.words);
  const int64_t blocks = std::min(tiles_of(task), task.over_bus ? blocks_of_device(kBlocksOnBus) : kMaxBlocks);
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

// Calls f(map, words): rows of `row_bytes` bytes are copied as they are, in words of the widest type that divides them.
template <typename F>
void with_kept(const TierTable& table, int64_t row_bytes, F&& f) {
  const uint64_t aligned = alignment_of(table, row_bytes);
  const auto words_of = [&](auto word) {
    f(Keep<decltype(word)>{}, static_cast<int32_t>(row_bytes / static_cast<int64_t>(sizeof(word))));
  };
  if (aligned % 16 == 0) {
    words_of(uint4{});
  } else if (aligned % 8 == 0) {
    words_of(uint64_t{});
  } else if (aligned % 4 == 0) {
    words_of(uint32_t{});
  } else if (aligned % 2 == 0) {
    words_of(uint16_t{});
  } else {
    words_of(uint8_t{});
  }
}

// Calls f(map, words) for rows of `items` items that are widened.
template <typename Item, typename Out, typename F>
void with_widened(const TierTable& table, int64_t items, F&& f) {
  const uint64_t aligned = alignment_of(table, items * static_cast<int64_t>(sizeof(Item)));
  if (aligned % 16 == 0) {
    f(Widen<Item, Out, 8>{}, static_cast<int32_t>(items / 8));
  } else if (aligned % 4 == 0) {
    f(Widen<Item, Out, 2>{}, static_cast<int32_t>(items / 2));
  } else {
    f(Widen<Item, Out, 1>{}, static_cast<int32_t>(items));
  }
}

}  // namespace gnnscale
