// One rank's share of a batch: its own nodes, the edges into them, and which rows it sends and receives.
#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

#include "../macros.h"
#include "../memory/checks.h"
#include "../memory/tensor.h"
#include "../pick.h"

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
        hops_(static_cast<int64_t>(num_nodes.size()) - 1),
        count_(node.numel()),
        num_edges_(row.numel()),
        parts_(parts),
        part_(part),
        blocks_(parts * hops_) {}

  std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> run() {
    find_own();
    find_levels();
    order_own();
    order_halo();
    return write();
  }

 private:
  // place_: own nodes are numbered in the batch's order; other nodes get -1 - owner.
  void find_own() {
    place_.reserve(0, count_);
    own_.reserve(0, count_);
    counts_ = zeros<int64_t>(2 * hops_ + 1 + 2 * blocks_);
    for (int64_t g = 0, i = 0; g <= hops_; ++g) {
      const int64_t before = num_own_;
      for (const int64_t end = i + num_nodes_[g]; i < end; ++i) {
        const auto rank = static_cast<int64_t>(owner_[i]);
        STD_TORCH_CHECK(rank >= 0 && rank < parts_, "cut_batch: expected owners in [0, ", parts_, "), found ", rank);
        place_[i] = static_cast<int32_t>(rank == part_ ? num_own_ : -1 - rank);
        own_[num_own_] = static_cast<int32_t>(i);  // overwritten by the next node unless it is own
        num_own_ += rank == part_;
      }
      counts_[g] = num_own_ - before;
    }
  }

  // The levels of remote sources of own nodes, and the levels of own nodes in other ranks' halos. Destinations come by
  // group, so the first level that is found is the least.
  void find_levels() {
    level_ = zeros<uint8_t>(count_);
    given_ = zeros<uint8_t>(num_own_ * parts_);
    halo_.reserve(0, count_);
    int64_t* const num_edges = counts_.data() + hops_ + 1;
    received_ = num_edges + hops_;
    sent_ = received_ + blocks_;
    STD_TORCH_CHECK(colptr_[0] == 0, "the batch is malformed: colptr[0] is ", colptr_[0]);
    for (int64_t g = 0, dst = 0; g < hops_; ++g) {
      const auto level = static_cast<uint8_t>(g + 1);
      for (const int64_t end = dst + num_nodes_[g]; dst < end; ++dst) {
        const int64_t from = colptr_[dst], to = colptr_[dst + 1], mine = place_[dst];
        STD_TORCH_CHECK(from <= to && to <= num_edges_, "the batch is malformed: colptr[", dst + 1, "] is ", to);
        if (mine >= 0) {
          num_edges[g] += to - from;
          for (int64_t e = from; e < to; ++e) {
            const int64_t src = source(e), rank = -1 - place_[src];
            if (rank < 0 || level_[src] != 0) continue;
            level_[src] = level;
            halo_[num_halo_++] = {node_[src], src};
            ++received_[rank * hops_ + g];
          }
        } else {
          const int64_t rank = -1 - mine;
          for (int64_t e = from; e < to; ++e) {
            const int64_t number = place_[source(e)];
            if (number < 0 || given_[number * parts_ + rank] != 0) continue;
            given_[number * parts_ + rank] = level;
            ++sent_[rank * hops_ + g];
          }
        }
      }
    }
    num_own_edges_ = 0;
    for (int64_t g = 0; g < hops_; ++g) num_own_edges_ += num_edges[g];
  }

  GNNSCALE_INLINE int64_t source(int64_t e) const {
    if (e + kFarther < num_edges_) {
      const auto later = static_cast<uint64_t>(row_[e + kFarther]);
      if (later < static_cast<uint64_t>(count_)) GNNSCALE_PREFETCH(place_.data() + later);
    }
    const int64_t src = row_[e];
    STD_TORCH_CHECK(src >= 0 && src < count_, "the batch is malformed: row[", e, "] is not in [0, ", count_, ")");
    return src;
  }

  // The order of own nodes, and which of them are sent. `place_` of own nodes is final afterwards.
  void order_own() {
    PooledArray<Numbered> by_id(num_own_);
    spare_.reserve(0, std::max(num_own_, num_halo_));
    for (int64_t t = 0; t < num_own_; ++t) by_id[t] = {node_[own_[t]], t};
    sort_by_id(by_id, spare_, num_own_);
    const int64_t seeds = counts_[0];
    local_.reserve(0, num_own_);
    for (int64_t t = 0; t < seeds; ++t) local_[t] = own_[t];
    // Own nodes are numbered by group, so the group of a number tells where it goes.
    const PooledArray<int64_t> begins = begins_of(counts_.data(), hops_ + 1), next = begins_of(counts_.data(), hops_);
    PooledArray<int32_t> number(num_own_);  // the new number of each own node
    for (int64_t t = 0; t < seeds; ++t) number[t] = static_cast<int32_t>(t);
    for (int64_t i = 0; i < num_own_; ++i) {
      const int64_t t = by_id[i].number;
      if (t < seeds) continue;
      int64_t g = 1;
      while (t >= begins[g + 1]) ++g;
      number[t] = static_cast<int32_t>(next[g]);
      local_[next[g]++] = own_[t];
    }
    const PooledArray<int64_t> at = begins_of(sent_, blocks_);
    num_sent_ = at[blocks_];
    out_sent_.reserve(0, num_sent_);
    for (int64_t i = 0; i < num_own_ && parts_ > 1; ++i) {
      const int64_t t = by_id[i].number;
      for (int64_t rank = 0; rank < parts_; ++rank) {
        const int64_t level = given_[t * parts_ + rank];
        if (level > 0) out_sent_[at[rank * hops_ + level - 1]++] = number[t];
      }
    }
    for (int64_t t = 0; t < num_own_; ++t) place_[own_[t]] = number[t];
  }

  // The order of the halo; `place_` of its nodes becomes their place after the own nodes.
  void order_halo() {
    spare_.reserve(0, num_halo_);  // an odd number of passes over own nodes leaves their buffer here
    sort_by_id(halo_, spare_, num_halo_);
    const PooledArray<int64_t> at = begins_of(received_, blocks_);
    out_halo_.reserve(0, num_halo_);
    for (int64_t i = 0; i < num_halo_; ++i) {
      const int64_t src = halo_[i].number, rank = -1 - place_[src];
      const int64_t j = at[rank * hops_ + level_[src] - 1]++;
      out_halo_[j] = src;
      place_[src] = static_cast<int32_t>(num_own_ + j);
    }
  }

  std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> write() {
    const int64_t columns = num_own_ - counts_[hops_];
    PooledArray<int64_t> colptr(columns + 1), row(num_own_edges_), edge(num_own_edges_);
    int64_t out = 0;
    colptr[0] = 0;
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t dst = local_[j];
      for (int64_t e = colptr_[dst]; e < colptr_[dst + 1]; ++e, ++out) {
        row[out] = place_[row_[e]];
        edge[out] = e;
      }
      colptr[j + 1] = out;
    }
    const auto as = [](PooledArray<int64_t>& array, int64_t size) {
      return to_tensor(std::move(array), {size}, ScalarType::Long);
    };
    return {as(local_, num_own_),
            as(colptr, columns + 1),
            as(row, out),
            as(edge, out),
            as(out_halo_, num_halo_),
            as(out_sent_, num_sent_),
            as(counts_, 2 * hops_ + 1 + 2 * blocks_)};
  }

  const int64_t *const node_, *const colptr_, *const row_;
  const Owner* const owner_;
  const std::vector<int64_t>& num_nodes_;
  const int64_t hops_, count_, num_edges_, parts_, part_, blocks_;  // a block: the nodes of one rank and level
  PooledArray<int32_t> place_, own_;    // by node: its place in the output; by own node: its number in the batch
  PooledArray<uint8_t> level_, given_;  // by node; by own node and rank: its level in that rank's halo; 0: none
  PooledArray<Numbered> halo_, spare_;
  PooledArray<int64_t> counts_;  // num_nodes, num_edges, num_received, num_sent
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
