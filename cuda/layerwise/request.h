// The arguments of a layer-wise batch: the stored edges, and the options.
#pragma once

#include <cstdint>
#include <vector>

#include "../sample/relation_cpu.h"
#include "options.h"

namespace gnnscale {

struct LayerRequest : LayerOptions {
  Relation graph;                  // its num_src nodes are both sources and destinations
  bool edge_id_wide;               // edge ids are int64, else int32
  const int64_t* score;            // [num_src], for FastGCN; else null
  std::vector<int64_t> num_nodes;  // of each hop
  uint64_t key;
};

}  // namespace gnnscale
