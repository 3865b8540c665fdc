// Searches of ascending times on the CPU, many at a time: which stored neighbors the times of seeds allow.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../macros.h"
#include "../simd_cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gnnscale {

constexpr int64_t kSearches = 64;

// Up to kSearches searches of first_above among the ascending times [low, low + left), which leave what they find in
// `low` and 0 in `left`. They take their steps together, so that their cache misses overlap, and without branches: one
// that has ended, or has nowhere to look, reads any of the `edges` times.
inline void search_times_scalar(const int64_t* time, int64_t edges, int64_t count, int64_t* low, int64_t* left,
                                const int64_t* bound) {
  int64_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    GNNSCALE_PREFETCH(time + low[i] + (left[i] >> 1));
    most = std::max(most, left[i]);
  }
  for (; most > 0; most >>= 1) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t half = left[i] >> 1, found = time[std::min(low[i] + half, edges - 1)];
      const int64_t below = -static_cast<int64_t>((left[i] > 0) & (found <= bound[i]));  // all bits or none
      low[i] += (half + 1) & below;
      left[i] = half - ((2 * half + 1 - left[i]) & below);
      GNNSCALE_PREFETCH(time + low[i] + (left[i] >> 1));
    }
  }
}

#if defined(__x86_64__)
// The same in vectors. Loads of many vectors are on their way at once, so that none is prefetched; arrays have room for
// a whole number of vectors.
GNNSCALE_AVX512 inline void search_times_avx512(const int64_t* time, int64_t count, int64_t* low, int64_t* left,
                                                const int64_t* bound) {
  constexpr int64_t kWide = 8;
  const __m512i zero = _mm512_setzero_si512(), one = _mm512_set1_epi64(1);
  for (int64_t i = count; i % kWide != 0; ++i) left[i] = low[i] = 0;
  __m512i longest = zero;
  for (int64_t i = 0; i < count; i += kWide) longest = _mm512_max_epi64(longest, _mm512_loadu_si512(left + i));
  for (int64_t most = _mm512_reduce_max_epi64(longest); most > 0; most >>= 1) {
    for (int64_t i = 0; i < count; i += kWide) {
      const __m512i begin = _mm512_loadu_si512(low + i), length = _mm512_loadu_si512(left + i);
      const __m512i half = _mm512_srli_epi64(length, 1), middle = _mm512_add_epi64(begin, half);
      const __mmask8 open = _mm512_cmpgt_epi64_mask(length, zero);
      const __m512i found = _mm512_mask_i64gather_epi64(zero, open, middle, time, sizeof(int64_t));
      const __mmask8 below = _mm512_mask_cmple_epi64_mask(open, found, _mm512_loadu_si512(bound + i));
      _mm512_storeu_si512(low + i, _mm512_mask_add_epi64(begin, below, middle, one));
      _mm512_storeu_si512(left + i, _mm512_mask_sub_epi64(half, below, _mm512_sub_epi64(length, half), one));
    }
  }
}
#endif

inline void search_times(const int64_t* time, int64_t edges, int64_t count, int64_t* low, int64_t* left,
                         const int64_t* bound) {
#if defined(__x86_64__)
  if (simd() == Simd::kAvx512) return search_times_avx512(time, count, low, left, bound);
#endif
  search_times_scalar(time, edges, count, low, left, bound);
}

// The ends of up to kSearches ranges [first, last) of ascending times, each cut down to the times that do not exceed
// its bound, as by first_above.
inline void cut_off(const int64_t* time, int64_t edges, int64_t count, const int64_t* first, int64_t* last,
                    const int64_t* bound) {
  int64_t low[kSearches], left[kSearches];
  for (int64_t i = 0; i < count; ++i) {
    low[i] = first[i];
    left[i] = last[i] - first[i];
  }
  search_times(time, edges, count, low, left, bound);
  std::copy_n(low, count, last);
}

// Their beginnings, each moved up to the first time that is not below its bound, as by first_from.
inline void cut_off_start(const int64_t* time, int64_t edges, int64_t count, int64_t* first, const int64_t* last,
                          const int64_t* bound) {
  int64_t left[kSearches], below[kSearches];
  for (int64_t i = 0; i < count; ++i) {
    const bool searched = first[i] < last[i] && time[first[i]] < bound[i];
    left[i] = searched ? last[i] - first[i] : 0;
    below[i] = searched ? bound[i] - 1 : 0;
  }
  search_times(time, edges, count, first, left, below);
}

}  // namespace gnnscale
