// How much room the hops of a bulk get, before it is known what they need.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <mutex>
#include <vector>

namespace gnnscale {

// What the numbers of edges and nodes that seeds lead to depend on, apart from chance.
struct BulkKind {
  int64_t num_nodes, num_edges;
  std::vector<int64_t> fanouts;
  bool replace, layers;

  bool operator==(const BulkKind&) const = default;
};

// Edges that each hop draws, and nodes that it finds: hop h finds nodes[h] from edges[h].
struct BulkNeed {
  std::vector<int64_t> edges, nodes;
};

constexpr int64_t kMostInHop = (int64_t{1} << 31) - 2;  // edges or nodes of a hop of a bulk
constexpr int64_t kCheapEdges = int64_t{1} << 25;       // a hop of at most so many gets room for the worst case

constexpr int64_t kFewEdges = int64_t{1} << 12;  // room for so many is not made smaller

// a * b, or kMostInHop + 1 if that exceeds it.
inline int64_t bounded_product(int64_t a, int64_t b) {
  const __int128 product = static_cast<__int128>(a) * b;
  return product > kMostInHop ? kMostInHop + 1 : static_cast<int64_t>(product);
}

struct BulkRooms {
  std::vector<int64_t> columns, edges, nodes;  // of each hop; nodes[h] are found by hop h

  // Room for what is likely, but at least for `least`, and never more than the worst case.
  // likely: of each hop, if an earlier call told; else what the mean degree says.
  BulkRooms(const BulkKind& kind, int64_t batches, int64_t seeds, const BulkNeed& least, const BulkNeed* likely) {
    const int64_t mean = kind.num_edges / std::max<int64_t>(kind.num_nodes, 1) + 1;
    int64_t known = seeds, frontier = seeds;
    for (size_t h = 0; h < kind.fanouts.size(); ++h) {
      const int64_t fanout = kind.fanouts[h];
      columns.push_back(kind.layers ? known : frontier);
      const int64_t worst = bounded_product(columns[h], fanout < 0 ? kind.num_edges : fanout);
      int64_t expected = worst;
      if (likely != nullptr) {
        expected = likely->edges[h];
      } else if (worst > kCheapEdges) {
        expected = bounded_product(columns[h], fanout < 0 ? 2 * mean + 14 : std::min(fanout, 2 * mean + 14));
      }
      edges.push_back(std::min(worst, std::max(std::min(expected, kMostInHop), least.edges[h])));
      const int64_t found = std::min(edges[h], bounded_product(batches, kind.num_nodes));
      nodes.push_back(std::min(found, std::max(likely != nullptr ? likely->nodes[h] : found, least.nodes[h])));
      frontier = nodes[h];
      known = std::min(known + frontier, kMostInHop + 1);
    }
  }

  // For memory that does not have so much: writes half of each hop's room. False if no hop has more room than it is
  // known to need at least, or than is worth another attempt.
  bool halve(const BulkNeed& least, BulkNeed& likely) const {
    likely = {edges, nodes};
    for (std::vector<int64_t>* counts : {&likely.edges, &likely.nodes}) {
      for (int64_t& count : *counts) count /= 2;
    }
    bool is_less = false;
    for (size_t h = 0; h < edges.size(); ++h) is_less |= edges[h] > std::max(least.edges[h], kFewEdges);
    return is_less;
  }
};

// What earlier calls of a kind needed, for each 1024 seeds; of a bounded number of kinds.
class BulkMemory {
 public:
  // Writes what so many seeds are likely to need; false if no earlier call was of this kind.
  bool recall(const BulkKind& kind, int64_t seeds, BulkNeed& likely) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (!(entry->kind == kind)) continue;
      entries_.splice(entries_.begin(), entries_, entry);
      likely = entries_.front().need;
      for (std::vector<int64_t>* counts : {&likely.edges, &likely.nodes}) {
        for (int64_t& count : *counts) count = scaled(count, seeds, 1024) + kMargin;
      }
      return true;
    }
    return false;
  }

  // Keeps the greatest need of a kind.
  void remember(const BulkKind& kind, int64_t seeds, const BulkNeed& needed) {
    if (seeds == 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.kind == kind; });
    if (entry == entries_.end()) {
      if (entries_.size() == kMostKinds) entries_.pop_back();
      entries_.push_front(
          {kind, {std::vector<int64_t>(kind.fanouts.size()), std::vector<int64_t>(kind.fanouts.size())}});
      entry = entries_.begin();
    }
    for (size_t h = 0; h < kind.fanouts.size(); ++h) {
      entry->need.edges[h] = std::max(entry->need.edges[h], scaled(needed.edges[h], 1024, seeds));
      entry->need.nodes[h] = std::max(entry->need.nodes[h], scaled(needed.nodes[h], 1024, seeds));
    }
  }

 private:
  static constexpr size_t kMostKinds = 32;
  static constexpr int64_t kMargin = 1024;
  struct Entry {
    BulkKind kind;
    BulkNeed need;
  };

  // count * to / from and a sixteenth more.
  static int64_t scaled(int64_t count, int64_t to, int64_t from) {
    const double value = static_cast<double>(count) * static_cast<double>(to) / static_cast<double>(from) * 1.0625;
    return static_cast<int64_t>(std::min(value, static_cast<double>(kMostInHop)));
  }

  std::mutex mutex_;
  std::list<Entry> entries_;
};

inline BulkMemory& bulk_memory() {
  static BulkMemory memory;
  return memory;
}

}  // namespace gnnscale
