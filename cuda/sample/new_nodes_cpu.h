// Lists of edges and of new nodes that are written several numbers at a time, on the CPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "../simd_cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gnnscale {

constexpr int64_t kAtOnce = 8;  // numbers that are written together; so many after the last may be overwritten

// Writes value_of(column) to out[colptr[column]] ... out[colptr[column + 1] - 1] for columns [from, to), and up to
// kAtOnce numbers after them.
template <typename ValueOf>
void fill_columns(const int64_t* colptr, int64_t from, int64_t to, int64_t* out, ValueOf&& value_of) {
  for (int64_t column = from; column < to; ++column) {
    const int64_t value = value_of(column);
    int64_t* at = out + colptr[column];
    int64_t* const end = out + colptr[column + 1];
    do {  // without a branch by the number of edges, which cannot be predicted, if it is small
      for (int64_t k = 0; k < kAtOnce; ++k) at[k] = value;
      at += kAtOnce;
    } while (at < end);
  }
}

// The list of a type's nodes in trees, with room for kAtOnce more than are appended. The trees of edges may lie where
// those of new nodes are written, or after.
struct NewNodes {
  int64_t *id, *tree;

  // Appends the sources of edges [from, to), all new, after `count` nodes: ids become local ids. Returns how many nodes
  // there are.
  int64_t append(int64_t* ids, const int64_t* trees, int64_t from, int64_t to, int64_t count) const {
    std::copy(ids + from, ids + to, id + count);
    std::iota(ids + from, ids + to, count);
    if (tree + count != trees + from) std::copy(trees + from, trees + to, tree + count);
    return count + (to - from);
  }

  // The same where ids[e] may be -1 - (the local id of a known node).
  int64_t append_some(int64_t* ids, const int64_t* trees, int64_t from, int64_t to, int64_t count) const {
#if defined(__x86_64__)
    if (simd() == Simd::kAvx512) {
      const int64_t whole = from + (to - from) / kAtOnce * kAtOnce;
      count = append_avx512(ids, trees, from, whole, count);
      from = whole;
    }
#endif
    for (int64_t e = from; e < to; ++e) {
      const int64_t source = ids[e];
      id[count] = source;  // what is written after the last node is overwritten, or not read
      tree[count] = trees[e];
      ids[e] = source < 0 ? -1 - source : count;
      count += source >= 0;
    }
    return count;
  }

 private:
#if defined(__x86_64__)
  GNNSCALE_AVX512 int64_t append_avx512(int64_t* ids, const int64_t* trees, int64_t from, int64_t to,
                                        int64_t count) const {
    const __m512i zero = _mm512_setzero_si512(), ones = _mm512_set1_epi64(-1);
    const __m512i places = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    for (int64_t e = from; e < to; e += kAtOnce) {
      const __m512i source = _mm512_loadu_si512(ids + e), of = _mm512_loadu_si512(trees + e);
      const __mmask8 is_new = _mm512_cmpge_epi64_mask(source, zero);
      const __m512i next = _mm512_add_epi64(_mm512_set1_epi64(count), places);
      _mm512_storeu_si512(id + count, _mm512_maskz_compress_epi64(is_new, source));
      _mm512_storeu_si512(tree + count, _mm512_maskz_compress_epi64(is_new, of));
      _mm512_storeu_si512(ids + e, _mm512_mask_expand_epi64(_mm512_xor_si512(source, ones), is_new, next));
      count += __builtin_popcount(is_new);
    }
    return count;
  }
#endif
};

}  // namespace gnnscale
