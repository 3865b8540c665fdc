// Which edges of a hop of LADIES can have a drawn source, on the CPU.
//
// A candidate v can be drawn only if r_v < q_v L, for a guess L that few candidates are below. Its score q_v is bounded
// from above: a cell, at v modulo the number of cells, sums the terms of all edges with sources there, rounded up to
// units of 2^shift. There are about as many cells as edges, so that they fit the caches. One pass adds to the cells; a
// second one draws r_v for each edge and keeps the edges whose r_v is below the cell's sum times L: all edges of all
// candidates below L, and a few others.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>

#include "../memory/pool.h"
#include "draws_cpu.h"

namespace gnnscale {

constexpr int64_t kSieveLanes = 8;

// Sets bit i of passing[i / 8], i < count, if draws[i] >> shift <= sums[i] * factor; the product of each fits 64 bits.
// count: a multiple of 8.
inline void find_passing(const uint64_t* draws, const uint32_t* sums, int64_t count, uint64_t factor, int shift,
                         uint8_t* passing) {
  for (int64_t i = 0; i < count; i += kSieveLanes) {
    unsigned mask = 0;
    for (int64_t lane = 0; lane < kSieveLanes; ++lane) {
      mask |= static_cast<unsigned>(draws[i + lane] >> shift <= sums[i + lane] * factor) << lane;
    }
    passing[i / kSieveLanes] = static_cast<uint8_t>(mask);
  }
}

// The sum of the lesser of cells[i] and `bound`, for i < count; it is below 2^32.
inline uint32_t sum_of_lesser(const uint32_t* cells, int64_t count, uint32_t bound) {
  uint32_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += std::min(cells[i], bound);
  return sum;
}

#if defined(__x86_64__)
GNNSCALE_AVX512 inline void find_passing_avx512(const uint64_t* draws, const uint32_t* sums, int64_t count,
                                                uint64_t factor, int shift, uint8_t* passing) {
  const __m512i factors = _mm512_set1_epi64(static_cast<int64_t>(factor));
  const __m128i by = _mm_cvtsi32_si128(shift);
  for (int64_t i = 0; i < count; i += kSieveLanes) {
    const __m512i sum = _mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums + i)));
    const __m512i draw = _mm512_srl_epi64(_mm512_loadu_si512(draws + i), by);
    passing[i / kSieveLanes] = _mm512_cmple_epu64_mask(draw, _mm512_mul_epu32(sum, factors));
  }
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

template <typename Id>
class Sieve {
 public:
  static constexpr int64_t kMostEdges = int64_t{1} << 30;

