// The operator sample_neighbors on the CPU (FastSample, section 3.2, algorithm 1): tensors to requests and back.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "expansion_cpu.h"
#include "held_graph.h"
#include "options.h"
#include "subgraph_cpu.h"

namespace gnnscale {
namespace {

using Tensors = std::vector<Tensor>;
using OptionalTensors = std::vector<std::optional<Tensor>>;
using Ints = std::vector<int64_t>;

// The size of outputs was a guess: a small batch must not keep the memory of a large one.
Tensor to_tensor(PooledArray<int64_t>&& array, const Ints& sizes) {
  int64_t used = 1;
  for (const int64_t size : sizes) used *= size;
  array.fit(used);
  return to_tensor(std::move(array), sizes, ScalarType::Long);
}

// Rows of equally many numbers.
template <typename Parts>
Tensor to_tensor(const Parts& parts, int64_t columns) {
  const int64_t rows = static_cast<int64_t>(parts.size());
  PooledArray<int64_t> array(rows * columns);
  for (int64_t r = 0; r < rows; ++r) std::copy_n(parts[r].per_hop.data(), columns, array.data() + r * columns);
  return to_tensor(std::move(array), {rows, columns});
}

// Column `column`, or the first one after it that has edges, or a later one before that; many without edges are passed
// over together.
inline int64_t skip_empty(const int64_t* colptr, int64_t column, int64_t columns) {
  for (const int64_t many : {32, 8, 2}) {
    while (column + many <= columns && colptr[column] == colptr[column + many]) column += many;
  }
  return column;
}

// Sources, and below them (with_col) the destination of each edge: the number of its column, within the hop where hops
// have columns of their own (layers).
Tensor edge_index(Edges& edges, bool layers, bool with_col) {
  if (with_col) {
    edges.row.reserve(edges.count, 2 * edges.count);
    int64_t* const col = edges.row.data() + edges.count;
    const int64_t* const colptr = edges.colptr.data();
    const bool mostly_empty = edges.count < edges.columns / 4;
    int64_t first = 0, hop = 0, end = layers ? 0 : edges.columns;
    for (int64_t column = 0; column < edges.columns; ++column) {
      if (mostly_empty) column = skip_empty(colptr, column, edges.columns);
      if (column == edges.columns) break;
      while (column >= end) {
        first = end;
        end += edges.columns_per_hop[hop++];
      }
      std::fill(col + colptr[column], col + colptr[column + 1], column - first);
    }
  }
  return to_tensor(std::move(edges.row), {with_col ? 2 : 1, edges.count});
}

// Whether the table serves better than the map: from so many nodes on, if the batch can only find a small part of them.
// GNNSCALE_RELABEL=table or =map in the environment decides instead.
constexpr double kTableFrom = 1e9;

Lookup lookup_of(const Request& request, const std::vector<Seeds>& seeds) {
  static const std::string forced = [] {
    const char* const value = std::getenv("GNNSCALE_RELABEL");
    return value == nullptr ? "" : value;
  }();
  double nodes = 0, most = 0;  // in the graph, and that can be found
  for (const int64_t size : request.sizes) nodes += static_cast<double>(size);
  for (const Seeds& of_type : seeds) most += static_cast<double>(of_type.count);
  for (int64_t hop = 0; hop < request.hops; ++hop) {
    double fanouts = 0;
    for (const Relation& relation : request.relations) {
      fanouts += relation.fanouts[hop] < 0 ? nodes : static_cast<double>(relation.fanouts[hop]);
    }
    most *= 1 + fanouts;
  }
  STD_TORCH_CHECK(forced.empty() || forced == "map" || forced == "table",
                  "GNNSCALE_RELABEL: expected map or table, found ", forced);
  if (request.disjoint) return Lookup::kTrees;
  if (forced == "map" || nodes > 4e9) return Lookup::kMap;
  return forced == "table" || (nodes >= kTableFrom && most <= nodes / 4) ? Lookup::kTable : Lookup::kMap;
}

void run(Batch& batch) {
  for (int64_t hop = 0; hop < batch.request.hops; ++hop) {
    batch.begin_hop();
    const std::vector<Relation>& relations = batch.request.relations;
    for (size_t r = 0; r < relations.size(); ++r) {
      if (r + 1 < relations.size()) batch.prefetch_columns(relations[r + 1]);
      Expansion(batch, relations[r], hop).run();
    }
    batch.end_hop();
  }
  if (batch.request.induced) {
    for (const Relation& relation : batch.request.relations) Induction(batch, relation).run();
  } else if (batch.request.bidirectional) {
    std::vector<Edges> both;
    for (const Relation& relation : batch.request.relations) both.push_back(with_reverse(batch, relation));
    batch.edges = std::move(both);
  }
  batch.remember();
}

// See torch_gnnscale.ops.sample_neighbors, which checks the arguments. `seed_time` and `exclude` may be empty. All
// tensors are returned in one list, because converting a list for Python takes time. Their order: nodes by type;
// edge_index, colptr and, if asked for, edge ids by relation; trees by type if they are disjoint; num_nodes; num_edges.
Tensors sample_neighbors(const Tensor& graph, int64_t relations, const Tensors& seeds, const OptionalTensors& seed_time,
                         const OptionalTensors& exclude, const Ints& fanouts, int64_t key, int64_t options,
                         int64_t threads) {
  const std::shared_ptr<const HeldGraph> holder = held_graph(graph);
  const HeldGraph& held = *holder;
  const size_t types = seeds.size();
  STD_TORCH_CHECK(types > 0 && held.sizes.size() == types && (seed_time.empty() || seed_time.size() == types),
                  "expected seeds and times of ", held.sizes.size(), " node types");
  STD_TORCH_CHECK(relations == static_cast<int64_t>(held.relations.size()) &&
                      (exclude.empty() || exclude.size() == held.relations.size()),
                  "expected ", held.relations.size(), " relations and exclusions, found ", relations, " and ",
                  exclude.size());
  STD_TORCH_CHECK(relations == 0 ? fanouts.empty() : fanouts.size() % relations == 0,
                  "expected fanouts of as many hops for each of ", relations, " relations, found ", fanouts.size());
  using Options = SampleOptions;
  const Options asked("sample_neighbors", options,
                      Options::kReplace | Options::kDisjoint | Options::kLast | Options::kLayers |
                          Options::kBidirectional | Options::kInduced | Options::kWithEdgeId | Options::kWithCol);
  const bool disjoint = asked.has(Options::kDisjoint), with_edge_id = asked.has(Options::kWithEdgeId);
  Request request{};
  request.incoming = held.incoming.data();
  request.sizes = held.sizes;
  request.hops = relations == 0 ? 0 : static_cast<int64_t>(fanouts.size()) / relations;
  request.key = static_cast<uint64_t>(key);
  request.replace = asked.has(Options::kReplace);
  request.disjoint = disjoint;
  request.last = asked.has(Options::kLast);
  request.layers = asked.has(Options::kLayers);
  request.with_edge_id = with_edge_id;
  request.with_col = asked.has(Options::kWithCol);
  request.bidirectional = asked.has(Options::kBidirectional);
  request.induced = asked.has(Options::kInduced);
  request.threads = threads;
  request.relations.reserve(held.relations.size());
  for (size_t r = 0; r < held.relations.size(); ++r) {
    const HeldRelation& of = held.relations[r];
    STD_TORCH_CHECK(of.colptr.numel() == held.sizes[of.dst] + 1, "relation ", r, " does not fit its node types");
    for (const auto* const of_edges : {&of.edge_id, &of.weight, &of.time}) {
      STD_TORCH_CHECK(!of_edges->has_value() || (*of_edges)->numel() == of.row.numel(), "relation ", r, " has ",
                      of.row.numel(), " edges and another number of their ids, weights or times");
    }
    // Addresses are read in each call: torch moves a tensor's memory when it shares the tensor with other processes.
    Relation relation = to_relation(of.colptr, of.row, of.edge_id, with_edge_id);
    relation.num_src = held.sizes[of.src];
    relation.weight = data_or_null(of.weight);
    relation.time = data_or_null(of.time);
    if (!exclude.empty() && exclude[r].has_value()) {
      relation.num_excluded = exclude[r]->size(1);
      relation.exclude_src = data_or_null(exclude[r]);
      relation.exclude_dst = relation.exclude_src + relation.num_excluded;
    }
    relation.number = static_cast<int>(r);
    relation.src = of.src;
    relation.dst = of.dst;
    relation.reverse = of.reverse;
    relation.fanouts = fanouts.data() + static_cast<int64_t>(r) * request.hops;
    STD_TORCH_CHECK(relation.time == nullptr || disjoint, "times need disjoint trees");
    request.relations.push_back(relation);
  }
  for (const IncomingRelations& incoming : held.incoming) {
    for (size_t i = 0; i < incoming.numbers.size(); ++i) {
      request.relations[incoming.numbers[i]].incoming = static_cast<int>(i);
    }
  }
  std::vector<Seeds> all_seeds;
  for (size_t t = 0; t < types; ++t) {
    const int64_t count = seeds[t].numel();
    all_seeds.push_back({seeds[t].const_data_ptr(), seeds[t].scalar_type() == ScalarType::Long, count});
    if (seed_time.empty() || !seed_time[t].has_value()) continue;
    STD_TORCH_CHECK(seed_time[t]->numel() == count, "expected a time for each of ", count, " seeds");
    const int64_t* const times = data_or_null(seed_time[t]);
    request.seed_time.insert(request.seed_time.end(), times, times + count);
  }
  for (const Relation& relation : request.relations) {
    int64_t trees = 0;
    for (const Seeds& entry : all_seeds) trees += entry.count;
    STD_TORCH_CHECK(relation.time == nullptr || static_cast<int64_t>(request.seed_time.size()) == trees,
                    "expected a time for each of ", trees, " seeds");
  }
  request.lookup = lookup_of(request, all_seeds);
  Batch batch(request, all_seeds);
  run(batch);

  Tensors out;
  out.reserve(2 + 2 * batch.nodes.size() + 3 * batch.edges.size());
  for (Nodes& nodes : batch.nodes) out.push_back(to_tensor(std::move(nodes.id), Ints{nodes.count}));
  for (Edges& edges : batch.edges) out.push_back(edge_index(edges, request.layers, request.with_col));
  for (Edges& edges : batch.edges) out.push_back(to_tensor(std::move(edges.colptr), Ints{edges.columns + 1}));
  if (with_edge_id) {
    for (Edges& edges : batch.edges) out.push_back(to_tensor(std::move(edges.id), Ints{edges.count}));
  }
  if (disjoint) {
    for (Nodes& nodes : batch.nodes) out.push_back(to_tensor(std::move(nodes.tree), Ints{nodes.count}));
  }
  out.push_back(to_tensor(batch.nodes, request.hops + 1));
  out.push_back(to_tensor(batch.edges, request.hops));
  return out;
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("sample_neighbors", TORCH_BOX(&sample_neighbors)); }

}  // namespace
}  // namespace gnnscale
