// Nodes to local ids by open addressing, on the CPU: where trees are disjoint, and where the map of relabel.h would be
// much larger than the batch. Like the map, tables are not cleared: a slot holds base + local id, and is free if that
// is below the base.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "../macros.h"
#include "../memory/allocate.h"
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

// The nodes of one tree, of one type, for batches that work on one tree after another: no tree needs another's nodes,
// and those of one, with 4 bytes a slot, stay in the first-level cache. Which node a local id stands for is in the list
// of the batch's nodes of the type: id[0..count), tree[0..count).
class OneTree {
 public:
  static constexpr int64_t kMostNodes = int64_t{1} << 14;  // of a tree: the table has at most 256 KiB

  struct View {
    uint32_t* slots;
    int shift;
    uint32_t mask, base;

    // The local id of a node, which is `next` if it was not known. ids[next] is `id` already.
    GNNSCALE_INLINE uint32_t add(const int64_t* ids, int64_t id, uint32_t next) const {
      // As in RelabelTable, there is no branch by whether the node was known.
      uint32_t at = slot_of(id), local = std::min(local_id(slots[at], base), next);
      while (ids[local] != id) [[unlikely]] {
        at = (at + 1) & mask;
        local = std::min(local_id(slots[at], base), next);
      }
      slots[at] = base + local;
      return local;
    }

    // The local id of a node, or -1. count: the nodes of the list.
    int64_t lookup(const int64_t* ids, int64_t id, int64_t count) const {
      for (uint32_t at = slot_of(id);; at = (at + 1) & mask) {
        const int64_t local = local_id(slots[at], base);
        if (local >= count) return -1;
        if (ids[local] == id) return local;
      }
    }

    // Enters a node that is not in the table.
    void enter(int64_t id, uint32_t local) const {
      uint32_t at = slot_of(id);
      while (slots[at] >= base) at = (at + 1) & mask;
      slots[at] = base + local;
    }

   private:
    GNNSCALE_INLINE uint32_t slot_of(int64_t id) const {
      return static_cast<uint32_t>(static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ull >> shift);
    }
  };

  // Starts a batch, before its seeds are in the list.
  void start() {
    clear();
    runs_.clear();
    in_runs_ = 0;
    tree_ = INT64_MAX;
  }

  // Makes the table that of `tree`, with room for `more` nodes. Nodes that are appended to the list until the next call
  // are of this tree. most: how many different nodes a tree can have. False, and the table is of no use, if the tree
  // may have more than kMostNodes.
  bool hold(int64_t tree, const int64_t* ids, const int64_t* trees, int64_t count, int64_t more, int64_t most) {
    if (tree == tree_ && room_for(std::min(held_ + count - count_ + more, most))) return true;
    if (tree <= tree_) end_run(count);
    tree_ = tree;
    count_ = count;
    held_ = 0;
    for (Run& run : runs_) {
      while (run.next < run.end && trees[run.next] < tree) ++run.next;
      run.last = run.next;
      while (run.last < run.end && trees[run.last] == tree) ++run.last;
      held_ += run.last - run.next;
    }
    const int64_t needed = std::min(held_ + more, most);
    if (needed > kMostNodes) return false;
    renew(needed);
    const View table = view();
    for (Run& run : runs_) {
      for (; run.next < run.last; ++run.next) table.enter(ids[run.next], static_cast<uint32_t>(run.next));
    }
    return true;
  }

  View view() { return {slots_.data(), 64 - bits_, (uint32_t{1} << bits_) - 1, base_}; }

 private:
  static constexpr int kLeastBits = 6;
  static constexpr int64_t kSlotsOfNode = 4;

  // Nodes [begin, end) of the list, whose trees do not descend; [next, last) are those of the tree at hand.
  struct Run {
    int64_t begin, end, next, last;
  };

  bool room_for(int64_t nodes) const { return kSlotsOfNode * nodes <= int64_t{1} << bits_; }

  // Trees begin again: what was appended so far is a run.
  void end_run(int64_t count) {
    if (count > in_runs_) runs_.push_back({in_runs_, count, in_runs_, in_runs_});
    in_runs_ = count;
    for (Run& run : runs_) run.next = run.begin;
  }

  // An empty table for `nodes` nodes. What was entered lies below base + count, and local ids below 2^31.
  void renew(int64_t nodes) {
    base_ += static_cast<uint32_t>(count_);
    if (base_ > uint32_t{1} << 31) clear();
    bits_ = kLeastBits;
    while (!room_for(nodes)) ++bits_;
    used_ = std::max(used_, size_t{1} << bits_);
    if (slots_.size() < used_) slots_.resize(used_, 0);
  }

  void clear() {
    std::fill_n(slots_.data(), used_, 0);
    used_ = 0;
    base_ = 1;
  }

  Vector<uint32_t> slots_;
  size_t used_ = 0;  // slots from here on are 0
  int bits_ = kLeastBits;
  uint32_t base_ = 1;
  int64_t tree_ = INT64_MAX, count_ = 0, held_ = 0;  // the tree, and how many nodes the list and it had at hold()
  std::vector<Run> runs_;
  int64_t in_runs_ = 0;
};

}  // namespace gnnscale
