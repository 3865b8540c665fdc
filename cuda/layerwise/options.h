// The options of layer-wise sampling, from the arguments of its operators.
#pragma once

#include <cstdint>
#include <vector>

#include "../sample/options.h"
#include "schemes.h"
#include "scores.h"
#include "weights.h"

namespace gnnscale {

enum class Method : int64_t { kLadies, kFastGcn, kLabor };

struct LayerOptions {
  Method method;
  Scheme scheme;
  Scores scores;
  Aggregation aggregation;
  Weights weights;
  bool layers, keep_known, layer_dependency, include_dst;
};

// choices: the numbers of method, scheme, scores, aggregation and weights. name: the operator's.
inline LayerOptions layer_options(const char* name, const std::vector<int64_t>& choices, int64_t options) {
  STD_TORCH_CHECK(choices.size() == 5, name, ": expected 5 choices, found ", choices.size());
  constexpr int64_t most[] = {2, 4, 1, 2, 1};  // the last value of each enumeration
  for (size_t i = 0; i < choices.size(); ++i) {
    STD_TORCH_CHECK(choices[i] >= 0 && choices[i] <= most[i], name, ": choice ", i, ": expected a number in [0, ",
                    most[i], "], found ", choices[i]);
  }
  using Options = SampleOptions;
  const Options asked(name, options,
                      Options::kLayers | Options::kKeepKnown | Options::kLayerDependency | Options::kIncludeDst);
  return {static_cast<Method>(choices[0]),      static_cast<Scheme>(choices[1]),      static_cast<Scores>(choices[2]),
          static_cast<Aggregation>(choices[3]), static_cast<Weights>(choices[4]),     asked.has(Options::kLayers),
          asked.has(Options::kKeepKnown),       asked.has(Options::kLayerDependency), asked.has(Options::kIncludeDst)};
}

}  // namespace gnnscale
