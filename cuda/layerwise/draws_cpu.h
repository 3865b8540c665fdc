// r_v of many nodes on the CPU: draw 0 of each, several at a time where the processor has AVX2 or AVX-512.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../sample/pick_lanes_cpu.h"
#include "schemes.h"

namespace gnnscale {

constexpr int64_t kDrawsTogether = 32;  // of find_low_draws()

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
    const __mmask8 there = static_cast<__mmask8>(count - i < kLanes ? (1u << (count - i)) - 1 : kAllLanes);
    const __mmask8 below = _mm512_mask_cmple_epu64_mask(there, _mm512_maskz_loadu_epi64(there, draws + i), most);
    _mm512_storeu_si512(found + k, _mm512_maskz_compress_epi64(below, at));
    k += __builtin_popcount(below);
    at = _mm512_add_epi64(at, step);
  }
  return k;
}

// (the high words of products) ^ b ^ c.
GNNSCALE_AVX512 GNNSCALE_INLINE __m512i high_xor(__m512i product, __m512i b, __m512i c) {
  return _mm512_ternarylogic_epi64(_mm512_srli_epi64(product, kWordBits), b, c, kXor3);
}

// Replaces ids of 32 bits by the high words of their draws 0: as draw_nodes(), but computes only what decides these.
template <int count>
GNNSCALE_AVX512 GNNSCALE_INLINE void high_words(const RoundKeys& keys, __m512i tail, __m512i (&word)[count]) {
  const __m512i m0 = _mm512_set1_epi64(kPhiloxM0), m1 = _mm512_set1_epi64(kPhiloxM1);
  const auto& key = keys.word;
  // Rounds 0 and 1: words 1 and 2 of a counter are 0, so that word 0 of round 1 is a key.
  const __m512i product = _mm512_mul_epu32(_mm512_set1_epi64(key[0][0]), m0);
  const __m512i high = _mm512_xor_si512(_mm512_srli_epi64(product, kWordBits), _mm512_set1_epi64(key[1][1]));
  __m512i w0[count], w1[count], w2[count], w3[count];
#pragma GCC unroll 4
  for (int c = 0; c < count; ++c) {
    const __m512i p0 = _mm512_mul_epu32(word[c], m0);
    const __m512i p1 = _mm512_mul_epu32(high_xor(p0, tail, _mm512_set1_epi64(key[0][1])), m1);
    w0[c] = _mm512_xor_si512(_mm512_srli_epi64(p1, kWordBits), _mm512_set1_epi64(key[1][0]));
    w1[c] = p1;
    w2[c] = _mm512_xor_si512(high, p0);
    w3[c] = product;
  }
#pragma GCC unroll 6
  for (int round = 2; round < 8; ++round) {
    const __m512i key0 = _mm512_set1_epi64(key[round][0]), key1 = _mm512_set1_epi64(key[round][1]);
#pragma GCC unroll 4
    for (int c = 0; c < count; ++c) {
      const __m512i p0 = _mm512_mul_epu32(w0[c], m0), p1 = _mm512_mul_epu32(w2[c], m1);
      w0[c] = high_xor(p1, w1[c], key0);
      w1[c] = p1;
      w2[c] = high_xor(p0, w3[c], key1);
      w3[c] = p0;
    }
  }
  // Rounds 8 and 9: word 1 is a product of word 2, and that one of words 0 and 3.
#pragma GCC unroll 4
  for (int c = 0; c < count; ++c) {
    word[c] = _mm512_mul_epu32(high_xor(_mm512_mul_epu32(w0[c], m0), w3[c], _mm512_set1_epi64(key[8][1])), m1);
  }
}

GNNSCALE_AVX512 inline int64_t find_low_draws_avx512(uint64_t key, uint32_t tail, const uint32_t* ids,
                                                     const uint32_t* sums, uint32_t mask, float factor, int64_t count,
                                                     uint32_t* found) {
  constexpr int kHalves = 2;  // of kDrawsTogether
  const RoundKeys keys(key);
  const __m512i tails = _mm512_set1_epi64(tail), step = _mm512_set1_epi32(kDrawsTogether / kHalves);
  const __m512i masks = _mm512_set1_epi32(static_cast<int>(mask));
  const __m512 factors = _mm512_set1_ps(factor);
  __m512i at = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  int64_t k = 0;
  for (int64_t i = 0; i < count; i += kDrawsTogether) {
    __m512i word[2 * kHalves], limit[kHalves];  // words of a half: of even ids, then of odd ones
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) {
      word[2 * h] = _mm512_loadu_si512(ids + i + h * kDrawsTogether / kHalves);
      word[2 * h + 1] = _mm512_srli_epi64(word[2 * h], kWordBits);
      const __m512i sum = _mm512_i32gather_epi32(_mm512_and_si512(word[2 * h], masks), sums, sizeof(uint32_t));
      limit[h] = _mm512_cvttps_epu32(_mm512_mul_ps(_mm512_cvtepu32_ps(sum), factors));  // 2^32 - 1 if it is larger
    }
    high_words(keys, tails, word);
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) {
      const __m512i high = _mm512_mask_blend_epi32(0xAAAA, word[2 * h], _mm512_slli_epi64(word[2 * h + 1], kWordBits));
      const __mmask16 low = _mm512_cmple_epu32_mask(high, limit[h]);
      _mm512_storeu_si512(found + k, _mm512_maskz_compress_epi32(low, at));
      k += __builtin_popcount(low);
      at = _mm512_add_epi32(at, step);
    }
  }
  return k;
}
#endif

// Stores at `found` the positions of those of `count` draws that are at most `limit`, ascending; returns their number.
// `found` has room for kLanes more.
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

// Stores at `found`, ascending, all i < count for which the high word of draw 0 of ids[i] is at most
// factor sums[ids[i] & mask], in floating point; returns their number. count: a multiple of kDrawsTogether. `found` has
// room for kDrawsTogether more. mask: below 2^31.
inline int64_t find_low_draws(uint64_t key, int hop, const uint32_t* ids, const uint32_t* sums, uint32_t mask,
                              float factor, int64_t count, uint32_t* found) {
#if defined(__x86_64__)
  if (simd() == Simd::kAvx512) {
    return find_low_draws_avx512(key, make_counter(0, 0, hop, kNodeDraws).tail, ids, sums, mask, factor, count, found);
  }
#endif
  int64_t nodes[kDrawsTogether], k = 0;
  uint64_t draws[kDrawsTogether];
  for (int64_t i = 0; i < count; i += kDrawsTogether) {
    std::copy_n(ids + i, kDrawsTogether, nodes);
    draw_nodes(key, hop, nodes, kDrawsTogether, draws);
    for (int64_t j = 0; j < kDrawsTogether; ++j) {
      found[k] = static_cast<uint32_t>(i + j);
      k += static_cast<float>(draws[j] >> 32) <= static_cast<float>(sums[ids[i + j] & mask]) * factor;
    }
  }
  return k;
}

}  // namespace gnnscale
