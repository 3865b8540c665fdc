// The addresses of the rows of a tiered feature table (Data Tiering, section 4 and appendix A.3), and how stored items
// become items of the output. Places 0, 1, ... number the rows of all tiers: first those of the fastest tier, then
// those of the next one.
#pragma once

#include <cstdint>
#include <cstring>

#include "macros.h"
#include "philox.h"

namespace gnnscale {

constexpr int kMaxTiers = 4;
constexpr int kMaxSegments = 32;

// The paper's combined tensor. A segment is an array of rows in one memory.
struct TierTable {
  int32_t num_tiers = 0;
  // Tier t has the places [first[t], first[t + 1]), interleaved over the segments [segment[t], segment[t + 1]).
  int64_t first[kMaxTiers + 1] = {};
  int32_t segment[kMaxTiers + 1] = {};
  uint64_t inverse[kMaxTiers] = {};  // of its number of segments, if there are several: 2^64 / segments, rounded up
  const char* base[kMaxSegments] = {};
  int64_t stride[kMaxSegments] = {};  // bytes from one row of a segment to the next
};

// The tier of a place; num_tiers if there is no such place.
GNNSCALE_HD int32_t tier_of(const TierTable& table, int64_t place) {
  if (place < 0) return table.num_tiers;
  int32_t tier = 0;
  while (tier < table.num_tiers && place >= table.first[tier + 1]) ++tier;
  return tier;
}

// The row at the r-th place of a tier with P segments is row r / P of segment r mod P.
GNNSCALE_HD const char* row_address(const TierTable& table, int32_t tier, int64_t place) {
  const int64_t r = place - table.first[tier];
  const int32_t segment = table.segment[tier], segments = table.segment[tier + 1] - segment;
  if (segments == 1) return table.base[segment] + r * table.stride[segment];
  // The quotient, exact for r < 2^54; a division of 64 bits is a function with a stack of its own.
  const int64_t row = static_cast<int64_t>(bounded(static_cast<uint64_t>(r), table.inverse[tier]));
  const int32_t at = segment + static_cast<int32_t>(r - row * segments);
  return table.base[at] + row * table.stride[at];
}

// Integers of 4 or 8 bytes that lie in several memories, one tier after the other.
struct TieredIds {
  TierTable table;
  bool wide = false;

  GNNSCALE_HD int64_t operator[](int64_t i) const {
    const char* const at = row_address(table, tier_of(table, i), i);
    return wide ? *reinterpret_cast<const int64_t*>(at) : *reinterpret_cast<const int32_t*>(at);
  }
};

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

GNNSCALE_HD float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

GNNSCALE_HD uint32_t bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Exact for every number, also subnormal ones and infinities, whatever the processor's mode for subnormal floats; a NaN
// stays a NaN.
GNNSCALE_HD float widen(BFloat16 stored) { return float_of_bits(uint32_t{stored.bits} << 16); }

GNNSCALE_HD float widen(Half stored) {
  const uint32_t sign = (stored.bits & 0x8000u) << 16, rest = stored.bits & 0x7fffu, exponent = stored.bits & 0x7c00u;
  // Without a branch, so that compilers turn a loop into vectors.
  const uint32_t subnormal = bits_of_float(static_cast<float>(static_cast<int32_t>(rest)) * 0x1p-24f);
  const uint32_t normal = (rest << 13) + ((112u + 112u * uint32_t{exponent == 0x7c00u}) << 23);
  const uint32_t is_subnormal = 0u - uint32_t{exponent == 0};
  return float_of_bits(sign | (subnormal & is_subnormal) | (normal & ~is_subnormal));
}

template <typename T, int N>
struct alignas(sizeof(T) * N) Words {
  T item[N];
};

// The items at an address that is aligned to them.
template <int N, typename T>
GNNSCALE_HD Words<T, N> words_at(const T* from) {
  return *reinterpret_cast<const Words<T, N>*>(from);
}

// How a word of a stored row becomes a word of the output: as it is, or with its N items widened to `Out`.
template <typename Word>
struct Keep {
  using From = Word;
  using To = Word;
  static GNNSCALE_HD To map(const From& word) { return word; }
};

template <typename Item, typename Out, int N>
struct Widen {
  using From = Words<Item, N>;
  using To = Words<Out, N>;
  static GNNSCALE_HD To map(const From& word) {
    To out;
    for (int i = 0; i < N; ++i) out.item[i] = static_cast<Out>(widen(word.item[i]));
    return out;
  }
};

// How many lanes copy a row of so many words together: a power of two, at most a warp.
GNNSCALE_HD int32_t lanes_of(int32_t words) {
  int32_t lanes = 1;
  while (lanes < 32 && lanes < words) lanes *= 2;
  return lanes;
}

// How many words before the row the lanes' first turn begins, so that every turn begins at a multiple of 128 bytes, a
// cache line. 0 for a row of a single turn: each of its lines is read once in any case.
GNNSCALE_HD int32_t words_before(const char* row, int32_t words, int32_t word_bytes, int32_t lanes) {
  if (words <= lanes) return 0;
  return static_cast<int32_t>(reinterpret_cast<uintptr_t>(row) % 128) / word_bytes;
}

}  // namespace gnnscale
