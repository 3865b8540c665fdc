// What the two executors of gather_tiers make of its arguments.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <vector>

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

// The table of tiers that are spread over so many parts each; `address` gives the pointer to a part's rows.
template <typename Address>
TierTable tier_table(const std::vector<Tensor>& parts, const std::vector<int64_t>& spread, Address&& address) {
  STD_TORCH_CHECK(spread.size() <= kMaxTiers && parts.size() <= kMaxParts, "expected up to ", kMaxTiers,
                  " tiers of up to ", kMaxParts, " parts in all");
  TierTable table;
  table.num_tiers = static_cast<int32_t>(spread.size());
  size_t at = 0;
  for (size_t tier = 0; tier < spread.size(); ++tier) {
    int64_t count = 0;
    for (int64_t p = 0; p < spread[tier]; ++p, ++at) {
      STD_TORCH_CHECK(at < parts.size(), "fewer parts than the tiers are spread over");
      table.base[at] = parts[at].numel() > 0 ? address(parts[at]) : nullptr;
      table.stride[at] = parts[at].stride(0) * static_cast<int64_t>(parts[at].element_size());
      count += parts[at].size(0);
    }
    table.part[tier + 1] = static_cast<int32_t>(at);
    table.first[tier + 1] = table.first[tier] + count;
  }
  return table;
}

// See torch_gnnscale.ops.gather_tiers, which checks the arguments; `address`: see tier_table.
template <typename Address>
TierRows tier_rows(const std::vector<Tensor>& parts, const std::vector<int64_t>& spread, const Tensor& index,
                   Address&& address) {
  STD_TORCH_CHECK(!spread.empty() && !parts.empty(), "gather_tiers: expected at least one tier");
  TierRows rows;
  rows.sizes.push_back(index.numel());
  for (int64_t d = 1; d < parts[0].dim(); ++d) {
    rows.sizes.push_back(parts[0].size(d));
    rows.items *= parts[0].size(d);
  }
  rows.stored_bytes = rows.items * static_cast<int64_t>(parts[0].element_size());
  rows.table = tier_table(parts, spread, address);
  return rows;
}

}  // namespace gnnscale
