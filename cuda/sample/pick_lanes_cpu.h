// Picks of kLanes frontier nodes at a time on the CPU: the functions of pick.h in vectors, and which of them the
// processor has.
//
// A lane is a node. Each 64-bit element of a vector belongs to one lane, so that a row of a vector of AVX-512, or of
// two vectors v = 0, 1 of AVX2, holds the same thing of all kLanes nodes:
//
//     lane                  0       1       2       3       4       5       6       7
//     node               node 0  node 1  node 2  node 3  node 4  node 5  node 6  node 7     AVX-512: one vector
//                        \____________ v = 0 ________/  \____________ v = 1 ________/     AVX2: two
//
//     counter, word 0    the low 32 bits of node          one Philox block of each lane:
//              word 1    the high 32 bits of node           words 0, 1: draw 2 b      (pick 2 b)
//              word 2    tree                               words 2, 3: draw 2 b + 1  (pick 2 b + 1)
//              word 3    tail | block b
//
// A word stands in the low 32 bits of its element; the high 32 bits have no effect, because the multiplication
// 32 x 32 = 64 bits reads only the low ones. Picks are stored pick by pick,
//
//     positions[i * kLanes + lane] = pick i of the node of a lane,
//
// and then transposed to node by node, the form in which the stored edges are read.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../pick.h"
#include "../simd_cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gnnscale {

constexpr int64_t kLanes = 8;        // nodes that are picked for together
constexpr int64_t kLaneFanout = 32;  // the largest fanout for which they are

// kLanes frontier nodes in the same hop.
struct PickGroup {
  // [kLanes]: ids, trees, where their candidates begin, how many there are
  const int64_t *node, *tree, *first, *degree;
  const int64_t* column;  // [kLanes + 1]: where the picks of each begin, and where the last one's end
  uint32_t tail;          // of their counters
};

// Picks of a group, by the scalar functions: positions[i * kLanes + lane] is first[lane] + pick i, for i < fanout <=
// kLaneFanout. A node whose picks no draw decides has its neighbors in stored order; what
// stands after its last one is not used.
inline void pick_group_scalar(uint64_t key, const PickGroup& group, int64_t fanout, bool replace, int64_t* positions) {
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    const int64_t first = group.first[lane], degree = group.degree[lane];
    const bool random = pick_is_random(degree, fanout, replace);
    const Counter counter{static_cast<uint32_t>(group.node[lane]),
                          static_cast<uint32_t>(static_cast<uint64_t>(group.node[lane]) >> 32),
                          static_cast<uint32_t>(group.tree[lane]), group.tail};
    Philox block{};
    for (int64_t i = 0; i < fanout; ++i) {
      if (!random) {
        positions[i * kLanes + lane] = first + i;
        continue;
      }
      if (i % 2 == 0) block = draw_block(key, counter, static_cast<uint32_t>(i / 2));
      const auto taken = [&](uint64_t position) {
        for (int64_t k = 0; k < i; ++k) {
          if (positions[k * kLanes + lane] == first + static_cast<int64_t>(position)) return true;
        }
        return false;
      };
      positions[i * kLanes + lane] =
          first +
          static_cast<int64_t>(pick(philox_draw(block, static_cast<int>(i % 2)), static_cast<uint64_t>(i),
                                    static_cast<uint64_t>(fanout), static_cast<uint64_t>(degree), replace, taken));
    }
  }
}

// Copies the picks of a group from positions[i * kLanes + lane] to out[column[lane] - column[0] + i].
inline void by_node_scalar(const int64_t* positions, const int64_t* column, int64_t* out) {
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    const int64_t count = column[lane + 1] - column[lane];
    for (int64_t i = 0; i < count; ++i) out[i] = positions[i * kLanes + lane];
    out += count;
  }
}

// The first `count` draws of a counter, rounded up to whole blocks.
inline void draw_many_scalar(uint64_t key, const Counter& counter, int64_t count, uint64_t* draws) {
  for (int64_t block = 0; 2 * block < count; ++block) {
    const Philox words = draw_block(key, counter, static_cast<uint32_t>(block));
    draws[2 * block] = philox_draw(words, 0);
    draws[2 * block + 1] = philox_draw(words, 1);
  }
}

#if defined(__x86_64__)
// The keys of all rounds.
struct RoundKeys {
  int64_t word[kPhiloxRounds][2];

  explicit RoundKeys(uint64_t key) {
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (auto& round : word) {
      round[0] = k0;
      round[1] = k1;
      k0 += kPhiloxW0;
      k1 += kPhiloxW1;
    }
  }
};

constexpr int kVectors = 2;    // of AVX2, that hold kLanes lanes
constexpr int kWordBits = 32;  // of a Philox word
constexpr int64_t kDraws = 2;  // of a Philox block

