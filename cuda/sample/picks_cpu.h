// The picks of frontier nodes on the CPU: the functions of pick.h, for many nodes or many draws at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "../pick.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gnnscale {

constexpr int64_t kLanes = 8;        // nodes that are picked for together
constexpr int64_t kLaneFanout = 32;  // the largest fanout for which they are

// kLanes frontier nodes in the same hop.
struct PickGroup {
  const int64_t *node, *tree, *first,
      *degree;    // [kLanes]: ids, trees, where their candidates begin, how many there are
  uint32_t tail;  // of their counters
};

// Picks of a group, by the scalar functions: positions[i * kLanes + lane] is first[lane] + pick i, for i < fanout <=
// kLaneFanout. A node whose picks no draw decides has its neighbors in stored order, the last one repeated.
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
        positions[i * kLanes + lane] = first + std::max<int64_t>(std::min(i, degree - 1), 0);
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

// The first `count` draws of a counter, rounded up to whole blocks.
inline void draw_many_scalar(uint64_t key, const Counter& counter, int64_t count, uint64_t* draws) {
  for (int64_t block = 0; 2 * block < count; ++block) {
    const Philox words = draw_block(key, counter, static_cast<uint32_t>(block));
    draws[2 * block] = philox_draw(words, 0);
    draws[2 * block + 1] = philox_draw(words, 1);
  }
}

#if defined(__x86_64__)
#define GNNSCALE_AVX2 __attribute__((target("avx2")))

// The keys of the ten rounds.
struct RoundKeys {
  int64_t word[10][2];

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

// Two vectors of four Philox blocks: a word a 64-bit lane. What the upper half of a lane holds does not matter, for the
// multiplication reads the lower ones.
struct PhiloxLanes {
  __m256i word[4][2];

  GNNSCALE_AVX2 GNNSCALE_INLINE void run(const RoundKeys& keys) {
    const __m256i m0 = _mm256_set1_epi64x(kPhiloxM0), m1 = _mm256_set1_epi64x(kPhiloxM1);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const __m256i key0 = _mm256_set1_epi64x(keys.word[round][0]), key1 = _mm256_set1_epi64x(keys.word[round][1]);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        const __m256i p0 = _mm256_mul_epu32(word[0][v], m0), p1 = _mm256_mul_epu32(word[2][v], m1);
        word[0][v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), word[1][v]), key0);
        word[1][v] = p1;
        word[2][v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), word[3][v]), key1);
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
  const __m256i low = _mm256_set1_epi64x(0xFFFFFFFF), one = _mm256_set1_epi64x(1);
  __m256i random[2], bound[2], last_neighbor[2];
  for (int v = 0; v < 2; ++v) {
    const __m256i degree = load(group.degree, v);
    random[v] = _mm256_cmpgt_epi64(degree, _mm256_set1_epi64x(replace ? 0 : fanout));
    bound[v] = replace ? degree : _mm256_sub_epi64(degree, _mm256_set1_epi64x(fanout - 1));
    last_neighbor[v] = _mm256_and_si256(_mm256_sub_epi64(degree, one), low);
  }
  for (int64_t block = 0; 2 * block < fanout; ++block) {
    PhiloxLanes lanes;
    for (int v = 0; v < 2; ++v) {
      const __m256i node = load(group.node, v);
      lanes.word[0][v] = node;
      lanes.word[1][v] = _mm256_srli_epi64(node, 32);
      lanes.word[2][v] = load(group.tree, v);
      lanes.word[3][v] = _mm256_set1_epi64x(group.tail | static_cast<uint32_t>(block));
    }
    lanes.run(keys);
    for (int64_t i = 2 * block; i < std::min(2 * block + 2, fanout); ++i) {
      const int draw = static_cast<int>(i % 2);
      for (int v = 0; v < 2; ++v) {
        // mulhi64(draw, bound) in halves, for bounds below 2^32
        const __m256i lower = _mm256_mul_epu32(draw == 0 ? lanes.word[0][v] : lanes.word[2][v], bound[v]);
        const __m256i upper = _mm256_mul_epu32(draw == 0 ? lanes.word[1][v] : lanes.word[3][v], bound[v]);
        const __m256i first = load(group.first, v);
        __m256i position = _mm256_srli_epi64(_mm256_add_epi64(upper, _mm256_srli_epi64(lower, 32)), 32);
        position = _mm256_add_epi64(first, position);
        if (!replace) {
          __m256i taken = _mm256_setzero_si256();
          for (int64_t k = 0; k < i; ++k) {
            taken = _mm256_or_si256(taken, _mm256_cmpeq_epi64(position, load(positions + k * kLanes, v)));
          }
          position = _mm256_blendv_epi8(position, _mm256_add_epi64(first, _mm256_sub_epi64(bound[v], one)), taken);
          bound[v] = _mm256_add_epi64(bound[v], one);
        }
        const __m256i in_order = _mm256_add_epi64(first, _mm256_min_epu32(_mm256_set1_epi64x(i), last_neighbor[v]));
        position = _mm256_blendv_epi8(in_order, position, random[v]);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(positions + i * kLanes) + v, position);
      }
    }
  }
}

