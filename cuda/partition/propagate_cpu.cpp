// Size-constrained label propagation (Meyerhenke, Sanders and Schulz, "Partitioning Complex Networks via
// Size-constrained Clustering", SEA 2014), in steps whose results do not depend on the order of work: the groups of a
// step choose labels by the state before it. If a label cannot take or lose all groups that wish it, they are granted
// their wishes in the order of a random priority, as far as the bounds allow.
#include <algorithm>
#include <atomic>

#include "../philox.h"
#include "neighborhood.h"
#include "tally.h"

namespace gnnscale {
namespace {

constexpr int64_t kGrain = 1 << 8;                              // groups that a thread claims at a time
constexpr int64_t kMostRounds = 1 << 16, kMostSteps = 1 << 12;  // as in ops/topology.py

// Id: holds numbers of groups and of nodes.
template <typename Id>
class Propagation {
 public:
  Propagation(const Neighborhood& neighborhood, int64_t num_nodes, const std::optional<Tensor>& group,
              const Tensor& label, const Tensor& weight, const std::vector<int64_t>& most,
              const std::vector<int64_t>& fewest, int64_t threads)
      : neighborhood_(neighborhood),
        groups_(group, label.numel()),
        of_(data_or_null(group)),
        weight_(static_cast<const int64_t*>(weight.const_data_ptr())),
        most_(most),
        fewest_(fewest),
        num_groups_(label.numel()),
        constraints_(static_cast<int64_t>(most.size())),
        threads_(threads),
        label_(num_groups_),
        of_node_(num_nodes),
        order_(num_groups_),
        choice_(num_groups_),
        priority_(num_groups_),
        step_(num_groups_),
        size_(num_groups_ * constraints_),
        incoming_(num_groups_ * constraints_),
        outgoing_(num_groups_ * constraints_) {
    const int64_t* const given = static_cast<const int64_t*>(label.const_data_ptr());
    std::fill_n(size_.data(), num_groups_ * constraints_, 0);
    std::fill_n(incoming_.data(), num_groups_ * constraints_, 0);
    std::fill_n(outgoing_.data(), num_groups_ * constraints_, 0);
    for (int64_t g = 0; g < num_groups_; ++g) {
      set(g, given[g]);
      add(size_.data(), given[g], g, 1);
    }
  }

  void run(int64_t rounds, int64_t steps, int64_t least, uint64_t key) {
    std::vector<int64_t> begin;
    for (int64_t round = 0; round < rounds; ++round) {
      draw(static_cast<uint32_t>(round), steps, key, begin);
      int64_t moved = 0;
      for (int64_t step = 0; step < steps; ++step) {
        const Id* const members = order_.data() + begin[static_cast<size_t>(step)];
        const int64_t count = begin[static_cast<size_t>(step) + 1] - begin[static_cast<size_t>(step)];
        choose(members, count);
        moved += move(members, count);
      }
      if (moved < least) return;
    }
  }

  int64_t label(int64_t group) const { return label_[group]; }

 private:
  // Gives every group a step and a priority: draws 0 and 1 of the block (group, round).
  void draw(uint32_t round, int64_t steps, uint64_t key, std::vector<int64_t>& begin) {
    const int64_t tasks = num_tasks(num_groups_, 1 << 13, threads_);
    run_tasks(tasks, [&](int64_t task) {
      const auto [from, to] = part(num_groups_, task, tasks);
      for (int64_t g = from; g < to; ++g) {
        const uint64_t number = static_cast<uint64_t>(g);
        const Philox block = philox(key, static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32), round, 0);
        step_[g] = static_cast<uint16_t>(bounded(philox_draw(block, 0), static_cast<uint64_t>(steps)));
        priority_[g] = block.word[2];
      }
    });
    begin.assign(static_cast<size_t>(steps) + 1, 0);
    for (int64_t g = 0; g < num_groups_; ++g) ++begin[step_[g] + 1u];
    for (size_t step = 0; step < static_cast<size_t>(steps); ++step) begin[step + 1] += begin[step];
    std::vector<int64_t> next(begin);
    for (int64_t g = 0; g < num_groups_; ++g) order_[next[step_[g]]++] = static_cast<Id>(g);
  }

