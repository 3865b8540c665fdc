// One rank's share of a batch (cut_rules.h): its own nodes, the edges into them, and which rows it sends and receives.
#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

#include "../macros.h"
#include "../memory/checks.h"
#include "../memory/tensor.h"
#include "../pick.h"
#include "cut_rules.h"

namespace gnnscale {
namespace {

constexpr int64_t kFew = 256;     // numbered ids that are sorted by comparing
constexpr int kDigit = 11;        // bits by which a pass sorts, at most
constexpr int64_t kFarther = 16;  // how many edges ahead sources are prefetched

struct Numbered {
  int64_t id;
  int64_t number;
};

// Sorts by (id, number); the numbers ascend before. `spare`: room for as many.
void sort_by_id(PooledArray<Numbered>& entries, PooledArray<Numbered>& spare, int64_t count) {
  Numbered* from = entries.data();
  if (count <= kFew) {
    std::sort(from, from + count,
              [](const Numbered& a, const Numbered& b) { return a.id != b.id ? a.id < b.id : a.number < b.number; });
    return;
  }
  uint64_t all = 0;
  for (int64_t i = 0; i < count; ++i) all |= static_cast<uint64_t>(from[i].id);
  const int bits = std::max<int>(std::bit_width(all), 1), passes = (bits + kDigit - 1) / kDigit;
  const int digit = (bits + passes - 1) / passes;
  for (int pass = 0; pass < passes; ++pass, std::swap(entries, spare)) {
    const Numbered* const source = entries.data();
    Numbered* const target = spare.data();
    const auto bucket = [&](int64_t i) {
      return static_cast<uint64_t>(source[i].id) >> pass * digit & ((1u << digit) - 1);
    };
    int64_t next[1 << kDigit] = {};
    for (int64_t i = 0; i < count; ++i) ++next[bucket(i)];
    for (int64_t sum = 0, b = 0; b < int64_t{1} << digit; ++b) sum += std::exchange(next[b], sum);
    for (int64_t i = 0; i < count; ++i) target[next[bucket(i)]++] = source[i];
  }
}

// Where each block begins, if they lie one after another: the sums of the sizes of those before, and of all.
PooledArray<int64_t> begins_of(const int64_t* sizes, int64_t blocks) {
  PooledArray<int64_t> begins(blocks + 1);
  begins[0] = 0;
  for (int64_t b = 0; b < blocks; ++b) begins[b + 1] = begins[b] + sizes[b];
  return begins;
}

template <typename T>
PooledArray<T> zeros(int64_t count) {
  PooledArray<T> made(count);
  if (count > 0) std::memset(made.data(), 0, static_cast<size_t>(count) * sizeof(T));
  return made;
}

constexpr int64_t kMostParts = 1 << 16;  // as in ops/ranks.py

// Levels fit a byte: there are at most 64 hops.
template <typename Owner>
class Cutting {
 public:
  Cutting(const Tensor& node, const std::vector<int64_t>& num_nodes, const Tensor& colptr, const Tensor& row,
          const Tensor& owner, int64_t parts, int64_t part)
      : node_(static_cast<const int64_t*>(node.const_data_ptr())),
        colptr_(static_cast<const int64_t*>(colptr.const_data_ptr())),
        row_(static_cast<const int64_t*>(row.const_data_ptr())),
        owner_(static_cast<const Owner*>(owner.const_data_ptr())),
        num_nodes_(num_nodes),
        rules_{node.numel(), colptr.numel() - 1, row.numel(), static_cast<int64_t>(num_nodes.size()) - 1, parts, part} {
  }

  std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> run() {
    find_own();
    find_levels();
    order_own();
    order_halo();
    return write();
  }

 private:
  // The first value of a node's place: its number among own nodes, in the batch's order, or -1 - owner if another rank
  // owns it.
  int32_t place_of(int64_t owner) const { return static_cast<int32_t>(rules_.is_own(owner) ? num_own_ : -1 - owner); }
  static bool is_own(int64_t place) { return place >= 0; }
  static int64_t owner_of(int64_t place) { return -1 - place; }  // of a node of another rank

  void find_own() {
    place_.reserve(0, rules_.nodes);
    own_.reserve(0, rules_.nodes);
    counts_ = zeros<int64_t>(rules_.counts());
    for (int64_t g = 0, i = 0; g <= rules_.hops; ++g) {
      const int64_t before = num_own_;
      for (const int64_t end = i + num_nodes_[g]; i < end; ++i) {
        const auto rank = static_cast<int64_t>(owner_[i]);
        STD_TORCH_CHECK(rules_.is_rank(rank), "cut_batch: expected owners in [0, ", rules_.parts, "), found ", rank);
        place_[i] = place_of(rank);
        own_[num_own_] = static_cast<int32_t>(i);  // overwritten by the next node unless it is own
        num_own_ += rules_.is_own(rank);
      }
      counts_[g] = num_own_ - before;
    }
  }

