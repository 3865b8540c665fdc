// The order of the phases that draw candidates, over an executor (../executor.h).
#pragma once

#include <utility>
#include <vector>

#include "../executor.h"
#include "choosing_phases.h"

namespace gnnscale {

template <typename Executor>
class ChoosingDriver {
 public:
  // most: at least the number of candidates, which candidates.begin[candidates.batches] is.
  ChoosingDriver(Executor& executor, const Candidates& candidates, int64_t most)
      : executor_(executor),
        candidates_(candidates),
        most_(most),
        num_candidates_(candidates.begin + candidates.batches) {}

  // Writes candidates.correction.
  void run(Scheme scheme) {
    if (candidates_.count <= 0)
      return executor_.each(num_candidates_, most_, ChooseAll{candidates_, candidates_.count < 0 ? 1.0 : 0.0});
    STD_TORCH_CHECK(scheme != Scheme::kSequential, "expected a scheme that draws candidates by their scores");
    if (scheme == Scheme::kPriority) return by_priority();
    scheme == Scheme::kPoisson ? by_poisson() : by_numbers(scheme == Scheme::kReplace);
  }

 private:
  template <typename T>
  T* make(int64_t count) {
    constexpr ScalarType dtype = sizeof(T) == 4 ? ScalarType::Int : ScalarType::Long;
    const int64_t items = count * static_cast<int64_t>(std::max<size_t>(sizeof(T) / sizeof(int64_t), 1));
    memory_.push_back(executor_.room(std::max<int64_t>(items, 1), dtype));
    return static_cast<T*>(memory_.back().mutable_data_ptr());
  }

  int64_t* upload(const std::vector<int64_t>& values) {
    memory_.push_back(executor_.upload(values));
    return static_cast<int64_t*>(memory_.back().mutable_data_ptr());
  }

  void by_priority() {
    const int64_t batches = candidates_.batches, numbers = batches * kLevelSize;
    int64_t* const num_tied = upload({0});
    Priorities priorities{candidates_,
                          make<int32_t>(numbers),
                          make<int32_t>(numbers + 1),
                          make<uint32_t>(batches),
                          make<uint32_t>(batches),
                          make<int64_t>(batches),
                          make<int64_t>(batches),
                          make<Drawn>(batches),
                          reinterpret_cast<uint64_t*>(num_tied),
                          make<int32_t>(most_)};
    for (const bool is_lower : {false, true}) {
      executor_.each(numbers, Clear<int32_t>{priorities.tally});
      executor_.each(num_candidates_, most_, TallyRanks{priorities, is_lower});
      executor_.sum_before(priorities.tally, priorities.before, numbers);
      executor_.each(numbers, FindRank{priorities, is_lower});
    }
    executor_.each(num_candidates_, most_, ListTied{priorities});
    executor_.each(num_tied, most_, SettleTied{priorities});
    executor_.each(num_candidates_, most_, CorrectPriority{priorities});
  }

  void by_poisson() {
    const int64_t batches = candidates_.batches;
    uint64_t* const sums = make<uint64_t>(most_ + 1);
    executor_.sum_before(candidates_.score, sums, num_candidates_, most_);
    Poissons poissons{candidates_,
                      sums,
                      make<uint64_t>(batches),
                      make<uint64_t>(batches),
                      make<uint64_t>(batches),
                      make<uint64_t>(batches),
                      nullptr};
    executor_.each(batches, StartRounds{poissons});
    for (bool changed = true; changed;) {
      int64_t* const word = upload({0});
      poissons.changed = reinterpret_cast<uint64_t*>(word);
      executor_.each(num_candidates_, most_, CountCertain{poissons});
      executor_.each(batches, NextRound{poissons});
      changed = executor_.download(word, 1)[0] != 0;
    }
    executor_.each(num_candidates_, most_, CorrectPoisson{poissons});
  }

  void by_numbers(bool replace) {
    const int64_t all =
        executor_.download(num_candidates_, 1)[0];  // far fewer than `most_`, which sorts take longer for
    int64_t *keys = make<int64_t>(all + 1), *spare_keys = make<int64_t>(all + 1);
    int32_t *numbers = make<int32_t>(all), *spare_numbers = make<int32_t>(all);
    const int bits = candidates_.node_bits + bit_length(static_cast<uint64_t>(candidates_.batches - 1));
    executor_.each(all, WriteOrder{candidates_, keys, numbers});
    if (all > 0 && executor_.sort(keys, spare_keys, numbers, spare_numbers, all, bits)) {
      std::swap(keys, spare_keys);
      std::swap(numbers, spare_numbers);
    }
    // The keys are of no further use, nor are the spare arrays.
    uint64_t *const scores = reinterpret_cast<uint64_t*>(keys), *const sums = reinterpret_cast<uint64_t*>(spare_keys);
    uint64_t* const upper = replace ? nullptr : make<uint64_t>(SumTree::room(all, candidates_.batches));
    const NumberedDraws draws{candidates_, numbers, scores, upper, sums, reinterpret_cast<uint32_t*>(spare_numbers)};
    executor_.each(all, OrderScores{draws});
    executor_.sum_before(scores, sums, all);
    if (replace) {
      executor_.each(candidates_.batches * candidates_.count, DrawUnits{draws});
    } else {
      executor_.each(all, GrowTrees{draws});
      executor_.each_by_warp(candidates_.batches, DrawSuccessively{draws});
    }
    executor_.each(all, CorrectNumbered{draws, replace});
  }

  Executor& executor_;
  const Candidates candidates_;
  const int64_t most_;
  const int64_t* const num_candidates_;
  std::vector<Tensor> memory_;  // lives until the work that uses it is queued
};

}  // namespace gnnscale
