// Global to local ids as loops over independent items, for many threads. Known and found nodes are entered into a hash
// table, which keeps the first of equal ones. A found node is new if it is itself the first; a prefix sum over the new
// ones numbers them. Each phase is called for every item, in any order and by any number of threads; the next phase
// begins when all calls have returned.
#pragma once

#include "../earliest.h"
#include "../mix.h"

namespace gnnscale {

// Items: the known nodes, then the found ones.
struct FoundNodes {
  int64_t known, found;
  const int64_t *known_node, *found_node;  // [known], [found]
  bool trees;                              // whether items have trees; without, all are of tree 0
  const int64_t *known_tree, *found_tree;  // [known], [found]
  EarliestTable table;                     // of at least 2 * (known + found) slots
  int64_t* local;                          // [found]: after FindFirst the first equal item, then the local id
  int64_t* fresh;                          // [found]: whether a found node is new
  int64_t* rank;                           // [found + 1]: how many before it are new
  int64_t *node, *tree;                    // [new]

  GNNSCALE_HD int64_t node_of(int64_t item) const { return item < known ? known_node[item] : found_node[item - known]; }
  GNNSCALE_HD int64_t tree_of(int64_t item) const {
    return !trees ? 0 : item < known ? known_tree[item] : found_tree[item - known];
  }
  // The high bits, by which EarliestTable chooses a slot, are mixed.
  GNNSCALE_HD uint64_t hash_of(int64_t item) const {
    return mix64(mix64(static_cast<uint64_t>(node_of(item))) ^ static_cast<uint64_t>(tree_of(item)));
  }
  GNNSCALE_HD bool is_same(int64_t a, int64_t b) const { return node_of(a) == node_of(b) && tree_of(a) == tree_of(b); }
};

// For every item: enters it.
struct EnterItem {
  FoundNodes found;

  GNNSCALE_HD void operator()(int64_t item) const {
    found.table.add(static_cast<uint32_t>(item), found.hash_of(item),
                    [this, item](uint32_t other) { return found.is_same(item, other); });
  }
};

// For every found node: the first equal item, and whether that is the node itself.
struct FindFirst {
  FoundNodes found;

  GNNSCALE_HD void operator()(int64_t e) const {
    const int64_t item = found.known + e;
    const int64_t first =
        found.table.find(found.hash_of(item), [this, item](uint32_t other) { return found.is_same(item, other); });
    found.local[e] = first;
    found.fresh[e] = first == item;
  }
};

// For every found node, after the prefix sum over `fresh`: its local id, and, if it is new, its `node` and `tree`.
struct NumberFound {
  FoundNodes found;

  GNNSCALE_HD void operator()(int64_t e) const {
    const int64_t first = found.local[e];
    if (first >= found.known) found.local[e] = found.known + found.rank[first - found.known];
    if (found.fresh[e] == 0) return;
    found.node[found.rank[e]] = found.found_node[e];
    if (found.trees) found.tree[found.rank[e]] = found.found_tree[e];
  }
};

}  // namespace gnnscale
