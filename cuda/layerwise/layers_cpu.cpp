// The operator sample_layers on the CPU: tensors to a LayerRequest, and results to tensors.
#include <optional>
#include <tuple>

#include "../memory/tensor.h"
#include "../sample/held_graph.h"
#include "hops_cpu.h"

namespace gnnscale {
namespace {

using Ints = std::vector<int64_t>;

template <typename T>
Tensor fitted(PooledArray<T>&& array, int64_t count, ScalarType dtype = ScalarType::Long) {
  array.fit(count);
  return to_tensor(std::move(array), {count}, dtype);
}

Tensor one_row(const Ints& values) {
  PooledArray<int64_t> array(static_cast<int64_t>(values.size()));
  std::copy(values.begin(), values.end(), array.data());
  return to_tensor(std::move(array), {1, static_cast<int64_t>(values.size())}, ScalarType::Long);
}

// [2, edges]: the source and the destination of each edge, in the hop's local ids. first_node: `expanded` below.
Tensor edge_index(const LayerBatch& batch, const Ints& first_node) {
  PooledArray<int64_t> index(2 * batch.edges);
  std::copy_n(batch.row.data(), batch.edges, index.data());
  int64_t* const col = index.data() + batch.edges;
  int64_t column = 0;
  for (size_t hop = 0; hop + 1 < first_node.size(); hop += 2) {
    for (int64_t local = first_node[hop]; local < first_node[hop + 1]; ++local, ++column) {
      std::fill(col + batch.colptr[column], col + batch.colptr[column + 1], local);
    }
  }
  return to_tensor(std::move(index), {2, batch.edges}, ScalarType::Long);
}

// See torch_gnnscale.ops.sample_layers, which checks the arguments. `choices`: the numbers of method, scheme, scores,
// aggregation and weights.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> sample_layers(const Tensor& graph,
                                                                                 const Tensor& seeds,
                                                                                 const std::optional<Tensor>& score,
                                                                                 const Ints& num_nodes, int64_t key,
                                                                                 const Ints& choices, int64_t options) {
  const std::shared_ptr<const HeldGraph> holder = held_graph(graph);
  STD_TORCH_CHECK(holder->relations.size() == 1 && holder->sizes.size() == 1, "expected one relation");
  const HeldRelation& held = holder->relations[0];
  STD_TORCH_CHECK(held.colptr.numel() == holder->sizes[0] + 1, "the relation does not fit its node type");
  STD_TORCH_CHECK(!held.edge_id.has_value() || held.edge_id->numel() == held.row.numel(),
                  "expected an id for each edge");
  LayerRequest request{};
  static_cast<LayerOptions&>(request) = layer_options("sample_layers", choices, options);
  request.graph = to_relation(held.colptr, held.row, held.edge_id, true);
  request.graph.num_src = holder->sizes[0];
  request.edge_id_wide = held.edge_id.has_value() && held.edge_id->scalar_type() == ScalarType::Long;
  request.score = data_or_null(score);
  request.num_nodes = num_nodes;
  request.key = static_cast<uint64_t>(key);
  STD_TORCH_CHECK((request.method == Method::kFastGcn) == score.has_value() &&
                      (!score.has_value() || score->numel() == holder->sizes[0]),
                  "score: expected one for each node with fastgcn, else none");
  LayerBatch batch(request, static_cast<const int64_t*>(seeds.const_data_ptr()), seeds.numel());
  Ints expanded;  // for each hop: the local id of its first column, and the local id after its last column
  for (size_t hop = 0; hop < num_nodes.size(); ++hop) {
    const int64_t block = request.include_dst ? 0 : batch.begin;
    expanded.push_back(batch.begin - block);
    expanded.push_back(batch.end - block);
    dispatch_index(held.row.scalar_type(), [&](auto* tag) {
      using Id = std::remove_pointer_t<decltype(tag)>;
      const int64_t stride = request.graph.row_stride;
      if (stride == sizeof(Id)) {
        LayerHop<Id, sizeof(Id)>(batch, static_cast<int>(hop)).run();
      } else if (stride == 2 * sizeof(Id)) {  // (source, edge id) pairs
        LayerHop<Id, 2 * sizeof(Id)>(batch, static_cast<int>(hop)).run();
      } else {
        LayerHop<Id, 0>(batch, static_cast<int>(hop)).run();
      }
    });
  }
  Tensor index = edge_index(batch, expanded);
  return {fitted(std::move(batch.nodes.id), batch.nodes.count),
          std::move(index),
          fitted(std::move(batch.colptr), batch.columns + 1),
          fitted(std::move(batch.edge_id), batch.edges),
          fitted(std::move(batch.weight), batch.edges, ScalarType::Float),
          one_row(batch.nodes.per_hop),
          one_row(batch.edges_per_hop)};
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("sample_layers", TORCH_BOX(&sample_layers)); }

}  // namespace
}  // namespace gnnscale