  // The levels of remote sources of own nodes, and the levels of own nodes in other ranks' halos. Destinations come by
  // group, so the first level that is found is the least.
  void find_levels() {
    level_ = zeros<uint8_t>(rules_.nodes);
    given_ = zeros<uint8_t>(num_own_ * rules_.parts);
    halo_.reserve(0, rules_.nodes);
    int64_t* const num_edges = counts_.data() + rules_.first_edges();
    received_ = counts_.data() + rules_.first_received();
    sent_ = counts_.data() + rules_.first_sent();
    STD_TORCH_CHECK(colptr_[0] == 0, "the batch is malformed: colptr[0] is ", colptr_[0]);
    for (int64_t g = 0, dst = 0; g < rules_.hops; ++g) {
      const int64_t level = rules_.level_of(g);
      for (const int64_t end = dst + num_nodes_[g]; dst < end; ++dst) {
        const int64_t from = colptr_[dst], to = colptr_[dst + 1], mine = place_[dst];
        STD_TORCH_CHECK(rules_.is_column(from, to), "the batch is malformed: colptr[", dst + 1, "] is ", to);
        if (is_own(mine)) {
          num_edges[g] += to - from;
          for (int64_t e = from; e < to; ++e) {
            const int64_t src = source(e), place = place_[src];
            if (!rules_.crosses(is_own(place), true) || level_[src] != 0) continue;
            level_[src] = static_cast<uint8_t>(level);
            halo_[num_halo_++] = {node_[src], src};
            ++received_[rules_.block_of(owner_of(place), level)];
          }
        } else {
          const int64_t rank = owner_of(mine);
          for (int64_t e = from; e < to; ++e) {
            const int64_t number = place_[source(e)];
            if (!rules_.crosses(is_own(number), false) || given_[number * rules_.parts + rank] != 0) continue;
            given_[number * rules_.parts + rank] = static_cast<uint8_t>(level);
            ++sent_[rules_.block_of(rank, level)];
          }
        }
      }
    }
    for (int64_t g = 0; g < rules_.hops; ++g) num_own_edges_ += num_edges[g];
  }

  GNNSCALE_INLINE int64_t source(int64_t e) const {
    if (e + kFarther < rules_.edges) {
      const auto later = static_cast<uint64_t>(row_[e + kFarther]);
      if (later < static_cast<uint64_t>(rules_.nodes)) GNNSCALE_PREFETCH(place_.data() + later);
    }
    const int64_t src = row_[e];
    STD_TORCH_CHECK(rules_.is_node(src), "the batch is malformed: row[", e, "] is not in [0, ", rules_.nodes, ")");
    return src;
  }

  // The order of own nodes, and which of them are sent. `place_` of own nodes is final afterwards.
  void order_own() {
    PooledArray<Numbered> by_id(num_own_);
    spare_.reserve(0, std::max(num_own_, num_halo_));
    for (int64_t t = 0; t < num_own_; ++t) by_id[t] = {node_[own_[t]], t};
    sort_by_id(by_id, spare_, num_own_);
    local_.reserve(0, num_own_);
    // Own nodes are numbered by group, so the group of a number tells where it goes.
    const PooledArray<int64_t> begins = begins_of(counts_.data(), rules_.hops + 1);
    const PooledArray<int64_t> next = begins_of(counts_.data(), rules_.hops);
    PooledArray<int32_t> number(num_own_);  // the new number of each own node
    const int64_t unsorted = begins[CutRules::kUnsortedGroups];
    for (int64_t t = 0; t < unsorted; ++t) local_[t] = own_[t];
    for (int64_t t = 0; t < unsorted; ++t) number[t] = static_cast<int32_t>(t);
    for (int64_t i = 0; i < num_own_; ++i) {
      const int64_t t = by_id[i].number;
      if (t < unsorted) continue;
      int64_t g = CutRules::kUnsortedGroups;
      while (t >= begins[g + 1]) ++g;
      number[t] = static_cast<int32_t>(next[g]);
      local_[next[g]++] = own_[t];
    }
    const PooledArray<int64_t> at = begins_of(sent_, rules_.blocks());
    num_sent_ = at[rules_.blocks()];
    out_sent_.reserve(0, num_sent_);
    for (int64_t i = 0; i < num_own_ && rules_.parts > 1; ++i) {
      const int64_t t = by_id[i].number;
      for (int64_t rank = 0; rank < rules_.parts; ++rank) {
        const int64_t level = given_[t * rules_.parts + rank];
        if (level > 0) out_sent_[at[rules_.block_of(rank, level)]++] = number[t];
      }
    }
    for (int64_t t = 0; t < num_own_; ++t) place_[own_[t]] = number[t];
  }