  // choice_[i]: the label that members[i] would change to, or -1.
  void choose(const Id* members, int64_t count) {
    std::atomic<int64_t> unclaimed{0};
    run_tasks(num_tasks(count, kGrain, threads_), [&](int64_t) {
      Tally tally;
      for (int64_t from; (from = unclaimed.fetch_add(kGrain, std::memory_order_relaxed)) < count;) {
        for (int64_t i = from; i < std::min(from + kGrain, count); ++i) {
          choice_[i] = static_cast<Id>(chosen(members[i], tally));
          tally.clear();
        }
      }
    });
    neighborhood_.check();
  }

  int64_t chosen(int64_t group, Tally& tally) const {
    groups_.each(group, [&](int64_t node) {
      neighborhood_.visit(node, [&](int64_t neighbor) {
        if (of_ == nullptr ? neighbor != node : of_[neighbor] != group) tally.add(of_node_[neighbor]);
      });
    });
    const int64_t own = label_[group];
    int64_t best = -1, most = 0;
    for (const auto& entry : tally.entries()) {
      if (entry.value == own) most = entry.count;
    }
    for (const auto& entry : tally.entries()) {
      if (entry.value == own || entry.count < most || (entry.count == most && !precedes(entry.value, best))) continue;
      if (!fits(entry.value, group)) continue;
      best = entry.value;
      most = entry.count;
    }
    return best;
  }

  // Whether `label` is preferred to an equally frequent one. No label is preferred to a group's own, which is -1.
  bool precedes(int64_t label, int64_t other) const {
    if (other < 0) return false;
    return priority_[label] != priority_[other] ? priority_[label] < priority_[other] : label < other;
  }

  bool fits(int64_t label, int64_t group) const {
    for (int64_t c = 0; c < constraints_; ++c) {
      const int64_t added = weight_[group * constraints_ + c];
      if (added > 0 && size_[label * constraints_ + c] + added > most_[static_cast<size_t>(c)]) return false;
    }
    return true;
  }

  // Moves the members that may leave their labels and fit into those that they chose; returns how many.
  int64_t move(const Id* members, int64_t count) {
    const auto wishes = [&](int64_t sign) {
      for (int64_t i = 0; i < count; ++i) {
        if (choice_[i] < 0) continue;
        add(outgoing_.data(), label_[members[i]], members[i], sign);
        add(incoming_.data(), choice_[i], members[i], sign);
      }
    };
    wishes(1);
    moving_.clear();
    contested_.clear();
    for (int64_t i = 0; i < count; ++i) {
      if (choice_[i] < 0) continue;
      const bool granted = takes(choice_[i], nullptr) && releases(label_[members[i]], nullptr);
      (granted ? moving_ : contested_).push_back(static_cast<Id>(i));
    }
    wishes(-1);
    std::sort(contested_.begin(), contested_.end(), [&](Id a, Id b) {
      const Id g = members[a], h = members[b];
      return priority_[g] != priority_[h] ? priority_[g] < priority_[h] : g < h;
    });
    // If a label cannot grant all wishes, all of them are in contested_, so its sums now have only the wishes granted.
    const size_t uncontested = moving_.size();
    for (const Id at : contested_) {
      const int64_t group = members[at];
      const int64_t* const weight = weight_ + group * constraints_;
      if (!takes(choice_[at], weight) || !releases(label_[group], weight)) continue;
      add(incoming_.data(), choice_[at], group, 1);
      add(outgoing_.data(), label_[group], group, 1);
      moving_.push_back(at);
    }
    for (size_t i = uncontested; i < moving_.size(); ++i) {
      add(incoming_.data(), choice_[moving_[i]], members[moving_[i]], -1);
      add(outgoing_.data(), label_[members[moving_[i]]], members[moving_[i]], -1);
    }
    for (const Id at : moving_) {
      const int64_t group = members[at];
      add(size_.data(), label_[group], group, -1);
      add(size_.data(), choice_[at], group, 1);
      set(group, choice_[at]);
    }
    return static_cast<int64_t>(moving_.size());
  }

