// The operator sample_negatives on the CPU. Each link is drawn independently of the others.
#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "../memory/checks.h"
#include "../memory/tensor.h"
#include "negatives.h"

namespace gnnscale {
namespace {

constexpr int64_t kGrain = 1 << 11;
constexpr int64_t kNone = -1, kUndecided = -2;

struct Link {
  int64_t src, dst;
};

template <typename Id>
class Negatives {
 public:
  // `given`: the sources, [count], or null where they are drawn of `src`. `seed_time`: [count] or null.
  Negatives(const int64_t* given, EndCandidates src, EndCandidates dst, KnownEdges<Id> edges, const int64_t* seed_time,
            uint64_t key)
      : given_(given), src_(src), dst_(dst), edges_(edges), seed_time_(seed_time), key_(key) {}

  // The link of negative i; dst is kNone where none is valid, or kUndecided where only the table of all pairs can tell.
  Link draw(int64_t i) const {
    const auto [src_limit, dst_limit] = limits(i);
    if (dst_limit == 0 || (given_ == nullptr && src_limit == 0)) return {given_ == nullptr ? kNone : given_[i], kNone};
    for (uint32_t attempt = 0; attempt < kAttempts; ++attempt) {
      const Philox block = negative_block(key_, i, attempt);
      const int64_t src = given_ == nullptr ? src_.draw(philox_draw(block, 0), src_limit) : given_[i];
      const int64_t dst = dst_.draw(philox_draw(block, 1), dst_limit);
      if (!edges_.has(src, dst)) return {src, dst};
    }
    if (given_ == nullptr) return {kNone, kUndecided};
    const uint64_t units = free_units(dst_, dst_limit, edges_, given_[i]);
    if (units == 0) return {given_[i], kNone};
    const uint64_t unit = bounded(philox_draw(negative_block(key_, i, kAttempts), 1), units);
    return {given_[i], at_free_unit(dst_, edges_, given_[i], unit)};
  }

  // Calls put(i, link) for the negatives that draw() left undecided, in any order. A source has as many units as its
  // own weight times the units of the destinations to which it has no edge.
  template <typename Put>
  void decide(Vector<int64_t> undecided, Put&& put) const {
    std::sort(undecided.begin(), undecided.end(), [&](int64_t i, int64_t j) { return limits(i) < limits(j); });
    Vector<uint128> sums;  // over the first sources
    std::pair<int64_t, int64_t> of{-1, -1};
    for (const int64_t i : undecided) {
      const auto [src_limit, dst_limit] = limits(i);
      if (of != std::pair{src_limit, dst_limit}) {
        of = {src_limit, dst_limit};
        sums.reserve(static_cast<size_t>(src_limit) + 1);
        sums.assign(1, 0);
        for (int64_t at = 0; at < src_limit; ++at) {
          const uint128 weight = src_.units(at + 1) - src_.units(at);
          sums.push_back(sums.back() + weight * free_units(dst_, dst_limit, edges_, src_.id(at)));
        }
      }
      if (sums.back() == 0) {
        put(i, Link{kNone, kNone});
        continue;
      }
      const Philox block = negative_block(key_, i, kAttempts);
      const uint128 random = static_cast<uint128>(philox_draw(block, 1)) << 64 | philox_draw(block, 0);
      const uint128 unit = bounded128(random, sums.back());
      const int64_t at = std::upper_bound(sums.begin(), sums.end(), unit) - sums.begin() - 1;
      const int64_t src = src_.id(at);
      const uint64_t weight = src_.units(at + 1) - src_.units(at);
      put(i, Link{src, at_free_unit(dst_, edges_, src, static_cast<uint64_t>((unit - sums[at]) / weight))});
    }
  }

 private:
  std::pair<int64_t, int64_t> limits(int64_t i) const {
    const int64_t* time = seed_time_ == nullptr ? nullptr : seed_time_ + i;
    return {given_ == nullptr ? src_.limit(time) : 0, dst_.limit(time)};
  }

