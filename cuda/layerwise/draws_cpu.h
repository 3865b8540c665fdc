// r_v of many nodes on the CPU: draw 0 of each, eight at a time where the processor has AVX2.
#pragma once

#include <cstdint>

#include "../sample/pick_lanes_cpu.h"

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
#endif

// draws[i] = draw 0 of nodes[i] in a hop.
inline void draw_nodes(uint64_t key, int hop, const int64_t* nodes, int64_t count, uint64_t* draws) {
  int64_t i = 0;
#if defined(__x86_64__)
  if (simd() != Simd::kNone) i = draw_nodes_avx2(key, make_counter(0, 0, hop, 0).tail, nodes, count, draws);
#endif
  for (; i < count; ++i) draws[i] = philox_draw(draw_block(key, make_counter(nodes[i], 0, hop, 0), 0), 0);
}

}  // namespace gnnscale
