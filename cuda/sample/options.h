// The options of the sampling operators, bits of one integer, numbered as in torch_gnnscale/ops/graph_arguments.py.
#pragma once

#include <torch/csrc/stable/library.h>

#include <cstdint>

namespace gnnscale {

constexpr int64_t kMostFanout = int64_t{1} << 17;  // as in ops/graph_arguments.py

class SampleOptions {
 public:
  enum Option : int64_t {
    kReplace = 1 << 0,
    kDisjoint = 1 << 1,
    kLast = 1 << 2,
    kLayers = 1 << 3,
    kBidirectional = 1 << 4,
    kInduced = 1 << 5,
    kWithEdgeId = 1 << 6,
    kWithCol = 1 << 7,
    kKeepKnown = 1 << 8,  // this and those below: of sample_layers
    kLayerDependency = 1 << 9,
    kIncludeDst = 1 << 10,
  };

  // known: the options that the operator `name` has.
  SampleOptions(const char* name, int64_t bits, int64_t known) : bits_(bits) {
    STD_TORCH_CHECK((bits & ~known) == 0, name, ": expected options among ", known, ", found ", bits);
  }

  bool has(Option option) const { return (bits_ & option) != 0; }

 private:
  int64_t bits_;
};

}  // namespace gnnscale