  // The order of the halo; `place_` of its nodes becomes their place after the own nodes.
  void order_halo() {
    spare_.reserve(0, num_halo_);  // an odd number of passes over own nodes leaves their buffer here
    sort_by_id(halo_, spare_, num_halo_);
    const PooledArray<int64_t> at = begins_of(received_, rules_.blocks());
    out_halo_.reserve(0, num_halo_);
    for (int64_t i = 0; i < num_halo_; ++i) {
      const int64_t src = halo_[i].number;
      const int64_t j = at[rules_.block_of(owner_of(place_[src]), level_[src])]++;
      out_halo_[j] = src;
      place_[src] = static_cast<int32_t>(num_own_ + j);
    }
  }

  std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> write() {
    const int64_t columns = num_own_ - counts_[rules_.hops];
    PooledArray<int64_t> colptr(columns + 1), row(num_own_edges_), edge(num_own_edges_);
    const EdgeOutput<int32_t> output{row_, place_.data(), row.data(), edge.data()};
    int64_t out = 0;
    colptr[0] = 0;
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t dst = local_[j];
      for (int64_t e = colptr_[dst]; e < colptr_[dst + 1]; ++e, ++out) output.write(out, e);
      colptr[j + 1] = out;
    }
    const auto as = [](PooledArray<int64_t>& array, int64_t size) {
      return to_tensor(std::move(array), {size}, ScalarType::Long);
    };
    return {
        as(local_, num_own_),     as(colptr, columns + 1),     as(row, out), as(edge, out), as(out_halo_, num_halo_),
        as(out_sent_, num_sent_), as(counts_, rules_.counts())};
  }

  const int64_t *const node_, *const colptr_, *const row_;
  const Owner* const owner_;
  const std::vector<int64_t>& num_nodes_;
  const CutRules rules_;
  PooledArray<int32_t> place_, own_;    // by node: its place in the output; by own node: its number in the batch
  PooledArray<uint8_t> level_, given_;  // by node; by own node and rank: its level in that rank's halo; 0: none
  PooledArray<Numbered> halo_, spare_;
  PooledArray<int64_t> counts_;
  int64_t *received_ = nullptr, *sent_ = nullptr;
  int64_t num_own_ = 0, num_own_edges_ = 0, num_halo_ = 0, num_sent_ = 0;
  PooledArray<int64_t> local_, out_halo_, out_sent_;
};

// See torch_gnnscale.ops.cut_batch, which checks the arguments.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> cut_batch(const Tensor& node,
                                                                             const std::vector<int64_t>& num_nodes,
                                                                             const Tensor& colptr, const Tensor& row,
                                                                             const Tensor& owner, int64_t parts,
                                                                             int64_t part) {
  check_int64("node", node);
  check_int64("colptr", colptr);
  check_int64("row", row);
  check_contiguous_ids("owner", owner);
  STD_TORCH_CHECK(!num_nodes.empty() && num_nodes.size() <= kMaxHops + 1 && parts >= 1 && parts <= kMostParts &&
                      part >= 0 && part < parts,
                  "cut_batch: expected seeds and at most ", kMaxHops, " hops, and a part in [0, parts)");
  for (const int64_t count : num_nodes) {
    STD_TORCH_CHECK(count >= 0 && count <= node.numel(), "num_nodes: expected numbers of nodes, found ", count);
  }
  int64_t nodes = 0, columns = 0;
  for (const int64_t count : num_nodes) columns = std::exchange(nodes, nodes + count);
  STD_TORCH_CHECK(nodes == node.numel() && nodes == owner.numel() && columns + 1 == colptr.numel(),
                  "cut_batch: expected an owner for each of ", nodes, " nodes, and ", columns + 1, " column pointers");
  return dispatch_index(dtype_of(owner), [&](auto* tag) {
    return Cutting<std::remove_pointer_t<decltype(tag)>>(node, num_nodes, colptr, row, owner, parts, part).run();
  });
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("cut_batch", TORCH_BOX(&cut_batch)); }

}  // namespace
}  // namespace gnnscale
