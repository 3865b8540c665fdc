// The kernel that gathers rows of several tables in tiers in one launch, whatever their widths, types and ids. Blocks
// take tiles of all tables in turn; what gather_kernel has as types, this one reads with each table.
#pragma once

#include <tuple>
#include <utility>
#include <vector>

#include "gather_cuda.h"

namespace gnnscale {

// Blocks that a multiprocessor works on at once, and of which there are so many: each gathers many tiles of a table.
constexpr int kTableBlocks = 2;

// What words of rows may become.
using Maps =
    std::tuple<Keep<uint4>, Keep<uint64_t>, Keep<uint32_t>, Keep<uint16_t>, Keep<uint8_t>, Widen<Half, float, 8>,
               Widen<Half, float, 2>, Widen<Half, float, 1>, Widen<Half, double, 8>, Widen<Half, double, 2>,
               Widen<Half, double, 1>, Widen<BFloat16, float, 8>, Widen<BFloat16, float, 2>, Widen<BFloat16, float, 1>,
               Widen<BFloat16, double, 8>, Widen<BFloat16, double, 2>, Widen<BFloat16, double, 1>>;
using MapNumbers = std::make_index_sequence<std::tuple_size_v<Maps>>;

template <typename Map, size_t... N>
constexpr int32_t number_of_map(std::index_sequence<N...>) {
  return ((std::is_same_v<Map, std::tuple_element_t<N, Maps>> ? static_cast<int32_t>(N) : 0) + ...);
}

// One of several gathers, in words of 8 bytes as it is uploaded.
struct TableGather {
  Gather gather;
  int64_t first_tile;                // tiles of the tables before
  int32_t map;                       // among Maps
  int32_t index_bytes, place_bytes;  // of an entry; place_bytes is 0 where there is no map of places
  int32_t word_bytes;                // of a stored word
  int64_t out_bytes;                 // of a row of the output

  static constexpr int kWords = static_cast<int>(sizeof(Gather) / 8 + 4);
};
static_assert(sizeof(TableGather) == TableGather::kWords * 8);

__device__ inline int64_t integer_at(const void* integers, int32_t bytes, int64_t i) {
  return bytes == 8 ? static_cast<const int64_t*>(integers)[i] : static_cast<const int32_t*>(integers)[i];
}

// The table that a tile is of: the last one whose first tile is not behind it, for tables without rows have no tiles.
__device__ inline int32_t table_of_tile(const TableGather* tables, int32_t count, int64_t tile) {
  int32_t first = 0, last = count - 1;
  while (first < last) {
    const int32_t middle = (first + last + 1) / 2;
    if (tables[middle].first_tile <= tile) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  return first;
}

// What a lane holds of a group's rows: a word of each, whatever its type.
struct TileWords {
  uint4 bits[kRowsAtOnce];
};

// Which word a lane has of each row in this turn; none if it is not less than `words`.
struct TileTurn {
  uint32_t word[kRowsAtOnce];
  uint32_t words;
};

template <typename Word>
__device__ void load_words(const char* const (&row)[kRowsAtOnce], const TileTurn& turn, TileWords& held) {
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    if (turn.word[r] >= turn.words) continue;
    __builtin_assume(__isGlobal(row[r]));
    const Word word = reinterpret_cast<const Word*>(row[r])[turn.word[r]];
    memcpy(&held.bits[r], &word, sizeof word);
  }
}

template <typename Map>
__device__ void store_words(const TileWords& held, const TileTurn& turn, char* out, int64_t row_step) {
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    if (turn.word[r] >= turn.words) continue;
    typename Map::From word;
    memcpy(&word, &held.bits[r], sizeof word);
    reinterpret_cast<typename Map::To*>(out)[r * row_step + turn.word[r]] = Map::map(word);
  }
}

template <size_t N = 0>
__device__ void store_words_by_map(int32_t map, const TileWords& held, const TileTurn& turn, char* out,
                                   int64_t row_step) {
  if constexpr (N + 1 < std::tuple_size_v<Maps>) {
    if (map != static_cast<int32_t>(N)) return store_words_by_map<N + 1>(map, held, turn, out, row_step);
  }
  store_words<std::tuple_element_t<N, Maps>>(held, turn, out, row_step);
}