// A Philox block of each lane: word[w][v] is word w of the lanes of vector v.
struct PhiloxLanes {
  __m256i word[4][kVectors];

  GNNSCALE_AVX2 GNNSCALE_INLINE void run(const RoundKeys& keys) {
    const __m256i m0 = _mm256_set1_epi64x(kPhiloxM0), m1 = _mm256_set1_epi64x(kPhiloxM1);
#pragma GCC unroll kPhiloxRounds
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const __m256i key0 = _mm256_set1_epi64x(keys.word[round][0]), key1 = _mm256_set1_epi64x(keys.word[round][1]);
#pragma GCC unroll kVectors
      for (int v = 0; v < kVectors; ++v) {
        const __m256i p0 = _mm256_mul_epu32(word[0][v], m0), p1 = _mm256_mul_epu32(word[2][v], m1);
        word[0][v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, kWordBits), word[1][v]), key0);
        word[1][v] = p1;
        word[2][v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, kWordBits), word[3][v]), key1);
        word[3][v] = p0;
      }
    }
  }
};

GNNSCALE_AVX2 GNNSCALE_INLINE __m256i load(const int64_t* from, int v) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + v);
}

GNNSCALE_AVX2 inline void pick_group_avx2(const RoundKeys& keys, const PickGroup& group, int64_t fanout, bool replace,
                                          int64_t* positions) {
  const __m256i one = _mm256_set1_epi64x(1);
  __m256i random[kVectors], bound[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const __m256i degree = load(group.degree, v);
    random[v] = _mm256_cmpgt_epi64(degree, _mm256_set1_epi64x(replace ? 0 : fanout));
    bound[v] = replace ? degree : _mm256_sub_epi64(degree, _mm256_set1_epi64x(fanout - 1));
  }
  for (int64_t block = 0; kDraws * block < fanout; ++block) {
    PhiloxLanes lanes;
    for (int v = 0; v < kVectors; ++v) {
      const __m256i node = load(group.node, v);
      lanes.word[0][v] = node;
      lanes.word[1][v] = _mm256_srli_epi64(node, kWordBits);
      lanes.word[2][v] = load(group.tree, v);
      lanes.word[3][v] = _mm256_set1_epi64x(group.tail | static_cast<uint32_t>(block));
    }
    lanes.run(keys);
    for (int64_t i = kDraws * block; i < std::min(kDraws * (block + 1), fanout); ++i) {
      const int draw = static_cast<int>(i % kDraws);
      for (int v = 0; v < kVectors; ++v) {
        // mulhi64(draw, bound) in halves, for bounds below 2^32
        const __m256i lower = _mm256_mul_epu32(draw == 0 ? lanes.word[0][v] : lanes.word[2][v], bound[v]);
        const __m256i upper = _mm256_mul_epu32(draw == 0 ? lanes.word[1][v] : lanes.word[3][v], bound[v]);
        const __m256i first = load(group.first, v);
        __m256i position = _mm256_srli_epi64(_mm256_add_epi64(upper, _mm256_srli_epi64(lower, kWordBits)), kWordBits);
        position = _mm256_add_epi64(first, position);
        if (!replace) {
          __m256i taken = _mm256_setzero_si256();
          for (int64_t k = 0; k < i; ++k) {
            taken = _mm256_or_si256(taken, _mm256_cmpeq_epi64(position, load(positions + k * kLanes, v)));
          }
          position = _mm256_blendv_epi8(position, _mm256_add_epi64(first, _mm256_sub_epi64(bound[v], one)), taken);
          bound[v] = _mm256_add_epi64(bound[v], one);
        }
        const __m256i in_order = _mm256_add_epi64(first, _mm256_set1_epi64x(i));
        position = _mm256_blendv_epi8(in_order, position, random[v]);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(positions + i * kLanes) + v, position);
      }
    }
  }
}

constexpr int kXor3 = 0x96;  // the truth table of a ^ b ^ c
constexpr __mmask8 kAllLanes = 0xFF;
constexpr int64_t kMostBlocks = 3;  // Philox blocks of each lane that are made side by side

// The rounds of `count` vectors of Philox blocks side by side, so that none waits for its own products: word[w][c]
// holds word w of the blocks of vector c.
template <int count>
GNNSCALE_AVX512 GNNSCALE_INLINE void run_rounds(const RoundKeys& keys, __m512i (&word)[4][count]) {
  const __m512i m0 = _mm512_set1_epi64(kPhiloxM0), m1 = _mm512_set1_epi64(kPhiloxM1);
#pragma GCC unroll kPhiloxRounds
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const __m512i key0 = _mm512_set1_epi64(keys.word[round][0]), key1 = _mm512_set1_epi64(keys.word[round][1]);
#pragma GCC unroll 4
    for (int c = 0; c < count; ++c) {
      const __m512i p0 = _mm512_mul_epu32(word[0][c], m0), p1 = _mm512_mul_epu32(word[2][c], m1);
      word[0][c] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, kWordBits), word[1][c], key0, kXor3);
      word[1][c] = p1;
      word[2][c] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, kWordBits), word[3][c], key1, kXor3);
      word[3][c] = p0;
    }
  }
}

