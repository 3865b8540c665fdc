// The draws and picks of a block of nodes on the CPU: the functions of pick.h, many Philox blocks at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../pick.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gnnscale {

constexpr int64_t kPhiloxLanes = 8;

// The Philox blocks of `count` counters (node, tree, tail), two draws each, kPhiloxLanes at a time. All arrays have
// room for `count` rounded up to that.
inline void philox_scalar(uint64_t key, int64_t count, const uint64_t* node, uint32_t tree, const uint64_t* tail,
                          uint64_t* draws) {
  for (int64_t at = 0; at < count; ++at) {
    const Philox block = philox(key, static_cast<uint32_t>(node[at]), static_cast<uint32_t>(node[at] >> 32), tree,
                                static_cast<uint32_t>(tail[at]));
    draws[2 * at] = philox_draw(block, 0);
    draws[2 * at + 1] = philox_draw(block, 1);
  }
}

#if defined(__x86_64__)
// The same in vectors: a word a 64-bit lane. What the upper half of a lane holds does not matter, for the
// multiplication reads the lower ones.
__attribute__((target("avx2"))) inline void philox_avx2(uint64_t key, int64_t count, const uint64_t* node,
                                                        uint32_t tree, const uint64_t* tail, uint64_t* draws) {
  const __m256i m0 = _mm256_set1_epi64x(kPhiloxM0), m1 = _mm256_set1_epi64x(kPhiloxM1);
  const __m256i low = _mm256_set1_epi64x(0xFFFFFFFF);
  for (int64_t at = 0; at < count; at += kPhiloxLanes) {
    __m256i c0[2], c1[2], c2[2], c3[2];
    for (int v = 0; v < 2; ++v) {
      c0[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(node + at + 4 * v));
      c1[v] = _mm256_srli_epi64(c0[v], 32);
      c2[v] = _mm256_set1_epi64x(tree);
      c3[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tail + at + 4 * v));
    }
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round, k0 += kPhiloxW0, k1 += kPhiloxW1) {
      const __m256i key0 = _mm256_set1_epi64x(k0), key1 = _mm256_set1_epi64x(k1);
      for (int v = 0; v < 2; ++v) {
        const __m256i p0 = _mm256_mul_epu32(c0[v], m0), p1 = _mm256_mul_epu32(c2[v], m1);
        c0[v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1[v]), key0);
        c1[v] = p1;
        c2[v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3[v]), key1);
        c3[v] = p0;
      }
    }
    for (int v = 0; v < 2; ++v) {
      const __m256i first = _mm256_or_si256(_mm256_and_si256(c0[v], low), _mm256_slli_epi64(c1[v], 32));
      const __m256i second = _mm256_or_si256(_mm256_and_si256(c2[v], low), _mm256_slli_epi64(c3[v], 32));
      const __m256i even = _mm256_unpacklo_epi64(first, second), odd = _mm256_unpackhi_epi64(first, second);
      __m256i* out = reinterpret_cast<__m256i*>(draws + 2 * at + 8 * v);
      _mm256_storeu_si256(out, _mm256_permute2x128_si256(even, odd, 0x20));
      _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
  }
}
#endif

inline void philox_many(uint64_t key, int64_t count, const uint64_t* node, uint32_t tree, const uint64_t* tail,
                        uint64_t* draws) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return philox_avx2(key, count, node, tree, tail, draws);
#endif
  philox_scalar(key, count, node, tree, tail, draws);
}

