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
  // most: at least the number of candidates, which of.begin[of.batches] is.
  ChoosingDriver(Executor& executor, const Candidates& of, int64_t most)
      : on_(executor), of_(of), most_(most), candidates_(of.begin + of.batches) {}

  // Writes of.correction.
  void run(Scheme scheme) {
    if (of_.count <= 0) return on_.each(candidates_, most_, ChooseAll{of_, of_.count < 0 ? 1.0 : 0.0});
    STD_TORCH_CHECK(scheme != Scheme::kSequential, "expected a scheme that draws candidates by their scores");
    if (scheme == Scheme::kPriority) return by_priority();
    scheme == Scheme::kPoisson ? by_poisson() : by_numbers(scheme == Scheme::kReplace);
  }

 private:
  template <typename T>
  T* make(int64_t count) {
    constexpr ScalarType dtype = sizeof(T) == 4 ? ScalarType::Int : ScalarType::Long;
    const int64_t items = count * static_cast<int64_t>(std::max<size_t>(sizeof(T) / sizeof(int64_t), 1));
    memory_.push_back(on_.room(std::max<int64_t>(items, 1), dtype));
    return static_cast<T*>(memory_.back().mutable_data_ptr());
  }

  int64_t* upload(const std::vector<int64_t>& values) {
    memory_.push_back(on_.upload(values));
    return static_cast<int64_t*>(memory_.back().mutable_data_ptr());
  }

  void by_priority() {
    const int64_t batches = of_.batches, numbers = batches * kLevelSize;
    int64_t* const num_tied = upload({0});
    Priorities by{of_,
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
      on_.each(numbers, Clear<int32_t>{by.tally});
      on_.each(candidates_, most_, TallyRanks{by, is_lower});
      on_.sum_before(by.tally, by.before, numbers);
      on_.each(numbers, FindRank{by, is_lower});
    }
    on_.each(candidates_, most_, ListTied{by});
    on_.each(num_tied, most_, SettleTied{by});
    on_.each(candidates_, most_, CorrectPriority{by});
  }

  void by_poisson() {
    const int64_t batches = of_.batches;
    uint64_t* const sums = make<uint64_t>(most_ + 1);
    on_.sum_before(of_.score, sums, candidates_, most_);
    Poissons by{of_,
                sums,
                make<uint64_t>(batches),
                make<uint64_t>(batches),
                make<uint64_t>(batches),
                make<uint64_t>(batches),
                nullptr};
    on_.each(batches, StartRounds{by});
    for (bool changed = true; changed;) {
      int64_t* const word = upload({0});
      by.changed = reinterpret_cast<uint64_t*>(word);
      on_.each(candidates_, most_, CountCertain{by});
      on_.each(batches, NextRound{by});
      changed = on_.download(word, 1)[0] != 0;
    }
    on_.each(candidates_, most_, CorrectPoisson{by});
  }

  void by_numbers(bool replace) {
    int64_t *keys = make<int64_t>(most_ + 1), *spare_keys = make<int64_t>(most_ + 1);
    int32_t *numbers = make<int32_t>(most_), *spare_numbers = make<int32_t>(most_);
    on_.each(most_, WriteOrder{of_, keys, numbers});
    if (on_.sort(keys, spare_keys, numbers, spare_numbers, most_)) {
      std::swap(keys, spare_keys);
      std::swap(numbers, spare_numbers);
    }
    // The keys are of no further use, nor are the spare arrays.
    uint64_t *const scores = reinterpret_cast<uint64_t*>(keys), *const sums = reinterpret_cast<uint64_t*>(spare_keys);
    const NumberedDraws by{of_, numbers, scores, sums, reinterpret_cast<uint32_t*>(spare_numbers)};
    on_.each(candidates_, most_, OrderScores{by});
    on_.sum_before(scores, sums, candidates_, most_);
    if (replace) {
      on_.each(of_.batches * of_.count, DrawUnits{by});
    } else {
      on_.each(candidates_, most_, GrowTrees{by});
      on_.each(of_.batches, DrawSuccessively{by});
    }
    on_.each(candidates_, most_, CorrectNumbered{by, replace});
  }

  Executor& on_;
  const Candidates of_;
  const int64_t most_;
  const int64_t* const candidates_;
  std::vector<Tensor> memory_;  // lives until the work that uses it is queued
};

}  // namespace gnnscale