// The picks of a group, in vectors of kLanes lanes.
template <bool replace>
class WideGroup {
 public:
  GNNSCALE_AVX512 GNNSCALE_INLINE WideGroup(const PickGroup& group, int64_t fanout)
      : node_(_mm512_loadu_si512(group.node)),
        tree_(_mm512_loadu_si512(group.tree)),
        tail_(_mm512_set1_epi64(group.tail)),
        first_(_mm512_loadu_si512(group.first)) {
    const __m512i degree = _mm512_loadu_si512(group.degree);
    random_ = _mm512_cmpgt_epi64_mask(degree, _mm512_set1_epi64(replace ? 0 : fanout));
    bound_ = replace ? degree : _mm512_sub_epi64(degree, _mm512_set1_epi64(fanout - 1));
    last_ = _mm512_add_epi64(first_, _mm512_sub_epi64(bound_, _mm512_set1_epi64(1)));
    in_order_ = first_;
  }

  // Stores the picks that `count` Philox blocks from `block` on decide. The blocks are made side by side, so that none
  // waits for its own products.
  template <int count>
  GNNSCALE_AVX512 GNNSCALE_INLINE void pick(const RoundKeys& keys, int64_t block, int64_t fanout, int64_t* positions) {
    __m512i word[4][count];
#pragma GCC unroll kMostBlocks
    for (int c = 0; c < count; ++c) {
      word[0][c] = node_;
      word[1][c] = _mm512_srli_epi64(node_, kWordBits);
      word[2][c] = tree_;
      word[3][c] = _mm512_or_si512(tail_, _mm512_set1_epi64(block + c));
    }
    run_rounds<count>(keys, word);
#pragma GCC unroll kMostBlocks
    for (int c = 0; c < count; ++c) {
      const int64_t i = kDraws * (block + c);
      store(i, word[0][c], word[1][c], positions);
      if (i + 1 < fanout) store(i + 1, word[2][c], word[3][c], positions);
    }
  }

 private:
  // Pick i of every lane, from the low and high words of its draw.
  GNNSCALE_AVX512 GNNSCALE_INLINE void store(int64_t i, __m512i low, __m512i high, int64_t* positions) {
    const __m512i one = _mm512_set1_epi64(1);
    // mulhi64(draw, bound) in halves, for bounds below 2^32
    const __m512i lower = _mm512_mul_epu32(low, bound_), upper = _mm512_mul_epu32(high, bound_);
    __m512i position = _mm512_srli_epi64(_mm512_add_epi64(upper, _mm512_srli_epi64(lower, kWordBits)), kWordBits);
    position = _mm512_add_epi64(first_, position);
    if constexpr (!replace) {
      __mmask8 free = kAllLanes;
      for (int64_t k = 0; k < i; ++k) {
        free = _mm512_mask_cmpneq_epi64_mask(free, position, _mm512_load_si512(positions + k * kLanes));
      }
      position = _mm512_mask_mov_epi64(last_, free, position);
      bound_ = _mm512_add_epi64(bound_, one);
      last_ = _mm512_add_epi64(last_, one);
    }
    position = _mm512_mask_mov_epi64(in_order_, random_, position);
    in_order_ = _mm512_add_epi64(in_order_, one);
    _mm512_store_si512(positions + i * kLanes, position);
  }

  const __m512i node_, tree_, tail_, first_;
  __mmask8 random_;
  __m512i bound_, last_;  // of the pick at hand: how many positions it chooses from, and the last of them
  __m512i in_order_;
};

// `positions` is 64-byte aligned.
template <bool replace>
GNNSCALE_AVX512 inline void pick_group_avx512(const RoundKeys& keys, const PickGroup& group, int64_t fanout,
                                              int64_t* positions) {
  WideGroup<replace> wide(group, fanout);
  constexpr int64_t kMost = kMostBlocks, kFewer = kMost - 1;
  const int64_t blocks = (fanout + kDraws - 1) / kDraws;
  int64_t block = 0;
  // The last four blocks are made as two and two, for a single one would wait for its own products.
  for (; blocks - block > 2 * kFewer || blocks - block == kMost; block += kMost) {
    wide.template pick<kMost>(keys, block, fanout, positions);
  }
  for (; blocks - block >= kFewer; block += kFewer) wide.template pick<kFewer>(keys, block, fanout, positions);
  if (block < blocks) wide.template pick<1>(keys, block, fanout, positions);
}