  // Whether a label has room for what comes in and for `weight`, if that is given.
  bool takes(int64_t label, const int64_t* weight) const {
    for (int64_t c = 0; c < constraints_; ++c) {
      const int64_t before = incoming_[label * constraints_ + c], added = weight == nullptr ? before : weight[c];
      const int64_t sum = size_[label * constraints_ + c] + before + (weight == nullptr ? 0 : added);
      if (added > 0 && sum > most_[static_cast<size_t>(c)]) return false;
    }
    return true;
  }

  // Whether a label keeps enough without what goes out and without `weight`, if that is given.
  bool releases(int64_t label, const int64_t* weight) const {
    for (int64_t c = 0; c < constraints_; ++c) {
      const int64_t before = outgoing_[label * constraints_ + c], lost = weight == nullptr ? before : weight[c];
      const int64_t rest = size_[label * constraints_ + c] - before - (weight == nullptr ? 0 : lost);
      if (lost > 0 && rest < fewest_[static_cast<size_t>(c)]) return false;
    }
    return true;
  }

  void add(int64_t* sums, int64_t label, int64_t group, int64_t sign) const {
    for (int64_t c = 0; c < constraints_; ++c) {
      sums[label * constraints_ + c] += sign * weight_[group * constraints_ + c];
    }
  }

  void set(int64_t group, int64_t label) {
    label_[group] = static_cast<Id>(label);
    groups_.each(group, [&](int64_t node) { of_node_[node] = static_cast<Id>(label); });
  }

  const Neighborhood& neighborhood_;
  const Groups groups_;
  const int64_t* const of_;      // the group of each node; null where every node is its own
  const int64_t* const weight_;  // [num_groups, constraints]
  const std::vector<int64_t> most_, fewest_;
  const int64_t num_groups_, constraints_, threads_;
  PooledArray<Id> label_, of_node_;  // the labels of each group, of each node
  PooledArray<Id> order_, choice_;   // the groups by step; what a step's groups choose
  PooledArray<uint32_t> priority_;
  PooledArray<uint16_t> step_;
  PooledArray<int64_t> size_, incoming_, outgoing_;  // [labels, constraints]; the last two are 0 between steps
  std::vector<Id> moving_, contested_;               // positions in a step
};

// See torch_gnnscale.ops.propagate_labels, which checks the arguments.
Tensor propagate_labels(const std::vector<Tensor>& colptr, const std::vector<Tensor>& row,
                        const std::vector<int64_t>& ranges, int64_t num_nodes, const std::optional<Tensor>& group,
                        const Tensor& label, const Tensor& weight, const std::vector<int64_t>& most,
                        const std::vector<int64_t>& fewest, int64_t rounds, int64_t steps, int64_t least, int64_t key,
                        int64_t threads) {
  const int64_t count = label.numel();
  check_count("num_nodes", num_nodes);
  check_int64("group", group, num_nodes);
  check_int64("label", label, group.has_value() ? -1 : num_nodes);
  check_below("label", label, count);
  check_matrix("weight", weight, ScalarType::Long, count, static_cast<int64_t>(most.size()));
  STD_TORCH_CHECK(fewest.size() == most.size(), "fewest: expected one for each of ", most.size(), " constraints");
  STD_TORCH_CHECK(rounds >= 0 && rounds <= kMostRounds, "rounds: expected 0 to ", kMostRounds, ", found ", rounds);
  STD_TORCH_CHECK(steps >= 1 && steps <= kMostSteps, "steps: expected 1 to ", kMostSteps, ", found ", steps);
  const Neighborhood neighborhood(colptr, row, ranges, num_nodes);
  PooledArray<int64_t> out(count);
  dispatch_index(std::max(num_nodes, count) <= int64_t{1} << 31 ? ScalarType::Int : ScalarType::Long, [&](auto* tag) {
    Propagation<std::remove_pointer_t<decltype(tag)>> propagation(neighborhood, num_nodes, group, label, weight, most,
                                                                  fewest, threads);
    propagation.run(rounds, steps, least, static_cast<uint64_t>(key));
    for (int64_t g = 0; g < count; ++g) out[g] = propagation.label(g);
  });
  return to_tensor(std::move(out), {count}, ScalarType::Long);
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("propagate_labels", TORCH_BOX(&propagate_labels)); }

}  // namespace
}  // namespace gnnscale
