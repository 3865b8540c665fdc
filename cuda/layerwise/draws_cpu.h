// r_v of many nodes on the CPU: draw 0 of each, several at a time where the processor has AVX2 or AVX-512.
#pragma once

#include <cstdint>

#include "../sample/pick_lanes_cpu.h"
#include "schemes.h"

namespace gnnscale {

#if defined(__x86_64__)
GNNSCALE_AVX2 inline int64_t draw_nodes_avx2(uint64_t key, uint32_t tail, const int64_t* nodes, int64_t count,
                                             uint64_t* draws) {
  const RoundKeys keys(key);
  const __m256i low = _mm256_set1_epi64x(0xFFFFFFFF);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    PhiloxLanes lanes;
    for (int v = 0; v < kVectors; ++v) {
      const __m256i node = load(nodes + i, v);
      lanes.word[0][v] = node;
      lanes.word[1][v] = _mm256_srli_epi64(node, kWordBits);
      lanes.word[2][v] = _mm256_setzero_si256();
      lanes.word[3][v] = _mm256_set1_epi64x(tail);
    }
    lanes.run(keys);
    for (int v = 0; v < kVectors; ++v) {
      const __m256i draw =
          _mm256_or_si256(_mm256_and_si256(lanes.word[0][v], low), _mm256_slli_epi64(lanes.word[1][v], kWordBits));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(draws + i) + v, draw);
    }
  }
  return i;
}

// Four vectors at once, so that the products of one are computed during the latency of another's.
GNNSCALE_AVX512 inline int64_t draw_nodes_avx512(uint64_t key, uint32_t tail, const int64_t* nodes, int64_t count,
                                                 uint64_t* draws) {
  constexpr int kTogether = 4;
  const RoundKeys keys(key);
  const __m512i low = _mm512_set1_epi64(0xFFFFFFFF);
  int64_t i = 0;
  for (; i + kTogether * kLanes <= count; i += kTogether * kLanes) {
    __m512i word[4][kTogether];
#pragma GCC unroll 4
    for (int c = 0; c < kTogether; ++c) {
      word[0][c] = _mm512_loadu_si512(nodes + i + c * kLanes);
      word[1][c] = _mm512_srli_epi64(word[0][c], kWordBits);
      word[2][c] = _mm512_setzero_si512();
      word[3][c] = _mm512_set1_epi64(tail);
    }
    run_rounds<kTogether>(keys, word);
#pragma GCC unroll 4
    for (int c = 0; c < kTogether; ++c) {
      const __m512i high = _mm512_slli_epi64(word[1][c], kWordBits);
      _mm512_storeu_si512(draws + i + c * kLanes, _mm512_or_si512(_mm512_and_si512(word[0][c], low), high));
    }
  }
  return i;
}

GNNSCALE_AVX512 inline int64_t find_below_avx512(const uint64_t* draws, int64_t count, uint64_t limit, int64_t* found) {
  const __m512i most = _mm512_set1_epi64(static_cast<int64_t>(limit)), step = _mm512_set1_epi64(kLanes);
  __m512i at = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
  int64_t k = 0;
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask8 there = static_cast<__mmask8>(count - i < kLanes ? (1u << (count - i)) - 1 : 0xFF);
    const __mmask8 below = _mm512_mask_cmple_epu64_mask(there, _mm512_maskz_loadu_epi64(there, draws + i), most);
    _mm512_storeu_si512(found + k, _mm512_maskz_compress_epi64(below, at));
    k += __builtin_popcount(below);
    at = _mm512_add_epi64(at, step);
  }
  return k;
}
#endif

// Stores at `found`, which has room for kLanes more, which of `count` draws are at most `limit`, ascending. Returns how
// many they are.
inline int64_t find_below(const uint64_t* draws, int64_t count, uint64_t limit, int64_t* found) {
#if defined(__x86_64__)
  if (simd() == Simd::kAvx512) return find_below_avx512(draws, count, limit, found);
#endif
  int64_t k = 0;
  for (int64_t i = 0; i < count; ++i) {
    found[k] = i;
    k += draws[i] <= limit;
  }
  return k;
}

// draws[i] = draw 0 of nodes[i] in a hop.
inline void draw_nodes(uint64_t key, int hop, const int64_t* nodes, int64_t count, uint64_t* draws) {
  int64_t i = 0;
#if defined(__x86_64__)
  const uint32_t tail = make_counter(0, 0, hop, kNodeDraws).tail;
  if (simd() == Simd::kAvx512) i = draw_nodes_avx512(key, tail, nodes, count, draws);
  if (simd() != Simd::kNone) i += draw_nodes_avx2(key, tail, nodes + i, count - i, draws + i);
#endif
  for (; i < count; ++i) draws[i] = node_draw(key, hop, nodes[i]);
}

}  // namespace gnnscale
