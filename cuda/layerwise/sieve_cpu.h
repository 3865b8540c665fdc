// Which edges of a hop of LADIES can have a drawn source, on the CPU.
//
// L is a guess of a limit with r_v / q_v < L for all drawn candidates v, and for few others. A candidate's score q_v is
// bounded from above by the sum in its cell, number v modulo the number of cells: that of the terms of all edges whose
// sources have this cell, rounded up to units of 2^shift. One pass over the edges adds to the cells, and lists the
// sources one after another. A second one, over that list, draws the high word of each source's r_v, and keeps an edge
// if this is at most the high word of (the cell's sum) L. So it keeps all edges of all candidates with r_v < q_v L, and
// some others, whose sources share a cell with many or large scores. Cells are few, so that they stay in the caches
// however large the graph is, but many more than the nodes to draw, so that few other edges are kept.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>

#include "../memory/pool.h"
#include "draws_cpu.h"
#include "sources_cpu.h"

namespace gnnscale {

// The sum of the lesser of cells[i] and `bound`, for i < count; it is below 2^32.
inline uint32_t sum_of_lesser(const uint32_t* cells, int64_t count, uint32_t bound) {
  uint32_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += std::min(cells[i], bound);
  return sum;
}

// The largest of ids[i], i < count; 0 if there are none.
inline uint32_t largest(const uint32_t* ids, int64_t count) {
  uint32_t most = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, ids[i]);
  return most;
}

#if defined(__x86_64__)
GNNSCALE_AVX512 inline uint32_t largest_avx512(const uint32_t* ids, int64_t count) {
  constexpr int64_t kTogether = 16;
  __m512i most = _mm512_setzero_si512();
  int64_t i = 0;
  for (; i + kTogether <= count; i += kTogether) most = _mm512_max_epu32(most, _mm512_loadu_si512(ids + i));
  uint32_t lanes[kTogether];
  _mm512_storeu_si512(lanes, most);
  return std::max(largest(lanes, kTogether), largest(ids + i, count - i));
}

GNNSCALE_AVX512 inline uint32_t sum_of_lesser_avx512(const uint32_t* cells, int64_t count, uint32_t bound) {
  constexpr int64_t kTogether = 16;
  const __m512i bounds = _mm512_set1_epi32(static_cast<int>(bound));
  __m512i sum = _mm512_setzero_si512();
  int64_t i = 0;
  for (; i + kTogether <= count; i += kTogether) {
    sum = _mm512_add_epi32(sum, _mm512_min_epu32(_mm512_loadu_si512(cells + i), bounds));
  }
  return static_cast<uint32_t>(_mm512_reduce_add_epi32(sum)) + sum_of_lesser(cells + i, count - i, bound);
}
#endif

class Sieve {
 public:
  static constexpr int64_t kMostEdges = int64_t{1} << 30, kMostNodes = int64_t{1} << 31;

  // An edge, by its number among all that were added, and its source.
  struct Kept {
    uint32_t edge, source;
  };

  // For `edges` < kMostEdges edges, at least one, whose terms sum to `total`, and `wanted` sources to keep.
  Sieve(int64_t edges, int64_t wanted, uint64_t total)
      : shift_(std::max(bit_length(total) - kSumBits, 0)),
        cells_(static_cast<int64_t>(
            std::bit_floor(static_cast<uint64_t>(std::min(edges, std::max(kFewCells, kCellsToWanted * wanted)))))),
        sums_(cells_),
        sources_(padded(edges)) {
    std::fill_n(sums_.data(), cells_, 0);
  }

  // Adds the edges at the stored positions [first, first + count). Not inlined: callers lack registers.
  template <typename Id, int64_t kStride>
  __attribute__((noinline)) void add(const Sources<Id, kStride>& stored, int64_t first, int64_t count, uint64_t term) {
    const uint32_t units = static_cast<uint32_t>(((term - 1) >> shift_) + 1);
    const Sources<Id, kStride> from = stored;
    uint32_t *const sums = sums_.data(), *const sources = sources_.data() + added_;
    const uint64_t mask = static_cast<uint64_t>(cells_) - 1;
    uint64_t high = 0;
#pragma GCC unroll 4
    for (int64_t k = 0; k < count; ++k) {
      const uint64_t id = from.at(first + k);
      if constexpr (sizeof(Id) > sizeof(uint32_t)) high |= id >> 32;
      sources[k] = static_cast<uint32_t>(id);
      sums[id & mask] += units;
    }
    high_ |= high;
    units_ += units * static_cast<double>(count);
    added_ += count;
  }