// Which of the four 128-bit pairs of two vectors a and b a shuffle takes: of a twice, then of b twice.
constexpr int kLowPairs = 0x44;   // 0 1 | 0 1
constexpr int kHighPairs = 0xEE;  // 2 3 | 2 3
constexpr int kEvenPairs = 0x88;  // 0 2 | 0 2
constexpr int kOddPairs = 0xDD;   // 1 3 | 1 3

// Transposes kLanes x kLanes numbers.
GNNSCALE_AVX512 GNNSCALE_INLINE void transpose(__m512i (&rows)[kLanes]) {
  __m512i pairs[kLanes];  // [2 r + c]: every other column from c on, of rows 2 r and 2 r + 1
  for (int r = 0; r < kLanes / 2; ++r) {
    pairs[2 * r] = _mm512_unpacklo_epi64(rows[2 * r], rows[2 * r + 1]);
    pairs[2 * r + 1] = _mm512_unpackhi_epi64(rows[2 * r], rows[2 * r + 1]);
  }
  for (int c = 0; c < 2; ++c) {
    const __m512i low01 = _mm512_shuffle_i64x2(pairs[c], pairs[2 + c], kLowPairs);
    const __m512i low23 = _mm512_shuffle_i64x2(pairs[4 + c], pairs[6 + c], kLowPairs);
    const __m512i high01 = _mm512_shuffle_i64x2(pairs[c], pairs[2 + c], kHighPairs);
    const __m512i high23 = _mm512_shuffle_i64x2(pairs[4 + c], pairs[6 + c], kHighPairs);
    rows[c] = _mm512_shuffle_i64x2(low01, low23, kEvenPairs);
    rows[c + 2] = _mm512_shuffle_i64x2(low01, low23, kOddPairs);
    rows[c + 4] = _mm512_shuffle_i64x2(high01, high23, kEvenPairs);
    rows[c + 6] = _mm512_shuffle_i64x2(high01, high23, kOddPairs);
  }
}

// by_node_scalar in vectors. kLanes picks of a node are written at a time, and up to kLaneFanout numbers after the
// group's last pick: what a node's last kLanes overwrite belongs to later nodes and is written after it, for nodes
// ascend and picks descend.
GNNSCALE_AVX512 inline void by_node_avx512(const int64_t* positions, const int64_t* column, int64_t fanout,
                                           int64_t* out) {
  for (int64_t from = (fanout - 1) / kLanes * kLanes; from >= 0; from -= kLanes) {
    __m512i rows[kLanes];
    for (int i = 0; i < kLanes; ++i) rows[i] = _mm512_load_si512(positions + (from + i) * kLanes);
    transpose(rows);
    for (int lane = 0; lane < kLanes; ++lane) _mm512_storeu_si512(out + (from + column[lane] - column[0]), rows[lane]);
  }
}

// Which 128-bit halves of two vectors a permutation takes: one of each.
constexpr int kLowHalves = 0x20, kHighHalves = 0x31;

GNNSCALE_AVX2 inline void draw_many_avx2(const RoundKeys& keys, const Counter& counter, int64_t count,
                                         uint64_t* draws) {
  constexpr int64_t kHalf = kLanes / kVectors;  // lanes of a vector
  const __m256i low = _mm256_set1_epi64x(0xFFFFFFFF);
  for (int64_t block = 0; kDraws * block < count; block += kLanes) {
    PhiloxLanes lanes;
    for (int v = 0; v < kVectors; ++v) {
      lanes.word[0][v] = _mm256_set1_epi64x(counter.node_low);
      lanes.word[1][v] = _mm256_set1_epi64x(counter.node_high);
      lanes.word[2][v] = _mm256_set1_epi64x(counter.tree);
      lanes.word[3][v] =
          _mm256_add_epi64(_mm256_set1_epi64x(counter.tail + block + kHalf * v), _mm256_setr_epi64x(0, 1, 2, 3));
    }
    lanes.run(keys);
    for (int v = 0; v < kVectors; ++v) {
      const auto join = [&](int word) GNNSCALE_AVX2 {
        return _mm256_or_si256(_mm256_and_si256(lanes.word[word][v], low),
                               _mm256_slli_epi64(lanes.word[word + 1][v], kWordBits));
      };
      const __m256i even = _mm256_unpacklo_epi64(join(0), join(2)), odd = _mm256_unpackhi_epi64(join(0), join(2));
      __m256i* out = reinterpret_cast<__m256i*>(draws + kDraws * (block + kHalf * v));
      _mm256_storeu_si256(out, _mm256_permute2x128_si256(even, odd, kLowHalves));
      _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(even, odd, kHighHalves));
    }
  }
}
#endif

}  // namespace gnnscale
