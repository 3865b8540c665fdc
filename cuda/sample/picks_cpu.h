// The picks of frontier nodes on the CPU: the functions of pick.h, applied to many nodes or many draws at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../memory/allocate.h"
#include "pick_lanes_cpu.h"

namespace gnnscale {

// The positions picked so far, for Floyd's method. Bit p mod kBits is set for each picked position p. Where it is set
// and positions share bits, the picks themselves are compared: one by one if they are few, else through a hash table.
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
  Vector<uint64_t> table_;
  bool exact_ = true, many_ = false;
  size_t mask_ = 0;
};

// Picks of frontier nodes, and the buffers for them. One thread at a time may use it.
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

  // Appends the positions first + pick of kLanes nodes at `out`, node by node, and returns the new end; up to
  // kLaneFanout numbers after it may be overwritten.
  GNNSCALE_INLINE int64_t* pick_group(const PickGroup& group, int64_t fanout, bool replace, int64_t* out) {
    alignas(64) int64_t positions[kLanes * kLaneFanout];
#if defined(__x86_64__)
    if (simd() == Simd::kAvx512) {
      if (replace) {
        pick_group_avx512<true>(keys_, group, fanout, positions);
      } else {
        pick_group_avx512<false>(keys_, group, fanout, positions);
      }
      by_node_avx512(positions, group.column, fanout, out);
      return out + (group.column[kLanes] - group.column[0]);
    }
    if (simd() == Simd::kAvx2) {
      pick_group_avx2(keys_, group, fanout, replace, positions);
    } else
#endif
      pick_group_scalar(key_, group, fanout, replace, positions);
    by_node_scalar(positions, group.column, out);
    return out + (group.column[kLanes] - group.column[0]);
  }

  // The same for one node and any fanout.
  int64_t* pick_node(const Counter& counter, int64_t first, int64_t degree, int64_t fanout, bool replace,
                     int64_t* out) {
    draw_many(counter, fanout);
    const uint64_t count = static_cast<uint64_t>(fanout), range = static_cast<uint64_t>(degree);
    if (!replace) taken_.start(count, range);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t position =
          pick(draws_[i], i, count, range, replace, [&](uint64_t p) { return taken_.contains(p); });
      if (!replace) taken_.add(position);
      *out++ = first + static_cast<int64_t>(position);
    }
    return out;
  }

  // The same among the positions [first, first + length) without the `excluded` ones, which ascend, in proportion to
  // weights whose sums (see torch_gnnscale.ops.sample_neighbors) are `sums`, from `before` on, or uniformly without
  // any.
  int64_t* pick_candidates(const Counter& counter, int64_t first, int64_t length, const Vector<int64_t>& excluded,
                           const int64_t* sums, int64_t before, int64_t fanout, bool replace, int64_t* out) {
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
      out = pick_node(counter, first, candidates, fanout, replace, out);
      for (int64_t* pick = begin; pick < out; ++pick) {
        *pick = first + static_cast<int64_t>(skip_removed(static_cast<uint64_t>(*pick - first), removed_.data(),
                                                          static_cast<int64_t>(removed_.size())));
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
      *out++ = position;
    }
    return out;
  }

 private:
  void draw_many(const Counter& counter, int64_t count) {
    const size_t room = static_cast<size_t>(count) + 16;
    if (draws_.size() < room) draws_.resize(room);
#if defined(__x86_64__)
    if (simd() != Simd::kNone) return draw_many_avx2(keys_, counter, count, draws_.data());
#endif
    draw_many_scalar(key_, counter, count, draws_.data());
  }

  uint64_t key_ = 0;
#if defined(__x86_64__)
  RoundKeys keys_{0};
#endif
  Vector<uint64_t> draws_;
  Taken taken_;
  Vector<Removed> removed_;
};

}  // namespace gnnscale
