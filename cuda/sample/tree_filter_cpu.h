// Which nodes of trees may be in a table of nodes, on the CPU.
#pragma once

#include <cstdint>

#include "../macros.h"
#include "../memory/allocate.h"
#include "../simd_cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gnnscale {

// All nodes that were added, and one in kBitsOfNode of the others. Its bits stay in the first-level cache, where the
// table of the same nodes takes 16 times as much.
class TreeFilter {
 public:
  static constexpr int64_t kRoom = 8;  // numbers after the last one chosen that may be overwritten

  struct View {
    const uint64_t* words;
    int bits;

    // Writes to `out`, in order, the i in [from, to) for which node id[i] of tree[i] may have been added, and returns
    // how many these are.
    int64_t choose(const int64_t* id, const int64_t* tree, int64_t from, int64_t to, int64_t* out) const {
      int64_t count = 0;
#if defined(__x86_64__)
      if (simd() == Simd::kAvx512) {
        const int64_t whole = from + (to - from) / kWide * kWide;
        count = choose_avx512(id, tree, from, whole, out);
        from = whole;
      }
#endif
      for (int64_t i = from; i < to; ++i) {
        const uint32_t bit = bit_of(id[i], tree[i], bits);
        out[count] = i;
        count += words[bit / 64] >> bit % 64 & 1;
      }
      return count;
    }

   private:
#if defined(__x86_64__)
    static constexpr int64_t kWide = 8;

    GNNSCALE_AVX512 int64_t choose_avx512(const int64_t* id, const int64_t* tree, int64_t from, int64_t to,
                                          int64_t* out) const {
      const __m512i of_tree = _mm512_set1_epi64(kOfTree), of_node = _mm512_set1_epi64(kOfNode);
      const __m512i one = _mm512_set1_epi64(1), in_word = _mm512_set1_epi64(63), step = _mm512_set1_epi64(kWide);
      const __m128i shift = _mm_cvtsi32_si128(64 - bits);
      __m512i place = _mm512_add_epi64(_mm512_set1_epi64(from), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
      int64_t count = 0;
      for (int64_t i = from; i < to; i += kWide) {
        const __m512i node = _mm512_loadu_si512(id + i);
        const __m512i folded = _mm512_xor_si512(node, _mm512_srli_epi64(node, 32));
        const __m512i key = _mm512_add_epi64(folded, _mm512_mul_epu32(_mm512_loadu_si512(tree + i), of_tree));
        const __m512i bit = _mm512_srl_epi64(_mm512_slli_epi64(_mm512_mul_epu32(key, of_node), 32), shift);
        const __m512i word = _mm512_i64gather_epi64(_mm512_srli_epi64(bit, 6), words, sizeof(uint64_t));
        const __mmask8 maybe = _mm512_test_epi64_mask(_mm512_srlv_epi64(word, _mm512_and_si512(bit, in_word)), one);
        _mm512_storeu_si512(out + count, _mm512_maskz_compress_epi64(maybe, place));
        count += __builtin_popcount(maybe);
        place = _mm512_add_epi64(place, step);
      }
      return count;
    }
#endif
  };

  // Makes it empty, with room for `count` nodes.
  void start(int64_t count) {
    bits_ = kLeastBits;
    while (bits_ < kMostBits && int64_t{1} << bits_ < kBitsOfNode * count) ++bits_;
    words_.assign(size_t{1} << bits_ >> 6, 0);
  }

  // Adds nodes id[0..count) of tree[0..count).
  void add(const int64_t* id, const int64_t* tree, int64_t count) {
    uint64_t* const words = words_.data();
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t bit = bit_of(id[i], tree[i], bits_);
      words[bit / 64] |= uint64_t{1} << bit % 64;
    }
  }

  View view() const { return {words_.data(), bits_}; }

 private:
  static constexpr int kLeastBits = 10, kMostBits = 31;
  static constexpr int64_t kBitsOfNode = 16;
  static constexpr uint32_t kOfTree = 0x85EBCA77, kOfNode = 0x9E3779B1;

  // A hash of as many bits as 32-bit products have.
  GNNSCALE_INLINE static uint32_t bit_of(int64_t node, int64_t tree, int bits) {
    const uint64_t id = static_cast<uint64_t>(node);
    const uint32_t key = static_cast<uint32_t>(id ^ id >> 32) + static_cast<uint32_t>(tree) * kOfTree;
    return key * kOfNode >> (32 - bits);
  }

  Vector<uint64_t> words_;
  int bits_ = kLeastBits;
};

}  // namespace gnnscale
