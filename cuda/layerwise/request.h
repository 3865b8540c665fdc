// What a layer-wise batch is made of: the stored edges, and the options.
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
  Relation graph;                  // num_src nodes, which are sources and destinations
  bool edge_id_wide;               // int64, else int32
  const int64_t* score;            // FastGCN's, of each node
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