// Copies a group's rows as copy_group does; `out` is where its first row goes.
__device__ inline void copy_group_of(const TableGather& of, const GroupLane& own, const char* const (&row)[kRowsAtOnce],
                                     char* out) {
  const int32_t words = of.gather.words, bytes = of.word_bytes;
  const int64_t row_step = int64_t{own.groups} * words;
  int32_t begin[kRowsAtOnce], end = 0;
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    const int32_t before = words_before(row[r], words, bytes, own.lanes);
    begin[r] = row[r] == nullptr ? words : own.lane - before;
    if (row[r] != nullptr) end = max(end, words + before);
  }
#pragma unroll 1
  for (int32_t first = 0; first < end; first += own.lanes) {
    TileTurn turn{{}, static_cast<uint32_t>(words)};
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) turn.word[r] = static_cast<uint32_t>(begin[r] + first);
    TileWords held;
    if (bytes == 16) {
      load_words<uint4>(row, turn, held);
    } else if (bytes == 8) {
      load_words<uint64_t>(row, turn, held);
    } else if (bytes == 4) {
      load_words<uint32_t>(row, turn, held);
    } else if (bytes == 2) {
      load_words<uint16_t>(row, turn, held);
    } else {
      load_words<uint8_t>(row, turn, held);
    }
    store_words_by_map(of.map, held, turn, out, row_step);
  }
}

static __global__ void __launch_bounds__(kThreads, kTableBlocks)
    gather_tables_kernel(const TableGather* __restrict__ tables, int32_t count, int64_t tiles) {
  __shared__ uint64_t words[TableGather::kWords];
  __shared__ int counted[kMaxTiers];
  const TableGather& of = *reinterpret_cast<const TableGather*>(words);
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  for (int64_t tile = blockIdx.x; tile < tiles;) {
    const int32_t table = table_of_tile(tables, count, tile);
    for (int32_t w = thread; w < TableGather::kWords; w += kThreads) {
      words[w] = reinterpret_cast<const uint64_t*>(tables + table)[w];
    }
    if (thread < kMaxTiers) counted[thread] = 0;
    __syncthreads();
    const GroupLane own(of.gather.lanes);
    const int64_t end = table + 1 < count ? tables[table + 1].first_tile : tiles;
    for (; tile < end; tile += gridDim.x) {
      const int64_t first = (tile - of.first_tile) * own.groups * kRowsAtOnce;
      const char* row[kRowsAtOnce];
      find_in_tiers(
          of.gather, own, first, counted,
          [&](int64_t i) {
            const int64_t id = integer_at(of.gather.index, of.index_bytes, i);
            return of.place_bytes == 0 ? id : integer_at(of.gather.place, of.place_bytes, id);
          },
          row);
      copy_group_of(of, own, row, of.gather.out + (first + own.group) * of.out_bytes);
    }
    __syncthreads();
    if (thread < of.gather.table.num_tiers && of.gather.counts != nullptr && counted[thread] > 0) {
      count_rows(of.gather, thread, counted[thread]);
    }
    __syncthreads();
  }
}

// The tables of one launch, of `threads` threads in a block, which the host puts together.
class TableGathers {
 public:
  explicit TableGathers(int threads) : threads_(threads) {}

  void add(TableGather table) {
    Gather& task = table.gather;
    task.lanes = lanes_of(task.words);
    table.first_tile = tiles_;
    const int64_t tile = int64_t{threads_ / task.lanes} * kRowsAtOnce;
    tiles_ += (task.rows + tile - 1) / tile;
    over_bus_ |= task.over_bus;
    const size_t begin = words_.size();
    words_.resize(begin + TableGather::kWords);
    std::memcpy(words_.data() + begin, &table, sizeof table);
  }

  bool empty() const { return words_.empty(); }
  const std::vector<int64_t>& words() const { return words_; }

  // `tables` are the words on the device.
  void launch(const int64_t* tables, cudaStream_t stream) const {
    const int64_t tiles = tiles_;
    const int threads = threads_;
    const int64_t blocks = std::min(tiles, blocks_of_device(over_bus_ ? kBlocksOnBus : kTableBlocks));
    const int32_t count = static_cast<int32_t>(words_.size() / TableGather::kWords);
    const auto* const first = reinterpret_cast<const TableGather*>(tables);
    gather_tables_kernel<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(first, count, tiles);
  }

 private:
  const int threads_;
  int64_t tiles_ = 0;
  bool over_bus_ = false;
  std::vector<int64_t> words_;
};

}  // namespace gnnscale