  // For `edges` < kMostEdges edges, at least one, whose terms sum to `total`.
  Sieve(int64_t edges, int64_t num_src, uint64_t total)
      : shift_(std::max(bit_length(total) - kSumBits, 0)),
        cells_(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::min(edges, num_src))))),
        sums_(cells_),
        sources_(edges + kSieveLanes) {
    std::fill_n(sums_.data(), cells_, 0);
  }

  // Adds a list of `count` edges, edge i from source(i).
  template <typename F>
  GNNSCALE_INLINE void add(int64_t count, uint64_t term, F&& source) {
    const uint32_t units = static_cast<uint32_t>(((term - 1) >> shift_) + 1);
    uint32_t* const sums = sums_.data();
    Id* const to = sources_.data() + edges_;
    const uint64_t mask = static_cast<uint64_t>(cells_) - 1;
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t id = source(i);
      to[i] = static_cast<Id>(id);
      sums[id & mask] += units;
    }
    edges_ += count;
    units_ += units * static_cast<double>(count);
  }

  // L, which `wanted` candidates are below in expectation; 0: there are too few. The sources in the cells of `known`
  // nodes are not counted, and sift() keeps all their edges.
  uint64_t guess(double wanted, const int64_t* known, int64_t num_known) {
    double all = units_;
    for (int64_t i = 0; i < num_known; ++i) all -= std::exchange(sums_[cell(known[i])], 0);
    // A candidate is below L with probability min(1, q_v / bound), where L = 2^64 / (2^shift bound).
    double bound = all / wanted;
    for (int i = 0; i < kGuesses && bound >= 2; ++i) {
      const double before = std::exchange(bound, lesser_sum(static_cast<uint32_t>(bound)) / wanted);
      if (bound > kClose * before) break;
    }
    for (int64_t i = 0; i < num_known; ++i) sums_[cell(known[i])] = UINT32_MAX;
    return bound < 2 ? 0 : static_cast<uint64_t>(std::ldexp(1 / bound, kDrawBits - shift_));
  }

  // Stores in `kept` the edges, ascending, of all candidates with r_v < q_v `limit`, and of some others. limit: what
  // guess() returned. Meanwhile calls prefetch(source) for each of these.
  template <typename F>
  void sift(uint64_t key, int hop, uint64_t limit, Vector<uint32_t>& kept, F&& prefetch) {
    std::fill_n(sources_.data() + edges_, kSieveLanes, Id{0});
    const int cut = std::max(bit_length(limit) - kFactorBits, 0);
    const uint64_t factor = (limit >> cut) + (cut > 0 ? 1 : 0);  // limit <= factor 2^cut
    int64_t ids[kChunk];
    uint64_t draws[kChunk];
    uint32_t sums[kChunk];
    uint8_t passing[kChunk / kSieveLanes];
    for (int64_t from = 0; from < edges_; from += kChunk) {
      const int64_t some = std::min(kChunk, edges_ - from);
      const int64_t size = (some + kSieveLanes - 1) / kSieveLanes * kSieveLanes;
      for (int64_t i = 0; i < size; ++i) {
        ids[i] = static_cast<int64_t>(sources_[from + i]);
        sums[i] = sums_[cell(ids[i])];
      }
      draw_nodes(key, hop, ids, size, draws);
      find(draws, sums, size, factor, cut + shift_, passing);
      for (int64_t i = 0; i < some; i += kSieveLanes) {
        for (unsigned mask = passing[i / kSieveLanes]; mask != 0; mask &= mask - 1) {
          const int64_t at = i + std::countr_zero(mask);
          prefetch(ids[at]);
          kept.push_back(static_cast<uint32_t>(from + at));
        }
      }
    }
    while (!kept.empty() && kept.back() >= edges_) kept.pop_back();
  }

  // The source of an edge, by its number among all that were added.
  int64_t source(int64_t edge) const { return static_cast<int64_t>(sources_[edge]); }

 private:
  static constexpr int kSumBits = 30;  // the sum of all cells, rounded up, is below 2^kSumBits + kMostEdges <= 2^31
  static constexpr int kFactorBits = 31;
  static constexpr int kGuesses = 8;
  static constexpr double kClose = 0.98;
  static constexpr int64_t kChunk = 512;

  GNNSCALE_INLINE int64_t cell(int64_t node) const { return node & (cells_ - 1); }

  uint32_t lesser_sum(uint32_t bound) const {
#if defined(__x86_64__)
    if (simd() == Simd::kAvx512) return sum_of_lesser_avx512(sums_.data(), cells_, bound);
#endif
    return sum_of_lesser(sums_.data(), cells_, bound);
  }

  static void find(const uint64_t* draws, const uint32_t* sums, int64_t count, uint64_t factor, int shift,
                   uint8_t* passing) {
#if defined(__x86_64__)
    if (simd() == Simd::kAvx512) return find_passing_avx512(draws, sums, count, factor, shift, passing);
#endif
    find_passing(draws, sums, count, factor, shift, passing);
  }

  const int shift_;
  const int64_t cells_;  // a power of 2
  PooledArray<uint32_t> sums_;
  PooledArray<Id> sources_;
  int64_t edges_ = 0;
  double units_ = 0;  // what was added
};

}  // namespace gnnscale