GNNSCALE_AVX2 inline void draw_many_avx2(const RoundKeys& keys, const Counter& counter, int64_t count,
                                         uint64_t* draws) {
  const __m256i low = _mm256_set1_epi64x(0xFFFFFFFF);
  for (int64_t block = 0; 2 * block < count; block += 8) {
    PhiloxLanes lanes;
    for (int v = 0; v < 2; ++v) {
      lanes.word[0][v] = _mm256_set1_epi64x(counter.node_low);
      lanes.word[1][v] = _mm256_set1_epi64x(counter.node_high);
      lanes.word[2][v] = _mm256_set1_epi64x(counter.tree);
      lanes.word[3][v] =
          _mm256_add_epi64(_mm256_set1_epi64x(counter.tail + block + 4 * v), _mm256_setr_epi64x(0, 1, 2, 3));
    }
    lanes.run(keys);
    for (int v = 0; v < 2; ++v) {
      const auto join = [&](int word) GNNSCALE_AVX2 {
        return _mm256_or_si256(_mm256_and_si256(lanes.word[word][v], low),
                               _mm256_slli_epi64(lanes.word[word + 1][v], 32));
      };
      const __m256i even = _mm256_unpacklo_epi64(join(0), join(2)), odd = _mm256_unpackhi_epi64(join(0), join(2));
      __m256i* out = reinterpret_cast<__m256i*>(draws + 2 * block + 8 * v);
      _mm256_storeu_si256(out, _mm256_permute2x128_si256(even, odd, 0x20));
      _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
  }
}
#endif

// Whether the functions ending in _avx2 are taken; the environment variable GNNSCALE_SIMD=0 forbids it.
inline bool has_avx2() {
#if defined(__x86_64__)
  static const bool found = [] {
    const char* simd = std::getenv("GNNSCALE_SIMD");
    return __builtin_cpu_supports("avx2") && (simd == nullptr || std::string_view(simd) != "0");
  }();
  return found;
#else
  return false;
#endif
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

// Picks of frontier nodes, with the buffers that it takes. Not for several threads at once.
class Picker {
 public:
  Picker() : draws_(static_cast<size_t>(kLanes * kLaneFanout)) {}

  // The key of the picks that follow.
  void set_key(uint64_t key) {
    key_ = key;
#if defined(__x86_64__)
    keys_ = RoundKeys(key);
#endif
  }

  // Appends the positions first + pick of kLanes nodes at `out`, node by node, and calls visit(position) for each and
  // for up to kLaneFanout further ones near by; `out` needs room for as many. Returns the new end.
  template <typename Visit>
  GNNSCALE_INLINE int64_t* pick_group(const PickGroup& group, int64_t fanout, bool replace, int64_t* out,
                                      Visit&& visit) {
    alignas(64) int64_t positions[kLanes * kLaneFanout];
#if defined(__x86_64__)
    if (has_avx2()) {
      pick_group_avx2(keys_, group, fanout, replace, positions);
    } else
#endif
      pick_group_scalar(key_, group, fanout, replace, positions);
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const int64_t count = pick_count(group.degree[lane], fanout, replace);
      const int64_t steps = group.degree[lane] > 0 ? fanout : 0;
      for (int64_t i = 0; i < steps; ++i) {
        const int64_t position = positions[i * kLanes + lane];
        out[i] = position;
        visit(position);
      }
      out += count;
    }
    return out;
  }

  // The same for one node and any fanout.
  template <typename Visit>
  GNNSCALE_INLINE int64_t* pick_node(const Counter& counter, int64_t first, int64_t degree, int64_t fanout,
                                     bool replace, int64_t* out, Visit&& visit) {
    draw_many(counter, fanout);
    const uint64_t count = static_cast<uint64_t>(fanout), range = static_cast<uint64_t>(degree);
    if (!replace) taken_.start(count, range);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t position =
          pick(draws_[i], i, count, range, replace, [&](uint64_t p) { return taken_.contains(p); });
      if (!replace) taken_.add(position);
      *out = first + static_cast<int64_t>(position);
      visit(*out++);
    }
    return out;
  }

  // The same among the positions [first, first + length) without the `excluded` ones, which ascend, in proportion to
  // weights whose sums (see torch_gnnscale.ops.sample_neighbors) are `sums`, from `before` on, or uniformly without
  // any.
  template <typename Visit>
  int64_t* pick_candidates(const Counter& counter, int64_t first, int64_t length, const std::vector<int64_t>& excluded,
                           const int64_t* sums, int64_t before, int64_t fanout, bool replace, int64_t* out,
                           Visit&& visit) {
    removed_.clear();
    uint64_t left = static_cast<uint64_t>(sums == nullptr ? length : sums[first + length - 1] - before);
    const auto range = [&](int64_t position) -> Removed {
      if (sums == nullptr) return {static_cast<uint64_t>(position - first), 1};
      const int64_t start = position > first ? sums[position - 1] : before;
      return {static_cast<uint64_t>(start - before), static_cast<uint64_t>(sums[position] - start)};
    };
    for (const int64_t position : excluded) {
      removed_.push_back(range(position));
      left -= removed_.back().size;
    }
    const int64_t candidates = length - static_cast<int64_t>(excluded.size());
    if (sums == nullptr) {
      int64_t* const begin = out;
      out = pick_node(counter, first, candidates, fanout, replace, out, [](int64_t) {});
      for (int64_t* pick = begin; pick < out; ++pick) {
        *pick = first + static_cast<int64_t>(skip_removed(static_cast<uint64_t>(*pick - first), removed_.data(),
                                                          static_cast<int64_t>(removed_.size())));
        visit(*pick);
      }
      return out;
    }
    draw_many(counter, fanout);
    for (int64_t i = 0; i < fanout; ++i) {
      const int64_t gone = static_cast<int64_t>(removed_.size());
      const uint64_t unit = skip_removed(bounded(draws_[i], left), removed_.data(), gone);
      const int64_t position =
          std::min(first_above(sums, first, first + length, before + static_cast<int64_t>(unit)), first + length - 1);
      if (!replace) {
        const Removed picked = range(position);
        removed_.push_back(picked);
        insert_removed(picked, removed_.data(), gone);
        left -= picked.size;
      }
      *out = position;
      visit(*out++);
    }
    return out;
  }

 private:
  void draw_many(const Counter& counter, int64_t count) {
    const size_t room = static_cast<size_t>(count) + 16;
    if (draws_.size() < room) draws_.resize(room);
#if defined(__x86_64__)
    if (has_avx2()) return draw_many_avx2(keys_, counter, count, draws_.data());
#endif
    draw_many_scalar(key_, counter, count, draws_.data());
  }

  uint64_t key_ = 0;
#if defined(__x86_64__)
  RoundKeys keys_{0};
#endif
  std::vector<uint64_t> draws_;
  Taken taken_;
  std::vector<Removed> removed_;
};

}  // namespace gnnscale
