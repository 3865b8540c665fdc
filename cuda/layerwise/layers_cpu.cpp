// The operator sample_layers on the CPU: tensors to a LayerRequest, and results to tensors.
#include <optional>
#include <tuple>

#include "../memory/checks.h"
#include "../memory/tensor.h"
#include "../sample/dealing_cpu.h"
#include "../sample/held_graph.h"
#include "hops_cpu.h"
#include "labor_cpu.h"

namespace gnnscale {
namespace {

using Ints = std::vector<int64_t>;

// Writes below the sources the destination of each edge, in the hop's local ids. first_node: `expanded` below.
void write_destinations(LayerBatch& batch, const Ints& first_node) {
  batch.row.reserve(batch.edges, 2 * batch.edges);
  int64_t* const col = batch.row.data() + batch.edges;
  int64_t column = 0;
  for (size_t hop = 0; hop + 1 < first_node.size(); hop += 2) {
    for (int64_t local = first_node[hop]; local < first_node[hop + 1]; ++local, ++column) {
      std::fill(col + batch.colptr[column], col + batch.colptr[column + 1], local);
    }
  }
}

// What a batch returns: arrays, which the calling thread makes tensors of. edge_index: [2, edges].
struct LayerOutcome {
  PooledArray<int64_t> node, edge_index, colptr, edge_id;
  PooledArray<float> weight;
  int64_t nodes = 0, edges = 0, columns = 0;
  std::vector<int64_t> nodes_per_hop, edges_per_hop;
};

template <typename Id, int64_t kStride>
void run_stored(LayerBatch& batch, int hop) {
  if (batch.request.method == Method::kLabor) {
    LaborHop<Id, kStride>(batch, hop).run();
  } else {
    LayerHop<Id, kStride>(batch, hop).run();
  }
}

template <typename Id>
void run_hop(LayerBatch& batch, int hop) {
  const int64_t stride = batch.request.graph.row_stride;
  if (stride == sizeof(Id)) {
    run_stored<Id, sizeof(Id)>(batch, hop);
  } else if (stride == 2 * sizeof(Id)) {  // (source, edge id) pairs
    run_stored<Id, 2 * sizeof(Id)>(batch, hop);
  } else {
    run_stored<Id, 0>(batch, hop);
  }
}

LayerOutcome sample_batch(const LayerRequest& request, ScalarType ids, const int64_t* seeds, int64_t num_seeds) {
  LayerBatch batch(request, seeds, num_seeds);
  Ints expanded;  // for each hop: the local id of its first column, and the local id after its last column
  for (size_t hop = 0; hop < request.num_nodes.size(); ++hop) {
    const int64_t block = request.include_dst ? 0 : batch.begin;
    expanded.push_back(batch.begin - block);
    expanded.push_back(batch.end - block);
    dispatch_index(ids, [&](auto* id) { run_hop<std::remove_pointer_t<decltype(id)>>(batch, static_cast<int>(hop)); });
  }
  write_destinations(batch, expanded);
  batch.nodes.id.fit(batch.nodes.count);
  batch.row.fit(2 * batch.edges);
  batch.colptr.fit(batch.columns + 1);
  batch.edge_id.fit(batch.edges);
  batch.weight.fit(batch.edges);
  return {std::move(batch.nodes.id),
          std::move(batch.row),
          std::move(batch.colptr),
          std::move(batch.edge_id),
          std::move(batch.weight),
          batch.nodes.count,
          batch.edges,
          batch.columns,
          std::move(batch.nodes.per_hop),
          std::move(batch.edges_per_hop)};
}

// For each batch, the counts of its hops: of nodes, then of edges.
Tensor counts_of(const std::vector<LayerOutcome>& found, int64_t hops) {
  const int64_t batches = static_cast<int64_t>(found.size()), each = 2 * hops + 1;
  PooledArray<int64_t> array(batches * each);
  int64_t* at = array.data();
  for (const LayerOutcome& batch : found) {
    at = std::copy_n(batch.nodes_per_hop.data(), hops + 1, at);
    at = std::copy_n(batch.edges_per_hop.data(), hops, at);
  }
  return to_tensor(std::move(array), {batches, each}, ScalarType::Long);
}

// See torch_gnnscale.ops.sample_layers, which checks the arguments. A batch for each key, dealt to threads. `choices`:
// the numbers of method, scheme, scores, aggregation and weights. Returns, batch after batch: node, edge_index, colptr,
// edge_id, edge_weight. Then, of all batches, the counts of their hops.
std::vector<Tensor> sample_layers(const Tensor& graph, const std::vector<Tensor>& seeds,
                                  const std::optional<Tensor>& score, const Ints& num_nodes, const Ints& keys,
                                  const Ints& choices, int64_t options, int64_t threads) {
  const std::shared_ptr<const HeldGraph> holder = held_graph(graph);
  STD_TORCH_CHECK(holder->relations.size() == 1 && holder->sizes.size() == 1, "expected one relation");
  STD_TORCH_CHECK(seeds.size() == keys.size(), "sample_layers: expected seeds for each of ", keys.size(), " keys");
  const HeldRelation& held = holder->relations[0];
  STD_TORCH_CHECK(held.colptr.numel() == holder->sizes[0] + 1, "the relation does not fit its node type");
  STD_TORCH_CHECK(!held.edge_id.has_value() || held.edge_id->numel() == held.row.numel(),
                  "expected an id for each edge");
  LayerRequest common{};
  static_cast<LayerOptions&>(common) = layer_options("sample_layers", choices, options);
  common.graph = to_relation(held.colptr, held.row, held.edge_id, true);
  common.graph.num_src = holder->sizes[0];
  common.edge_id_wide = held.edge_id.has_value() && dtype_of(*held.edge_id) == ScalarType::Long;
  check_int64("score", score);
  for (const Tensor& of_batch : seeds) check_int64("seeds", of_batch);
  STD_TORCH_CHECK(num_nodes.size() <= kMaxHops, "expected at most ", kMaxHops, " hops, found ", num_nodes.size());
  common.score = data_or_null(score);
  common.num_nodes = num_nodes;
  STD_TORCH_CHECK((common.method == Method::kFastGcn) == score.has_value() &&
                      (!score.has_value() || score->numel() == holder->sizes[0]),
                  "score: expected one for each node with fastgcn, else none");
  const ScalarType ids = dtype_of(held.row);
  std::vector<LayerRequest> requests(keys.size(), common);
  std::vector<std::pair<const int64_t*, int64_t>> given;
  for (size_t b = 0; b < keys.size(); ++b) {
    requests[b].key = static_cast<uint64_t>(keys[b]);
    given.emplace_back(static_cast<const int64_t*>(seeds[b].const_data_ptr()), seeds[b].numel());
  }
  std::vector<LayerOutcome> found(keys.size());
  deal_batches(static_cast<int64_t>(keys.size()), threads,
               [&](int64_t b) { found[b] = sample_batch(requests[b], ids, given[b].first, given[b].second); });

  std::vector<Tensor> out;
  out.reserve(5 * keys.size() + 1);
  for (LayerOutcome& batch : found) {
    out.push_back(to_tensor(std::move(batch.node), {batch.nodes}, ScalarType::Long));
    out.push_back(to_tensor(std::move(batch.edge_index), {2, batch.edges}, ScalarType::Long));
    out.push_back(to_tensor(std::move(batch.colptr), {batch.columns + 1}, ScalarType::Long));
    out.push_back(to_tensor(std::move(batch.edge_id), {batch.edges}, ScalarType::Long));
    out.push_back(to_tensor(std::move(batch.weight), {batch.edges}, ScalarType::Float));
  }
  out.push_back(counts_of(found, static_cast<int64_t>(num_nodes.size())));
  return out;
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("sample_layers", TORCH_BOX(&sample_layers)); }

}  // namespace
}  // namespace gnnscale