// The positions picked so far, for Floyd's method. A bit stands for all positions of the same remainder by kBits; where
// it is set, the picks themselves decide, compared one by one while they are few, hashed when they are many.
class Taken {
 public:
  // Prepares for `count` picks out of `degree`.
  void start(uint64_t count, uint64_t degree) {
    std::fill(bits_, bits_ + std::min((degree + 63) / 64, kBits / 64), 0);
    exact_ = degree <= kBits;
    if (exact_) return;
    size_ = 0;
    many_ = count > kFew;
    if (!many_) return;
    size_t capacity = 64;
    while (capacity < 2 * count) capacity *= 2;
    table_.assign(capacity, kEmpty);
    mask_ = capacity - 1;
  }
  bool contains(uint64_t position) const {
    if ((bits_[position / 64 % (kBits / 64)] >> (position % 64) & 1) == 0) return false;
    if (exact_) return true;
    if (!many_) return std::find(few_, few_ + size_, position) != few_ + size_;
    size_t at = hash(position);
    while (table_[at] != kEmpty && table_[at] != position) at = (at + 1) & mask_;
    return table_[at] == position;
  }
  void add(uint64_t position) {
    bits_[position / 64 % (kBits / 64)] |= uint64_t{1} << (position % 64);
    if (exact_) return;
    if (!many_) {
      few_[size_++] = position;
      return;
    }
    size_t at = hash(position);
    while (table_[at] != kEmpty) at = (at + 1) & mask_;
    table_[at] = position;
  }

 private:
  static constexpr uint64_t kBits = 512, kFew = 64, kEmpty = ~uint64_t{0};
  size_t hash(uint64_t position) const { return (position * 0x9E3779B97F4A7C15ull >> 20) & mask_; }
  uint64_t bits_[kBits / 64];
  uint64_t few_[kFew];
  uint64_t size_ = 0;
  std::vector<uint64_t> table_;
  bool exact_ = true, many_ = false;
  size_t mask_ = 0;
};

// pick() for all of `count` picks of a node, in order; each position goes to `f`.
template <typename F>
GNNSCALE_INLINE void pick_all(const uint64_t* draws, uint64_t count, uint64_t degree, bool replace, Taken& taken,
                              F&& f) {
  if (replace) {
    for (uint64_t i = 0; i < count; ++i) {
      f(pick(draws[i], i, count, degree, true, [](uint64_t) { return false; }));
    }
    return;
  }
  if (degree <= 64) {  // repeats are frequent, so their test should not be a branch: bits in a register
    uint64_t bits = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t position = pick(draws[i], i, count, degree, false, [&](uint64_t p) { return bits >> p & 1; });
      bits |= uint64_t{1} << position;
      f(position);
    }
    return;
  }
  taken.start(count, degree);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t position = pick(draws[i], i, count, degree, false, [&](uint64_t p) { return taken.contains(p); });
    taken.add(position);
    f(position);
  }
}

// The draws of many nodes: first the nodes are added, then all draws are computed, then each node's are read in the
// same order.
class DrawBatch {
 public:
  void clear() { size_ = 0; }
  // Asks for the first `count` draws of a counter; all counters between two clear() have the same tree.
  void add(const Counter& counter, int64_t count) {
    const int64_t blocks = (count + 1) / 2;
    if (size_ + blocks + kPhiloxLanes > static_cast<int64_t>(node_.size())) grow(2 * (size_ + blocks + kPhiloxLanes));
    tree_ = counter.tree;
    for (int64_t block = 0; block < blocks; ++block, ++size_) {
      node_[size_] = static_cast<uint64_t>(counter.node_high) << 32 | counter.node_low;
      tail_[size_] = counter.tail | static_cast<uint64_t>(block);
    }
  }
  // All draws; those of a counter begin 2 * ((count + 1) / 2) after those of the counter before.
  const uint64_t* compute(uint64_t key) {
    philox_many(key, size_, node_.data(), tree_, tail_.data(), draws_.data());
    return draws_.data();
  }

 private:
  void grow(int64_t size) {
    node_.resize(static_cast<size_t>(size));
    tail_.resize(static_cast<size_t>(size));
    draws_.resize(2 * static_cast<size_t>(size));
  }
  std::vector<uint64_t> node_, tail_, draws_;
  int64_t size_ = 0;
  uint32_t tree_ = 0;
};

}  // namespace gnnscale
