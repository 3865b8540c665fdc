// The arguments of gather_tiers in the form that its two executors use.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

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

}  // namespace gnnscale
