// The arguments of the operator sample_bulk, as its driver uses them.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "bulk_batches.h"
#include "options.h"

namespace gnnscale {

struct BulkRequest : BulkInput {
  int64_t hops;
  bool replace, disjoint, layers, last, induced, bidirectional, with_edge_id, with_col;
  const int64_t *time, *start_time;          // [seeds], where the executor works, or null
  const int64_t *exclude_src, *exclude_dst;  // by segment, where the executor works; null if there are none
  std::vector<int64_t> reverse;              // of each relation: the place of its reverse relation, or -1
  std::vector<int64_t> rooms;  // edges and nodes that each hop has room for at first; empty: see BulkRooms
};

// What `layout` says of each relation: the types of its nodes, the number by which it draws, the place of its reverse
// relation, or -1, of how many tiers and segments its edges are, and whether they have ids, weights and times.
struct BulkLayout {
  int64_t src, dst, number, reverse, tiers, segments, has_id, has_weight, has_time;
  static constexpr size_t kFields = 9;
};

// See torch_gnnscale.ops.PreparedBulks, which checks the arguments; `address`: see tier_table.
template <typename Address>
class BulkArguments {
 public:
  BulkArguments(const std::vector<Tensor>& colptr, const std::vector<Tensor>& row, const std::vector<Tensor>& edge_id,
                const std::vector<Tensor>& weight, const std::vector<Tensor>& time, const std::vector<int64_t>& spread,
                const std::vector<int64_t>& layout, const std::vector<int64_t>& sizes, Address address)
      : parts_{&row, &edge_id, &weight, &time}, spread_(spread), address_(address) {
    STD_TORCH_CHECK(!sizes.empty() && layout.size() == BulkLayout::kFields * colptr.size(),
                    "expected node types, and a layout of each relation");
    int64_t nodes = 0;
    for (const int64_t size : sizes) {
      STD_TORCH_CHECK(size >= 0 && (nodes += size) < kMaxNodes, "expected fewer than 2^40 nodes");
    }
    int64_t before = 0;  // the type of sources of the relation before
    for (size_t r = 0; r < colptr.size(); ++r) {
      const int64_t* const given = layout.data() + BulkLayout::kFields * r;
      const BulkLayout of{given[0], given[1], given[2], given[3], given[4], given[5], given[6], given[7], given[8]};
      const int64_t types = static_cast<int64_t>(sizes.size());
      STD_TORCH_CHECK(before <= of.src && of.src < types && of.dst >= 0 && of.dst < types && of.number >= 0 &&
                          of.number < kMaxRelations,
                      "expected relations by the type of their sources");
      BulkRelation relation =
          bulk_relation(colptr[r], next(kRow, of), of.has_id != 0 ? next(kId, of) : Tensors{}, tiers(of), address_);
      STD_TORCH_CHECK(relation.num_dst == sizes[of.dst], "relation ", r, " does not fit its node types");
      if (of.has_weight != 0) relation.weight = numbers_of_edges(kWeight, of, relation.num_edges);
      if (of.has_time != 0) relation.time = numbers_of_edges(kTime, of, relation.num_edges);
      first_tier_ += static_cast<size_t>(of.tiers);
      relation.src = static_cast<int32_t>(of.src);
      relation.dst = static_cast<int32_t>(of.dst);
      relation.number = static_cast<int32_t>(of.number);
      relation.num_src = sizes[of.src];
      relation.first = relation.src == before && r > 0 ? relations.back().first : static_cast<int32_t>(r);
      before = of.src;
      relations.push_back(relation);
      reverse.push_back(of.reverse);
    }
    for (size_t r = 0; r < reverse.size(); ++r) {
      const size_t other = static_cast<size_t>(reverse[r]);
      STD_TORCH_CHECK(reverse[r] == -1 || (other < relations.size() && relations[other].src == relations[r].dst &&
                                           relations[other].dst == relations[r].src),
                      "relation ", r, " is not between the types of its reverse");
    }
    for (BulkRelation& relation : relations) {
      relation.siblings = static_cast<int32_t>(std::count_if(
          relations.begin(), relations.end(), [&](const BulkRelation& other) { return other.src == relation.src; }));
    }
  }

  std::vector<BulkRelation> relations;
  std::vector<int64_t> reverse;

 private:
  using Tensors = std::vector<Tensor>;
  enum Kind { kRow, kId, kWeight, kTime, kKinds };

  // The tensors of a kind that are the next relation's.
  Tensors next(Kind kind, const BulkLayout& of) {
    const Tensors& all = *parts_[kind];
    const int64_t left = static_cast<int64_t>(all.size()) - taken_[kind];
    STD_TORCH_CHECK(of.segments >= 0 && of.segments <= left, "expected more tensors of edges");
    const auto begin = all.begin() + taken_[kind];
    taken_[kind] += of.segments;
    return Tensors(begin, begin + of.segments);
  }

