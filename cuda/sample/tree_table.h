// The relabel table of disjoint trees on the CPU: (tree, node) to local ids, by open addressing. Like the map of
// relabel.h it is never cleared: a slot holds base + local id, and one below the base is free.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../macros.h"
#include "../relabel.h"

namespace gnnscale {

class TreeTable {
 public:
  // Starts a batch; local ids stay below 2^31.
  void start() {
    base_ += used_;
    used_ = 0;
    count_ = 0;
    if (slots_.empty()) slots_.resize(size_t{1} << kLeastBits);
    if (base_ > uint32_t{1} << 31) {
      std::fill(slots_.begin(), slots_.end(), Slot{});
      base_ = 1;
    }
  }

  // Room for `more` further nodes without growing.
  void reserve(int64_t more) {
    const size_t needed = 2 * (count_ + static_cast<size_t>(more));
    if (needed <= slots_.size()) return;
    while (size_t{1} << bits_ < needed) ++bits_;
    std::vector<Slot> old(size_t{1} << bits_);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.value >= base_) *find(slot.node, slot.tree) = slot;
    }
  }

  void prefetch(int64_t node, uint32_t tree) const { GNNSCALE_PREFETCH_WRITE(&slots_[tree_slot(node, tree, bits_)]); }

  // The local id of a node, which is `next` if it was not known. Needs room for it.
  uint32_t add(int64_t node, uint32_t tree, uint32_t next) {
    Slot* const slot = find(node, tree);
    if (slot->value < base_) {
      *slot = {node, tree, base_ + next};
      used_ = std::max(used_, next + 1);
      ++count_;
    }
    return slot->value - base_;
  }

  // The local id of a node, or -1.
  int64_t lookup(int64_t node, uint32_t tree) {
    const Slot* const slot = find(node, tree);
    return slot->value < base_ ? -1 : static_cast<int64_t>(slot->value - base_);
  }

 private:
  static constexpr int kLeastBits = 10;
  struct Slot {
    int64_t node = 0;
    uint32_t tree = 0, value = 0;
  };
  Slot* find(int64_t node, uint32_t tree) {
    const uint64_t mask = slots_.size() - 1;
    uint64_t at = tree_slot(node, tree, bits_);
    while (slots_[at].value >= base_ && (slots_[at].node != node || slots_[at].tree != tree)) at = (at + 1) & mask;
    return &slots_[at];
  }
  std::vector<Slot> slots_;
  int bits_ = kLeastBits;
  uint32_t base_ = 1, used_ = 0;  // values of this batch lie in [base, base + used)
  size_t count_ = 0;
};

}  // namespace gnnscale
