// Global to local ids as loops over independent items, for many threads: known nodes and found ones are entered into
// one hash table, which keeps the first of those that are equal; a prefix sum over the found ones that are their own
// first numbers the new nodes. Each phase is called for every item in any order and by any number of threads, the next
// one when all calls have returned.
#pragma once

#include "../earliest.h"
#include "../mix.h"

namespace gnnscale {

// Items: the known nodes, then the found ones.
struct FoundNodes {
  int64_t known, found;
  const int64_t *known_node, *found_node;  // [known], [found]
  bool trees;                              // whether items have trees; else all are of one
  const int64_t *known_tree, *found_tree;  // [known], [found]
  EarliestTable table;                     // of 2 * (known + found) slots and more
  int64_t* local;                          // [found]: at first the item of the first equal one, at last the local id
  int64_t *fresh, *rank;  // [found + 1]: whether a found one is its own first, and how many before it are
  int64_t *node, *tree;   // [new]

  GNNSCALE_HD int64_t node_of(int64_t item) const { return item < known ? known_node[item] : found_node[item - known]; }
  GNNSCALE_HD int64_t tree_of(int64_t item) const {
    return !trees ? 0 : item < known ? known_tree[item] : found_tree[item - known];
  }
  // Its high bits are mixed.
  GNNSCALE_HD uint64_t hash_of(int64_t item) const {
    return mix64(mix64(static_cast<uint64_t>(node_of(item))) ^ static_cast<uint64_t>(tree_of(item)));
  }
  GNNSCALE_HD bool is_same(int64_t a, int64_t b) const { return node_of(a) == node_of(b) && tree_of(a) == tree_of(b); }
};

// For every item.
struct EnterItem {
  FoundNodes of;

  GNNSCALE_HD void operator()(int64_t item) const {
    of.table.add(static_cast<uint32_t>(item), of.hash_of(item),
                 [this, item](uint32_t other) { return of.is_same(item, other); });
  }
};

// For every found node: the first item that is equal.
struct FindFirst {
  FoundNodes of;

  GNNSCALE_HD void operator()(int64_t e) const {
    const int64_t item = of.known + e;
    const int64_t first =
        of.table.find(of.hash_of(item), [this, item](uint32_t other) { return of.is_same(item, other); });
    of.local[e] = first;
    of.fresh[e] = first == item;
  }
};

// For every found node, after the sum over those that are fresh: its local id, and, if it is fresh, a new node.
struct NumberFound {
  FoundNodes of;

  GNNSCALE_HD void operator()(int64_t e) const {
    const int64_t first = of.local[e];
    if (first >= of.known) of.local[e] = of.known + of.rank[first - of.known];
    if (of.fresh[e] == 0) return;
    of.node[of.rank[e]] = of.found_node[e];
    if (of.trees) of.tree[of.rank[e]] = of.found_tree[e];
  }
};

}  // namespace gnnscale