  const int64_t* given_;
  EndCandidates src_, dst_;
  KnownEdges<Id> edges_;
  const int64_t* seed_time_;
  uint64_t key_;
};

void check_candidates(int64_t count, const std::optional<Tensor>& node, const std::optional<Tensor>& weight,
                      const std::optional<Tensor>& time) {
  check_count("candidates", count);
  check_int64("candidates: node", node, count);
  check_int64("candidates: weight", weight, count);
  check_int64("candidates: time", time, count);
}

// See torch_gnnscale.ops.sample_negatives, which checks the arguments. Returns the links, and the number of the first
// that no link is valid for, or -1.
std::tuple<Tensor, int64_t> sample_negatives(
    int64_t count, const std::optional<Tensor>& src, int64_t num_src, const std::optional<Tensor>& src_node,
    const std::optional<Tensor>& src_weight, const std::optional<Tensor>& src_time, int64_t num_dst,
    const std::optional<Tensor>& dst_node, const std::optional<Tensor>& dst_position,
    const std::optional<Tensor>& dst_weight, const std::optional<Tensor>& dst_time,
    const std::optional<Tensor>& seed_time, const std::optional<Tensor>& edge_ptr,
    const std::optional<Tensor>& edge_dst, int64_t key, int64_t threads) {
  check_count("count", count);
  check_int64("src", src, count);
  check_candidates(num_src, src_node, src_weight, src_time);
  check_candidates(num_dst, dst_node, dst_weight, dst_time);
  check_int64("dst_position", dst_position);
  check_int64("seed_time", seed_time, count);
  STD_TORCH_CHECK(seed_time.has_value() || (!src_time.has_value() && !dst_time.has_value()),
                  "seed_time: expected times of the seeds, as candidates have times");
  check_int64("edge_ptr", edge_ptr);
  STD_TORCH_CHECK(edge_ptr.has_value() == edge_dst.has_value(), "edges: expected ptr and dst, or none");
  if (edge_dst.has_value()) check_contiguous_ids("edge_dst", *edge_dst);
  for (const auto* const given : {&src, &src_node, &src_weight, &src_time, &dst_node, &dst_position, &dst_weight,
                                  &dst_time, &seed_time, &edge_ptr, &edge_dst}) {
    STD_TORCH_CHECK(!given->has_value() || on_host(**given), "sample_negatives: expected tensors in host memory");
  }
  PooledArray<int64_t> out(2 * count);
  dispatch_index(edge_dst.has_value() ? dtype_of(*edge_dst) : ScalarType::Long, [&](auto* tag) {
    using Id = std::remove_pointer_t<decltype(tag)>;
    const KnownEdges<Id> edges{
        data_or_null(edge_ptr), edge_dst.has_value() ? static_cast<const Id*>(edge_dst->const_data_ptr()) : nullptr,
        edge_ptr.has_value() ? edge_ptr->numel() - 1 : 0, edge_dst.has_value() ? edge_dst->numel() : 0};
    const EndCandidates sources{
        num_src, 0, data_or_null(src_node), nullptr, data_or_null(src_weight), data_or_null(src_time)};
    const EndCandidates destinations{num_dst,
                                     dst_position.has_value() ? dst_position->numel() : 0,
                                     data_or_null(dst_node),
                                     data_or_null(dst_position),
                                     data_or_null(dst_weight),
                                     data_or_null(dst_time)};
    const Negatives<Id> negatives(data_or_null(src), sources, destinations, edges, data_or_null(seed_time),
                                  static_cast<uint64_t>(key));
    const auto put = [&](int64_t i, Link link) {
      out[i] = link.src;
      out[count + i] = link.dst;
    };
    const int64_t tasks = num_tasks(count, kGrain, threads);
    run_tasks(tasks, [&](int64_t task) {
      const auto [begin, end] = part(count, task, tasks);
      for (int64_t i = begin; i < end; ++i) put(i, negatives.draw(i));
    });
    Vector<int64_t> undecided;
    for (int64_t i = 0; i < count; ++i) {
      if (out[count + i] == kUndecided) undecided.push_back(i);
    }
    negatives.decide(std::move(undecided), put);
  });
  const int64_t* const dst = out.data() + count;
  const int64_t* const failed = std::find_if(dst, dst + count, [](int64_t id) { return id < 0; });
  const int64_t first = failed == dst + count ? -1 : failed - dst;
  return {to_tensor(std::move(out), {2, count}, ScalarType::Long), first};
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CompositeExplicitAutograd, library) {
  library.impl("sample_negatives", TORCH_BOX(&sample_negatives));
}

}  // namespace
}  // namespace gnnscale
