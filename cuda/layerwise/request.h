// The arguments of a layer-wise batch: the stored edges, and the options.
#pragma once

#include <cstdint>
#include <vector>

#include "../sample/relation_cpu.h"
#include "schemes.h"
#include "scores.h"
#include "weights.h"

namespace gnnscale {

enum class Method : int64_t { kLadies, kFastGcn, kLabor };

struct LayerRequest {
  Relation graph;                  // its num_src nodes are both sources and destinations
  bool edge_id_wide;               // edge ids are int64, else int32
  const int64_t* score;            // [num_src], for FastGCN; else null
  std::vector<int64_t> num_nodes;  // of each hop
  uint64_t key;
  Method method;
  Scheme scheme;
  Scores scores;
  Aggregation aggregation;
  Weights weights;
  bool layers, keep_known, layer_dependency, include_dst;
};

}  // namespace gnnscale