  // Whether the sources of all edges that were added are in [0, num_src).
  bool all_below(int64_t num_src) const { return high_ == 0 && largest_source() < static_cast<uint64_t>(num_src); }

  // Returns L so that `wanted` candidates are expected to have r_v / q_v < L; 0 if there are too few candidates. The
  // sources in the cells of `known` nodes are not counted, and sift() keeps all their edges. To be called once, after
  // the last add().
  uint64_t guess(double wanted, const int64_t* known, int64_t num_known) {
    double all = units_;
    for (int64_t i = 0; i < num_known; ++i) all -= std::exchange(sums_[cell(known[i])], 0);
    // A candidate is below L with probability min(1, q_v / bound), where L = 2^64 / (2^shift bound).
    double bound = all / wanted;
    for (int i = 0; i < kGuesses && bound > 2; ++i) {
      const double before = std::exchange(bound, lesser_sum(static_cast<uint32_t>(bound)) / wanted);
      if (bound > kClose * before) break;
    }
    if (bound <= 2) return 0;
    const auto limit = static_cast<uint64_t>(std::ldexp(1 / bound, kDrawBits - shift_));
    // draw < sum 2^shift L implies (high word of draw) <= factor sum: 1 + 2^-20 exceeds what is lost when factor, sum
    // and product are rounded to 24 bits.
    factor_ = static_cast<float>(std::ldexp(static_cast<double>(limit), shift_ - kDrawBits / 2) * (1 + 0x1p-20));
    for (int64_t i = 0; i < num_known; ++i) sums_[cell(known[i])] = UINT32_MAX;
    return limit;
  }

  // Appends to `kept`, in the order in which they were added, all edges of candidates with r_v < q_v L, and some
  // others. cells: one for each node; those of the kept edges' sources are prefetched, to be written.
  void sift(uint64_t key, int hop, const uint32_t* cells, Vector<Kept>& kept) {
    const int64_t size = padded(added_);
    std::fill(sources_.data() + added_, sources_.data() + size, 0);
    const uint32_t* const sums = sums_.data();
    const uint32_t mask = static_cast<uint32_t>(cells_) - 1;
    uint32_t found[kChunk + kDrawsTogether];
    for (int64_t begin = 0; begin < size; begin += kChunk) {
      const uint32_t* const sources = sources_.data() + begin;
      const int64_t some = std::min(kChunk, size - begin);
      const int64_t count = find_low_draws(key, hop, sources, sums, mask, factor_, some, found);
      const size_t before = kept.size();
      kept.resize(before + count);
      for (int64_t k = 0; k < count; ++k) {
        kept[before + k] = {static_cast<uint32_t>(begin) + found[k], sources[found[k]]};
        GNNSCALE_PREFETCH_WRITE(cells + sources[found[k]]);
      }
    }
    while (!kept.empty() && kept.back().edge >= added_) kept.pop_back();
  }

 private:
  static constexpr int kSumBits = 30;  // the sum of all cells, rounded up, is below 2^kSumBits + kMostEdges <= 2^31
  static constexpr int kGuesses = 8;
  static constexpr double kClose = 0.98;
  static constexpr int64_t kChunk = 512;  // a multiple of kDrawsTogether
  static constexpr int64_t kFewCells = 1 << 16, kCellsToWanted = 32;

  // count, rounded up to a multiple of kDrawsTogether
  static int64_t padded(int64_t count) { return (count + kDrawsTogether - 1) / kDrawsTogether * kDrawsTogether; }

  GNNSCALE_INLINE int64_t cell(int64_t node) const { return node & (cells_ - 1); }

  uint32_t largest_source() const {
#if defined(__x86_64__)
    if (simd() == Simd::kAvx512) return largest_avx512(sources_.data(), added_);
#endif
    return largest(sources_.data(), added_);
  }

  uint32_t lesser_sum(uint32_t bound) const {
#if defined(__x86_64__)
    if (simd() == Simd::kAvx512) return sum_of_lesser_avx512(sums_.data(), cells_, bound);
#endif
    return sum_of_lesser(sums_.data(), cells_, bound);
  }

  const int shift_;
  const int64_t cells_;  // a power of 2
  PooledArray<uint32_t> sums_;
  PooledArray<uint32_t> sources_;  // of the edges that were added
  int64_t added_ = 0;
  uint64_t high_ = 0;  // bits of sources that do not fit 32 bits
  double units_ = 0;   // the sum of all that was added to cells
  float factor_ = 0;
};

}  // namespace gnnscale