  std::vector<int64_t> tiers(const BulkLayout& of) const {
    STD_TORCH_CHECK(of.tiers >= 0 && of.tiers <= static_cast<int64_t>(spread_.size() - first_tier_),
                    "expected more tiers of edges");
    return {spread_.begin() + first_tier_, spread_.begin() + first_tier_ + of.tiers};
  }

  TieredIds numbers_of_edges(Kind kind, const BulkLayout& of, int64_t edges) {
    const TieredIds found = tiered_ids(next(kind, of), tiers(of), address_);
    STD_TORCH_CHECK(found.wide && found.table.first[found.table.num_tiers] == edges, "expected an int64 for each edge");
    return found;
  }

  const Tensors* const parts_[kKinds];
  const std::vector<int64_t>& spread_;
  Address address_;
  int64_t taken_[kKinds] = {};
  size_t first_tier_ = 0;
};

template <typename Address>
BulkRequest bulk_request(const std::vector<Tensor>& colptr, const std::vector<Tensor>& row,
                         const std::vector<Tensor>& edge_id, const std::vector<Tensor>& weight,
                         const std::vector<Tensor>& time, const std::vector<int64_t>& spread,
                         const std::vector<int64_t>& layout, std::vector<int64_t> sizes, const Tensor& seeds,
                         std::vector<int64_t> seed_ptr, const std::optional<Tensor>& seed_time,
                         const std::optional<Tensor>& seed_start_time, const std::optional<Tensor>& exclude,
                         std::vector<int64_t> exclude_ptr, std::vector<int64_t> fanouts, std::vector<int64_t> keys,
                         int64_t options, std::vector<int64_t> rooms, Address&& address) {
  using Options = SampleOptions;
  const Options asked("sample_bulk", options,
                      Options::kReplace | Options::kDisjoint | Options::kLast | Options::kLayers | Options::kInduced |
                          Options::kBidirectional | Options::kWithEdgeId | Options::kWithCol);
  const BulkArguments<Address&> arguments(colptr, row, edge_id, weight, time, spread, layout, sizes, address);
  const std::vector<BulkRelation>& relations = arguments.relations;
  const size_t segments = relations.size() * keys.size();
  const size_t hops = relations.empty() ? 0 : fanouts.size() / relations.size();
  STD_TORCH_CHECK(rooms.empty() || rooms.size() == 2, "expected fewer rooms");
  STD_TORCH_CHECK(fanouts.size() == hops * relations.size(), "expected as many fanouts of each relation");
  check_bulk_seeds(seeds, seed_ptr, keys.size(), sizes.size(), hops);
  STD_TORCH_CHECK(std::max(relations.size(), sizes.size()) < (size_t{1} << 31) / std::max<size_t>(keys.size(), 1),
                  "expected fewer batches");
  STD_TORCH_CHECK(asked.has(Options::kLayers) + asked.has(Options::kInduced) + asked.has(Options::kBidirectional) <= 1,
                  "expected one kind of subgraphs");
  const bool disjoint = asked.has(Options::kDisjoint);
  STD_TORCH_CHECK(!disjoint || seeds.numel() <= kMaxBatches, "expected fewer than 2^24 seeds of disjoint trees");
  const bool timed = std::any_of(relations.begin(), relations.end(), [](const auto& of) { return of.has_times(); });
  STD_TORCH_CHECK(!timed || (disjoint && seed_time.has_value()), "times need disjoint trees, and times of their seeds");
  for (const auto* const of_seeds : {&seed_time, &seed_start_time}) check_int64("seed_time", *of_seeds, seeds.numel());
  const int64_t pairs = exclude.has_value() ? exclude->numel() / 2 : 0;
  if (exclude.has_value()) check_int64("exclude", *exclude, 2 * pairs);
  STD_TORCH_CHECK(pairs == 0
                      ? exclude_ptr.empty()
                      : exclude_ptr.size() == segments + 1 && exclude_ptr.front() == 0 && exclude_ptr.back() == pairs &&
                            std::is_sorted(exclude_ptr.begin(), exclude_ptr.end()),
                  "expected exclude_ptr to lead from 0 to the number of pairs in ", segments, " steps");
  const auto numbers = [&](const std::optional<Tensor>& values) {
    return values.has_value() ? reinterpret_cast<const int64_t*>(address(*values)) : nullptr;
  };
  const int64_t* const excluded = pairs == 0 ? nullptr : numbers(exclude);
  return {{relations, std::move(sizes), seeds, std::move(seed_ptr), std::move(keys), std::move(fanouts),
           std::move(exclude_ptr)},
          static_cast<int64_t>(hops),
          asked.has(Options::kReplace),
          disjoint,
          asked.has(Options::kLayers),
          asked.has(Options::kLast),
          asked.has(Options::kInduced),
          asked.has(Options::kBidirectional),
          asked.has(Options::kWithEdgeId),
          asked.has(Options::kWithCol),
          timed ? numbers(seed_time) : nullptr,
          timed ? numbers(seed_start_time) : nullptr,
          excluded,
          excluded == nullptr ? nullptr : excluded + pairs,
          arguments.reverse,
          std::move(rooms)};
}

}  // namespace gnnscale
