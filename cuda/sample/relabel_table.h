// (tree, node) to local ids by open addressing, on the CPU: where trees are disjoint, and where the map of relabel.h
// would be much larger than the batch. Like the map it is not cleared: a slot holds base + local id, and is free if
// that is below the base.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "../macros.h"
#include "../memory/pool.h"
#include "../relabel.h"

namespace gnnscale {

struct TreeSlot {
  int64_t node = 0;
  uint32_t tree = 0, value = 0;

  TreeSlot() = default;
  TreeSlot(int64_t n, uint32_t t, uint32_t v) : node(n), tree(t), value(v) {}
  bool is(int64_t n, uint32_t t) const { return (node == n) & (tree == t); }
  uint32_t of_tree() const { return tree; }
};

// Half the size, for graphs of up to 2^32 nodes without trees.
struct NodeSlot {
  uint32_t node = 0, value = 0;

  NodeSlot() = default;
  NodeSlot(int64_t n, uint32_t /*tree*/, uint32_t v) : node(static_cast<uint32_t>(n)), value(v) {}
  bool is(int64_t n, uint32_t /*tree*/) const { return node == static_cast<uint32_t>(n); }
  static uint32_t of_tree() { return 0; }
};

template <typename Slot, int slots_a_node>
class RelabelTable {
 public:
  // The table until it grows next, small enough for a loop to keep in registers.
  struct View {
    Slot* slots;
    int bits;
    uint32_t base;

    GNNSCALE_INLINE void prefetch(int64_t node, uint32_t tree) const {
      GNNSCALE_PREFETCH_WRITE(&slots[table_slot(node, tree, bits)]);
    }

    // The local id of a node, which is `next` if it was not known. Needs room for it.
    GNNSCALE_INLINE uint32_t add(int64_t node, uint32_t tree, uint32_t next) const {
      // Nearly always the first slot is the node's own or free. Which of the two it is cannot be predicted, so there is
      // no branch: a known node is written again.
      Slot* slot = &slots[table_slot(node, tree, bits)];
      if (is_others(*slot, node, tree)) slot = find(node, tree);
      const uint32_t local = std::min(local_id(slot->value, base), next);
      *slot = Slot(node, tree, base + local);
      return local;
    }

    // The local id of a node, or -1.
    int64_t lookup(int64_t node, uint32_t tree) const {
      const Slot* const slot = find(node, tree);
      return slot->value < base ? -1 : static_cast<int64_t>(slot->value - base);
    }

    // The slot of a node, or the one where it belongs.
    Slot* find(int64_t node, uint32_t tree) const {
      const uint64_t mask = (uint64_t{1} << bits) - 1;
      uint64_t at = table_slot(node, tree, bits);
      while (is_others(slots[at], node, tree)) at = (at + 1) & mask;
      return &slots[at];
    }

    bool is_others(const Slot& slot, int64_t node, uint32_t tree) const {
      return (slot.value >= base) & !slot.is(node, tree);
    }
  };

  // Starts a batch; local ids stay below 2^31.
  void start() {
    base_ += used_;
    used_ = 0;
    count_ = 0;
    if (slots_.data() == nullptr) slots_ = free_slots(kLeastBits);
    if (base_ > uint32_t{1} << 31) {
      std::fill_n(slots_.data(), size_t{1} << bits_, Slot{});
      base_ = 1;
    }
  }

  // Makes room for `more` further nodes; earlier views become invalid.
  void reserve(int64_t more) {
    const size_t needed = slots_a_node * (count_ + static_cast<size_t>(more)), size = size_t{1} << bits_;
    if (needed <= size) return;
    int bits = bits_;
    while (size_t{1} << bits < needed) ++bits;
    const PooledArray<Slot> old = std::exchange(slots_, free_slots(bits));
    bits_ = bits;
    for (size_t i = 0; i < size; ++i) {
      if (old[i].value >= base_) *view().find(old[i].node, old[i].of_tree()) = old[i];
    }
  }

  View view() const { return {slots_.data(), bits_, base_}; }

  // `added` nodes were added through a view; their local ids lie below `next`.
  void added(int64_t added, int64_t next) {
    count_ += static_cast<size_t>(added);
    used_ = std::max(used_, static_cast<uint32_t>(next));
  }

 private:
  static constexpr int kLeastBits = 10;
  static PooledArray<Slot> free_slots(int bits) {
    PooledArray<Slot> slots(int64_t{1} << bits);
    std::fill_n(slots.data(), size_t{1} << bits, Slot{});
    return slots;
  }
  PooledArray<Slot> slots_;
  int bits_ = kLeastBits;
  uint32_t base_ = 1, used_ = 0;  // values of this batch lie in [base, base + used)
  size_t count_ = 0;
};

using TreeTable = RelabelTable<TreeSlot, 2>;
using NodeTable = RelabelTable<NodeSlot, 4>;

}  // namespace gnnscale
