// The arguments of gather_tiers in the form that its two executors use.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "../memory/checks.h"
#include "../tier.h"

namespace gnnscale {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The shape of the output and what a row is.
struct TierRows {
  TierTable table;
  std::vector<int64_t> sizes;
  int64_t items = 1;
  int64_t stored_bytes;  // of a row
};

// The table of tiers of which tier t consists of spread[t] segments; address(segment) is the pointer to its rows.
template <typename Address>
TierTable tier_table(const std::vector<Tensor>& segments, const std::vector<int64_t>& spread, Address&& address) {
  STD_TORCH_CHECK(spread.size() <= kMaxTiers && segments.size() <= kMaxSegments, "expected up to ", kMaxTiers,
                  " tiers of up to ", kMaxSegments, " segments in all");
  TierTable table;
  table.num_tiers = static_cast<int32_t>(spread.size());
  size_t at = 0;
  for (const Tensor& segment : segments) {
    check_table("segments", segment);
    STD_TORCH_CHECK(dtype_of(segment) == dtype_of(segments[0]) && segment.dim() == segments[0].dim(),
                    "segments: expected rows of one dtype and shape");
    for (int64_t d = 1; d < segment.dim(); ++d) {
      STD_TORCH_CHECK(segment.size(d) == segments[0].size(d), "segments: expected rows of one shape");
    }
  }
  for (size_t tier = 0; tier < spread.size(); ++tier) {
    STD_TORCH_CHECK(spread[tier] > 0, "spread: expected at least one segment for each tier, found ", spread[tier]);
    int64_t count = 0;
    for (int64_t p = 0; p < spread[tier]; ++p, ++at) {
      STD_TORCH_CHECK(at < segments.size(), "fewer segments than the tiers are spread over");
      // Row i of a tier is row i / P of segment i mod P.
      const int64_t before = p == 0 ? segments[at].size(0) : segments[at - 1].size(0);
      STD_TORCH_CHECK(segments[at].size(0) <= before && segments[at].size(0) + 1 >= segments[at - p].size(0),
                      "segments: expected the rows of a tier dealt to its segments in turn");
      table.base[at] = segments[at].numel() > 0 ? address(segments[at]) : nullptr;
      table.stride[at] = segments[at].stride(0) * static_cast<int64_t>(segments[at].element_size());
      count += segments[at].size(0);
    }
    table.segment[tier + 1] = static_cast<int32_t>(at);
    if (spread[tier] > 1) table.inverse[tier] = UINT64_MAX / static_cast<uint64_t>(spread[tier]) + 1;
    table.first[tier + 1] = table.first[tier] + count;
  }
  return table;
}

// The ids of all `parts`, vectors of int32 or int64, in tiers of spread[t] parts each; see tier_table.
template <typename Address>
TieredIds tiered_ids(const std::vector<Tensor>& parts, const std::vector<int64_t>& spread, Address&& address) {
  for (const Tensor& part : parts) {
    const ScalarType type = dtype_of(part);
    STD_TORCH_CHECK(
        (type == ScalarType::Long || type == ScalarType::Int) && type == dtype_of(parts[0]) && part.dim() == 1,
        "expected int32 or int64 ids of one type");
  }
  return {tier_table(parts, spread, address), !parts.empty() && dtype_of(parts[0]) == ScalarType::Long};
}

// See torch_gnnscale.ops.gather_tiers, which checks the arguments; `address`: see tier_table.
template <typename Address>
TierRows tier_rows(const std::vector<Tensor>& segments, const std::vector<int64_t>& spread, const Tensor& index,
                   Address&& address) {
  STD_TORCH_CHECK(!spread.empty() && !segments.empty(), "gather_tiers: expected at least one tier");
  check_contiguous_ids("index", index);
  TierRows rows;
  rows.sizes.push_back(index.numel());
  for (int64_t d = 1; d < segments[0].dim(); ++d) {
    rows.sizes.push_back(segments[0].size(d));
    rows.items *= segments[0].size(d);
  }
  rows.stored_bytes = rows.items * static_cast<int64_t>(segments[0].element_size());
  rows.table = tier_table(segments, spread, address);
  return rows;
}

// One table among several, as gather_tiers has it.
struct TableArguments {
  std::vector<Tensor> segments;
  std::vector<int64_t> spread;
  std::optional<Tensor> place;
  Tensor index;
  bool disk;
  ScalarType dtype;
  std::optional<Tensor> counts;
};

// Calls f(table) for each of the tables of gather_tables, of which `layout` has three numbers each: of tiers, whether
// the last is on disk, and the bytes of an item of the output, or 0 where it is as it is stored.
template <typename F>
void each_table(const std::vector<Tensor>& segments, const std::vector<int64_t>& spread,
                const std::vector<int64_t>& layout, const std::vector<std::optional<Tensor>>& place,
                const std::vector<Tensor>& index, const std::vector<Tensor>& counts, F&& f) {
  const size_t tables = index.size();
  STD_TORCH_CHECK(layout.size() == 3 * tables && place.size() == tables && (counts.empty() || counts.size() == tables),
                  "gather_tables: expected as many places, counts and entries of the layout as tables");
  size_t tier = 0, segment = 0;
  for (size_t t = 0; t < tables; ++t) {
    const auto [tiers, disk, item] = std::tuple(layout[3 * t], layout[3 * t + 1], layout[3 * t + 2]);
    STD_TORCH_CHECK(tiers > 0 && static_cast<size_t>(tiers) <= spread.size() - tier && (disk == 0 || disk == 1) &&
                        (item == 0 || item == 4 || item == 8),
                    "gather_tables: malformed layout");
    std::vector<int64_t> of_tiers(spread.begin() + static_cast<int64_t>(tier),
                                  spread.begin() + static_cast<int64_t>(tier) + tiers);
    tier += static_cast<size_t>(tiers);
    const size_t begin = segment;
    for (const int64_t count : of_tiers) {
      STD_TORCH_CHECK(count > 0 && static_cast<size_t>(count) <= segments.size() - segment,
                      "gather_tables: fewer segments than the tiers are spread over");
      segment += static_cast<size_t>(count);
    }
    const ScalarType stored = dtype_of(segments[begin]);
    f(TableArguments{
        {segments.begin() + static_cast<int64_t>(begin), segments.begin() + static_cast<int64_t>(segment)},
        std::move(of_tiers),
        place[t],
        index[t],
        disk == 1,
        item == 0 ? stored : (item == 4 ? ScalarType::Float : ScalarType::Double),
        counts.empty() ? std::nullopt : std::optional<Tensor>(counts[t]),
    });
  }
  STD_TORCH_CHECK(tier == spread.size() && segment == segments.size(), "gather_tables: more segments than tables have");
}

}  // namespace gnnscale
