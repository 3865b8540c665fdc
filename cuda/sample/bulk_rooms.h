// How much room the hops of a bulk get, before it is known what they need.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <list>
#include <mutex>
#include <numeric>
#include <sstream>
#include <vector>

#include "../memory/room.h"

namespace gnnscale {

// What the numbers of edges and nodes that seeds lead to depend on, apart from chance.
struct BulkKind {
  struct Relation {
    int64_t num_edges, src, dst;
    std::vector<int64_t> fanouts;  // of each hop

    bool operator==(const Relation&) const = default;
  };

  std::vector<int64_t> sizes;  // nodes of each type
  std::vector<Relation> relations;
  int64_t hops;
  bool replace, layers, disjoint;

  bool operator==(const BulkKind&) const = default;
};

// Edges that each hop draws, nodes that it finds from them, columns that the next hop has then, and entries of what is
// excluded.
struct BulkNeed {
  std::vector<int64_t> edges, nodes, columns, excluded;

  explicit BulkNeed(int64_t hops = 0)
      : edges(static_cast<size_t>(hops)), nodes(edges), columns(edges), excluded(edges) {}

  static constexpr std::array kCounts{&BulkNeed::edges, &BulkNeed::nodes, &BulkNeed::columns, &BulkNeed::excluded};
};

// More than one call can draw: room for less may do, or fewer batches. torch_gnnscale/ops/bulk_input.py draws the
// halves of the batches then, and knows it by how its text begins.
class TooManyAtOnce : public NoRoom {
 public:
  using NoRoom::NoRoom;
};

template <typename... Words>
void check_at_once(bool fits, const Words&... words) {
  if (fits) return;
  std::ostringstream text;
  text << "too many at once: ";
  (text << ... << words);
  text << "; sample fewer batches at a time";
  throw TooManyAtOnce(text.str());
}

constexpr int64_t kMostInHop = (int64_t{1} << 31) - 2;  // edges or nodes of a hop of a bulk
constexpr int64_t kCheapEdges = int64_t{1} << 25;       // a hop of at most so many, or columns, gets the worst case

constexpr int64_t kFewEdges = int64_t{1} << 12;  // room for so many is not made smaller

// a * b, or kMostInHop + 1 if that exceeds it.
inline int64_t bounded_product(int64_t a, int64_t b) {
  const __int128 product = static_cast<__int128>(a) * b;
  return product > kMostInHop ? kMostInHop + 1 : static_cast<int64_t>(product);
}

// Rooms of each hop; columns[0] is of the first hop, columns[h + 1] of those that hop h leads to.
struct BulkRooms : BulkNeed {
  // Room for what is likely, but at least for `least`, and never more than the worst case.
  // trees: batches, or, where trees are disjoint, seeds; seeds: of each type; pairs: how many are excluded; likely: of
  // each hop, if an earlier call told; else what the mean degree says.
  BulkRooms(const BulkKind& kind, int64_t trees, const std::vector<int64_t>& seeds, int64_t pairs,
            const BulkNeed& least, const BulkNeed* likely)
      : BulkNeed(kind.hops) {
    columns.resize(edges.size() + 1);
    std::vector<int64_t> known = seeds, frontier = seeds;  // of each type, at most
    columns[0] = columns_of(kind, frontier);
    for (size_t h = 0; h < edges.size(); ++h) {
      std::vector<int64_t> found(seeds.size(), 0);
      int64_t worst = 0, expected = 0, of_column = 0;
      for (const BulkKind::Relation& relation : kind.relations) {
        const int64_t fanout = relation.fanouts[h], of_columns = std::min(frontier[relation.dst], columns[h]);
        const int64_t mean = relation.num_edges / std::max<int64_t>(kind.sizes[relation.dst], 1) + 1;
        const int64_t most = bounded_product(of_columns, fanout < 0 ? relation.num_edges : fanout);
        of_column = std::max(of_column, fanout < 0 ? relation.num_edges : fanout);
        const int64_t few = fanout < 0 ? 2 * mean + 14 : std::min(fanout, 2 * mean + 14);
        worst = bounded_sum(worst, most);
        expected = bounded_sum(expected, most > kCheapEdges ? bounded_product(of_columns, few) : most);
        found[relation.src] = bounded_sum(found[relation.src], most);
      }
      worst = std::min(worst, bounded_product(columns[h], of_column));
      if (likely != nullptr) expected = likely->edges[h];
      edges[h] = std::min(worst, std::max(std::min(expected, kMostInHop), least.edges[h]));
      int64_t all = 0;
      for (size_t t = 0; t < found.size(); ++t) {
        found[t] = std::min({found[t], edges[h], bounded_product(trees, kind.sizes[t])});
        all = bounded_sum(all, found[t]);
      }
      all = std::min(all, edges[h]);
      nodes[h] = std::min(all, std::max(likely != nullptr ? likely->nodes[h] : all, least.nodes[h]));
      for (size_t t = 0; t < found.size(); ++t) {
        found[t] = std::min(found[t], nodes[h]);
        known[t] = bounded_sum(known[t], found[t]);
      }
      frontier = kind.layers ? known : found;
      all = columns_of(kind, frontier);
      // Of many relations, few have edges into each node that is found.
      int64_t guess = std::max(kCheapEdges, std::accumulate(frontier.begin(), frontier.end(), int64_t{0}));
      if (likely != nullptr) guess = likely->columns[h];
      columns[h + 1] = std::min(all, std::max(guess, least.columns[h]));
      if (pairs > 0)
        excluded[h] = std::max({likely != nullptr ? likely->excluded[h] : 0, least.excluded[h], 4 * pairs});
    }
  }

  // For memory that does not have so much: writes half of each hop's room. False if no hop has more room than it is
  // known to need at least, or than is worth another attempt.
  bool halve(const BulkNeed& least, BulkNeed& likely) const {
    likely = *this;
    likely.columns.erase(likely.columns.begin());
    for (const auto counts : kCounts) {
      for (int64_t& count : likely.*counts) count /= 2;
    }
    bool is_less = false;
    for (size_t h = 0; h < edges.size(); ++h) is_less |= edges[h] > std::max(least.edges[h], kFewEdges);
    return is_less;
  }

 private:
  static int64_t bounded_sum(int64_t a, int64_t b) { return std::min(a + b, kMostInHop + 1); }

  // How many columns all relations have into so many nodes of each type.
  static int64_t columns_of(const BulkKind& kind, const std::vector<int64_t>& frontier) {
    int64_t sum = 0;
    for (const BulkKind::Relation& relation : kind.relations) sum = bounded_sum(sum, frontier[relation.dst]);
    return sum;
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
      for (const auto counts : BulkNeed::kCounts) {
        for (int64_t& count : likely.*counts) count = scaled(count, seeds, 1024) + kMargin;
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
      entries_.push_front({kind, BulkNeed(kind.hops)});
      entry = entries_.begin();
    }
    for (const auto counts : BulkNeed::kCounts) {
      for (size_t h = 0; h < (needed.*counts).size(); ++h) {
        int64_t& kept = (entry->need.*counts)[h];
        kept = std::max(kept, scaled((needed.*counts)[h], 1024, seeds));
      }
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
