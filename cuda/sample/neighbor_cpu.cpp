// The operator sample_neighbors on the CPU (FastSample, section 3.2, algorithm 1): tensors to requests and back.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "../memory/checks.h"
#include "../memory/shared_tensors.h"
#include "dealing_cpu.h"
#include "held_graph.h"
#include "options.h"
#include "tree_blocks_cpu.h"

namespace gnnscale {
namespace {

using Tensors = std::vector<Tensor>;
using OptionalTensors = std::vector<std::optional<Tensor>>;
using Ints = std::vector<int64_t>;

Tensor to_tensor(PooledArray<int64_t>&& array, const Ints& sizes) {
  return to_tensor(std::move(array), sizes, ScalarType::Long);
}

// Whether the table serves better than the map: from so many nodes on, if the batch can only find a small part of them.
// GNNSCALE_RELABEL=table or =map in the environment decides instead.
constexpr double kTableFrom = 1e9;

// Trees are worked on one after another where that takes less time than entering a tree's nodes anew for each hop: if
// hops draw one relation, and so many neighbors.
constexpr int64_t kLeastFanout = 4;

Lookup lookup_of_trees(const Request& request) {
  const auto is_small = [](int64_t fanout) { return fanout >= 0 && fanout < kLeastFanout; };
  if (request.relations.size() != 1 || request.sizes.size() != 1) return Lookup::kTrees;
  const int64_t* const fanouts = request.relations[0].fanouts;
  return std::any_of(fanouts, fanouts + request.hops, is_small) ? Lookup::kTrees : Lookup::kOneTree;
}

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
  if (request.disjoint) return lookup_of_trees(request);
  if (forced == "map" || nodes > 4e9) return Lookup::kMap;
  return forced == "table" || (nodes >= kTableFrom && most <= nodes / 4) ? Lookup::kTable : Lookup::kMap;
}

// Relations of a held graph, without exclusions. fanouts: of each hop, relation by relation. trees: whether trees are
// disjoint, so that it is of use to know whether a relation's sources differ.
std::vector<Relation> relations_of(const HeldGraph& held, const int64_t* fanouts, int64_t hops, bool with_edge_id,
                                   bool trees) {
  std::vector<Relation> relations;
  relations.reserve(held.relations.size());
  for (size_t r = 0; r < held.relations.size(); ++r) {
    const HeldRelation& of = held.relations[r];
    // Checked again, because tensors can be resized: a bound of what is read.
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
    relation.number = static_cast<int>(r);
    relation.src = of.src;
    relation.dst = of.dst;
    relation.reverse = of.reverse;
    relation.fanouts = fanouts + static_cast<int64_t>(r) * hops;
    relation.sources_differ = trees && of.sources_differ(relation.num_src);
    relation.one_each = of.one_each();
    relations.push_back(relation);
  }
  for (const IncomingRelations& incoming : held.incoming) {
    for (size_t i = 0; i < incoming.numbers.size(); ++i) {
      relations[incoming.numbers[i]].incoming = static_cast<int>(i);
    }
  }
  return relations;
}

// Appends the times of `count` seeds.
void append_times(const char* name, const Tensor& time, int64_t count, Vector<int64_t>& out) {
  check_int64(name, time, count);
  const int64_t* const times = static_cast<const int64_t*>(time.const_data_ptr());
  out.insert(out.end(), times, times + count);
}

// The seeds of a batch, and their times, which go to the request. `limits`: of the batch; null: none.
std::vector<Seeds> seeds_of(Request& request, const Tensor* seeds, const std::optional<Tensor>* limits) {
  const size_t types = request.sizes.size();
  std::vector<Seeds> found;
  int64_t trees = 0;
  for (size_t type = 0; type < types; ++type) {
    const int64_t count = seeds[type].numel();
    check_contiguous_ids("seeds", seeds[type]);
    found.push_back({seeds[type].const_data_ptr(), dtype_of(seeds[type]) == ScalarType::Long, count});
    trees += count;
    if (limits == nullptr) continue;
    const std::optional<Tensor>&time = limits[type], &start_time = limits[types + type];
    const bool starts = count > 0 && start_time.has_value();
    STD_TORCH_CHECK(time.has_value() || !starts, "seed_start_time: expected seed_time for the same seeds, found none");
    if (time.has_value()) append_times("seed_time", *time, count, request.seed_time);
    if (!starts) continue;
    request.seed_start_time.resize(request.seed_time.size() - static_cast<size_t>(count), INT64_MIN);
    append_times("seed_start_time", *start_time, count, request.seed_start_time);
  }
  if (!request.seed_start_time.empty()) request.seed_start_time.resize(request.seed_time.size(), INT64_MIN);
  const bool timed =
      !request.seed_time.empty() || std::any_of(request.relations.begin(), request.relations.end(),
                                                [](const Relation& relation) { return relation.time != nullptr; });
  // They are read by tree, also where a relation has no times.
  STD_TORCH_CHECK(!timed || static_cast<int64_t>(request.seed_time.size()) == trees, "expected a time for each of ",
                  trees, " seeds");
  STD_TORCH_CHECK(!timed || request.disjoint, "times need disjoint trees");
  return found;
}

// The pairs of nodes whose edges each relation leaves out, in the order of the relations.
void exclude(Request& request, const std::optional<Tensor>* pairs) {
  for (Relation& relation : request.relations) {
    const std::optional<Tensor>& excluded = *pairs++;
    if (!excluded.has_value()) continue;
    check_matrix("exclude", *excluded, ScalarType::Long, 2);
    relation.num_excluded = excluded->size(1);
    relation.exclude_src = data_or_null(excluded);
    relation.exclude_dst = relation.exclude_src + relation.num_excluded;
  }
}

// Appends the tensors of a batch.
void append_tensors(const Request& request, Outcome& found, Tensors& out) {
  SharedTensors tensors(2 * found.nodes.size() + 3 * found.edges.size());
  for (Nodes& nodes : found.nodes) tensors.add(std::move(nodes.id), nodes.count);
  for (DrawnEdges& edges : found.edges) tensors.add(std::move(edges.row), edges.count, request.with_col ? 2 : 1);
  for (DrawnEdges& edges : found.edges) tensors.add(std::move(edges.colptr), edges.columns + 1);
  if (request.with_edge_id) {
    for (DrawnEdges& edges : found.edges) tensors.add(std::move(edges.id), edges.count);
  }
  if (request.disjoint) {
    for (Nodes& nodes : found.nodes) tensors.add(std::move(nodes.tree), nodes.count);
  }
  tensors.append_to(out);
}

// For each batch, the counts of its hops: of nodes by type, then of edges by relation.
Tensor counts_of(const std::vector<Outcome>& found, int64_t types, int64_t relations, int64_t hops) {
  const int64_t batches = static_cast<int64_t>(found.size()), each = types * (hops + 1) + relations * hops;
  PooledArray<int64_t> array(batches * each);
  int64_t* at = array.data();
  for (const Outcome& batch : found) {
    for (const Nodes& nodes : batch.nodes) at = std::copy_n(nodes.per_hop.data(), hops + 1, at);
    for (const DrawnEdges& edges : batch.edges) at = std::copy_n(edges.per_hop.data(), hops, at);
  }
  return to_tensor(std::move(array), {batches, each});
}

// See torch_gnnscale.ops.sample_neighbors, which checks the arguments. fanouts: int64, [relations, hops]; a list would
// be converted number by number in each call. A batch for each key: `seeds` and `limits` are those of the first batch,
// then those of the second, and so on. The limits of a batch: seeds' times by type, then the starts of their windows by
// type, then excluded pairs by relation; no limits at all if no batch has any. One batch is sampled by all threads,
// several are dealt to them. All tensors are given and returned in one list, because converting a list from and for
// Python takes time. Their order, batch after batch: nodes by type; edge_index, colptr and, if asked for, edge ids by
// relation; trees by type if they are disjoint. Then, of all batches, the counts of their hops.
Tensors sample_neighbors(const Tensor& graph, const Tensor& fanouts, const Tensors& seeds,
                         const OptionalTensors& limits, const Ints& keys, int64_t options, int64_t threads) {
  const std::shared_ptr<const HeldGraph> holder = held_graph(graph);
  const HeldGraph& held = *holder;
  const size_t types = held.sizes.size(), batches = keys.size();
  STD_TORCH_CHECK(types > 0 && seeds.size() == types * batches, "expected seeds of ", types, " node types for ",
                  batches, " keys");
  const size_t relations = held.relations.size(), limits_each = 2 * types + relations;
  STD_TORCH_CHECK(limits.empty() || limits.size() == limits_each * batches, "expected limits of ", types,
                  " node types and ", relations, " relations for ", batches, " keys, found ", limits.size());
  STD_TORCH_CHECK(dtype_of(fanouts) == ScalarType::Long && fanouts.dim() == 2 &&
                      fanouts.size(0) == static_cast<int64_t>(relations) && fanouts.is_contiguous() &&
                      fanouts.size(1) <= kMaxHops,
                  "expected fanouts of each of ", relations, " relations, for at most ", kMaxHops, " hops");
  const int64_t* const fanout = static_cast<const int64_t*>(fanouts.const_data_ptr());
  for (int64_t i = 0; i < fanouts.numel(); ++i) {
    STD_TORCH_CHECK(fanout[i] >= -1 && fanout[i] <= kMostFanout, "fanouts: expected -1 to ", kMostFanout, ", found ",
                    fanout[i]);
  }
  using Options = SampleOptions;
  const Options asked("sample_neighbors", options,
                      Options::kReplace | Options::kDisjoint | Options::kLast | Options::kLayers |
                          Options::kBidirectional | Options::kInduced | Options::kWithEdgeId | Options::kWithCol);
  Request common{};
  common.incoming = held.incoming.data();
  common.sizes = held.sizes;
  common.hops = fanouts.size(1);
  common.replace = asked.has(Options::kReplace);
  common.disjoint = asked.has(Options::kDisjoint);
  common.last = asked.has(Options::kLast);
  common.layers = asked.has(Options::kLayers);
  common.with_edge_id = asked.has(Options::kWithEdgeId);
  common.with_col = asked.has(Options::kWithCol);
  common.bidirectional = asked.has(Options::kBidirectional);
  common.induced = asked.has(Options::kInduced);
  common.threads = batches == 1 ? threads : 1;
  common.relations = relations_of(held, static_cast<const int64_t*>(fanouts.const_data_ptr()), common.hops,
                                  common.with_edge_id, common.disjoint && !common.replace);

  std::vector<Request> requests(batches);
  std::vector<std::vector<Seeds>> seeds_by_batch;
  for (size_t b = 0; b < batches; ++b) {
    Request& request = requests[b];
    request = b + 1 < batches ? common : std::move(common);
    request.key = static_cast<uint64_t>(keys[b]);
    const std::optional<Tensor>* const of_batch = limits.empty() ? nullptr : limits.data() + b * limits_each;
    if (of_batch != nullptr) exclude(request, of_batch + 2 * types);
    seeds_by_batch.push_back(seeds_of(request, seeds.data() + b * types, of_batch));
    request.lookup = lookup_of(request, seeds_by_batch.back());
  }
  std::vector<Outcome> found(batches);
  deal_batches(static_cast<int64_t>(batches), threads,
               [&](int64_t b) { found[b] = sample_batch(requests[b], seeds_by_batch[b]); });

  Tensors out;
  out.reserve(batches * (2 * types + 3 * relations) + 1);
  for (size_t b = 0; b < batches; ++b) append_tensors(requests[b], found[b], out);
  out.push_back(counts_of(found, static_cast<int64_t>(types), static_cast<int64_t>(relations), common.hops));
  return out;
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("sample_neighbors", TORCH_BOX(&sample_neighbors)); }

}  // namespace
}  // namespace gnnscale
