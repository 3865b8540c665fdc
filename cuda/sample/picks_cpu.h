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

// out[i] = range.position_of(unit[i]). All searches take the same steps, without a branch, so their loads overlap.
inline void find_positions(const WeightedRange<const int64_t*>& range, const uint64_t* unit, int64_t count,
                           int64_t* out) {
  std::fill_n(out, count, range.first);
  for (int64_t left = range.length - 1; left > 0;) {
    const int64_t half = (left + 1) / 2;
    const int64_t* const sums = range.sums + half - 1;
    for (int64_t i = 0; i < count; ++i) {
      out[i] += sums[out[i]] <= range.sum_before(unit[i]) ? half : 0;
    }
    left -= half;
  }
}

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

  // The same among the positions [first, first + length) without the `excluded` ones, which ascend.
  int64_t* pick_candidates(const Counter& counter, int64_t first, int64_t length, const Vector<int64_t>& excluded,
                           int64_t fanout, bool replace, int64_t* out) {
    removed_.clear();
    for (const int64_t position : excluded) removed_.push_back({static_cast<uint64_t>(position - first), 1});
    int64_t* const end =
        pick_node(counter, first, length - static_cast<int64_t>(excluded.size()), fanout, replace, out);
    for (int64_t* pick = out; pick < end; ++pick) {
      *pick = first + static_cast<int64_t>(skip_removed(static_cast<uint64_t>(*pick - first), removed_.data(),
                                                        static_cast<int64_t>(removed_.size())));
    }
    return end;
  }

  // The same in proportion to weights.
  int64_t* pick_weighted(const Counter& counter, const WeightedRange<const int64_t*>& range,
                         const Vector<int64_t>& excluded, int64_t fanout, bool replace, int64_t* out) {
    removed_.clear();
    uint64_t left = range.units();
    for (const int64_t position : excluded) {
      removed_.push_back(range.units_of(position));
      left -= removed_.back().size;
    }
    const int64_t gone = static_cast<int64_t>(removed_.size());
    draw_many(counter, fanout);
    if (replace) {
      for (int64_t i = 0; i < fanout; ++i) draws_[i] = skip_removed(bounded(draws_[i], left), removed_.data(), gone);
      find_positions(range, draws_.data(), fanout, out);
      return out + fanout;
    }
    removed_.resize(static_cast<size_t>(gone + fanout));
    for (int64_t i = 0; i < fanout; ++i) *out++ = pick_by_weight(range, draws_[i], left, removed_.data(), gone + i);
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

// A thread's own buffers: the picker's, and the positions of the block at hand and of the one before it.
struct Scratch {
  Picker picker;
  Vector<int64_t> positions[2], excluded;

  // Frees the buffers that grew because a block had very long lists.
  void shrink() {
    constexpr size_t kKept = size_t{1} << 17;  // numbers
    for (Vector<int64_t>* const buffer : {&positions[0], &positions[1], &excluded}) {
      if (buffer->capacity() > kKept) Vector<int64_t>().swap(*buffer);
    }
  }
};

}  // namespace gnnscale
