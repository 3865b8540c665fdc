// The sampling operators on the current stream of a GPU.
#include <torch/csrc/stable/accelerator.h>

#include <optional>
#include <tuple>

#include "../executor_cuda.h"
#include "../gather/tier_arguments.h"
#include "bulk_driver.h"
#include "bulk_rooms.h"
#include "options.h"
#include "pick_arguments.h"
#include "pick_phases.h"
#include "relabel_phases.h"

namespace gnnscale {
namespace {

constexpr char kSampleBulk[] = "sample_bulk";

using Tensors = std::vector<Tensor>;
using Ints = std::vector<int64_t>;

// See torch_gnnscale.ops.PreparedBulks, which checks the arguments; `threads` is the CPU's.
BulkResult sample_bulk(const Tensors& colptr, const Tensors& row, const Tensors& edge_id, const Tensors& weight,
                       const Tensors& time, const Ints& spread, const Ints& layout, Ints sizes, const Tensor& seeds,
                       Ints seed_ptr, const std::optional<Tensor>& seed_time,
                       const std::optional<Tensor>& seed_start_time, const std::optional<Tensor>& exclude,
                       Ints exclude_ptr, Ints fanouts, Ints keys, int64_t options, Ints rooms, int64_t /*threads*/) {
  STD_TORCH_CHECK(seeds.is_cuda(), "sample_bulk: seeds are not on a GPU");
  const int32_t device = seeds.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const BulkRequest request =
      bulk_request(colptr, row, edge_id, weight, time, spread, layout, std::move(sizes), seeds, std::move(seed_ptr),
                   seed_time, seed_start_time, exclude, std::move(exclude_ptr), std::move(fanouts), std::move(keys),
                   options, std::move(rooms), [](const Tensor& part) { return device_address(kSampleBulk, part); });
  StreamExecutor executor(kSampleBulk, seeds, current_stream(device));
  return BulkDriver<StreamExecutor>(executor, request).run();
}

constexpr char kPickNeighbors[] = "pick_neighbors";

class PickDriver {
 public:
  // hop: the arguments; run() allocates the arrays.
  PickDriver(const StreamExecutor& executor, const PickHop& hop) : on_(executor), hop_(hop) {}

  // The number of edges of each request, and their sources and edge ids.
  std::tuple<Tensor, Tensor, Tensor> run(bool with_edge_id) {
    const int64_t size = hop_.requests.size;
    Tensor num_edges = on_.room(size, ScalarType::Long);
    hop_.count = static_cast<int64_t*>(num_edges.mutable_data_ptr());
    hop_.first = make<int64_t>(size, ScalarType::Long);
    hop_.degree = make<int64_t>(size, ScalarType::Long);
    hop_.offset = make<int64_t>(size + 1 + kHopWords, ScalarType::Long);
    hop_.word = reinterpret_cast<uint64_t*>(hop_.offset + size + 1);
    on_.fill(hop_.word, kHopWords);
    on_.each(size, CountRequest{hop_});
    on_.sum_before(hop_.count, hop_.offset, size);
    const std::vector<int64_t> found = on_.download(hop_.offset + size, 1 + kHopWords);
    const int64_t edges = found[0], column = found[1 + kBadColumn];
    STD_TORCH_CHECK(found[1 + kBadRequest] < 0, kPickNeighbors, ": nodes are out of range");
    if (column >= 0) {
      const std::vector<int64_t> value = malformed();
      STD_TORCH_CHECK(false, "the graph is malformed: colptr[", column, "] = ", value[0], ", colptr[", column + 1,
                      "] = ", value[1], " with ", hop_.stored.num_edges, " edges");
    }
    STD_TORCH_CHECK(edges <= kMostInHop, kPickNeighbors, ": expected at most ", kMostInHop, " edges, found ", edges,
                    "; ask for fewer nodes at a time");

    Tensor source = on_.room(edges, ScalarType::Long), id = on_.room(with_edge_id ? edges : 0, ScalarType::Long);
    hop_.source = static_cast<int64_t*>(source.mutable_data_ptr());
    hop_.edge_id = with_edge_id ? static_cast<int64_t*>(id.mutable_data_ptr()) : nullptr;
    if (edges > 0) draw(edges);
    return {num_edges, source, id};
  }

 private:
  template <typename T>
  T* make(int64_t count, ScalarType dtype) {
    memory_.push_back(on_.room(count, dtype));
    return static_cast<T*>(memory_.back().mutable_data_ptr());
  }

  void draw(int64_t edges) {
    const bool by_weight = hop_.stored.weight != nullptr, in_turn = by_weight && !hop_.replace;
    hop_.request = make<int32_t>(edges, ScalarType::Int);
    hop_.draw = make<int64_t>(edges, ScalarType::Long);
    if (in_turn) hop_.removed = make<Removed>(2 * edges, ScalarType::Long);
    if (!by_weight && !hop_.replace && hop_.fanout > kScannedFanout) {
      hop_.earliest = make<uint32_t>(2 * edges, ScalarType::Int);
      on_.fill(hop_.earliest, 2 * edges);
    }
    on_.each(edges, DrawRequested{hop_});
    if (hop_.earliest != nullptr) on_.each(edges, EnterDraw{hop_});
    if (in_turn) on_.each(hop_.requests.size, DrawByWeight{hop_});
    on_.each(edges, ReadRequested{hop_});
    const int64_t position = on_.download(hop_.offset + hop_.requests.size + 1 + kBadEdge, 1)[0];
    if (position < 0) return;
    STD_TORCH_CHECK(false, "the graph is malformed: row[", position, "] = ", malformed()[2], " in a graph of ",
                    hop_.stored.num_src, " nodes");
  }

  // The values of ReadMalformed.
  std::vector<int64_t> malformed() {
    int64_t* const value = make<int64_t>(3, ScalarType::Long);
    on_.each(1, ReadMalformed{hop_, value});
    return on_.download(value, 3);
  }

  const StreamExecutor& on_;
  PickHop hop_;
  std::vector<Tensor> memory_;  // lives until the work that uses it is queued
};

// See torch_gnnscale.ops.pick_neighbors, which checks the arguments; `threads` is the CPU's.
std::tuple<Tensor, Tensor, Tensor> pick_neighbors(
    const Tensor& colptr, const Tensor& row, const std::optional<Tensor>& edge_id, const std::optional<Tensor>& weight,
    const std::optional<Tensor>& time, int64_t first, int64_t num_src, const Tensor& node,
    std::vector<int64_t> node_ptr, std::vector<int64_t> keys, const std::optional<Tensor>& tree,
    const std::optional<Tensor>& node_time, const std::optional<Tensor>& node_start_time, int64_t number, int64_t hop,
    int64_t fanout, int64_t options, int64_t /*threads*/) {
  const SampleOptions asked(kPickNeighbors, options,
                            SampleOptions::kReplace | SampleOptions::kLast | SampleOptions::kWithEdgeId);
  check_draws(number, hop, fanout);
  check_requests(node, node_ptr, keys, tree, node_time, node_start_time);
  STD_TORCH_CHECK(node.is_cuda() && node.numel() <= kMostInHop, kPickNeighbors, ": expected at most ", kMostInHop,
                  " nodes, on a GPU");
  const int32_t device = node.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const auto readable = [device](const Tensor& part) {
    STD_TORCH_CHECK(!part.is_cuda() || part.get_device_index() == device, kPickNeighbors,
                    ": the graph is not on the device of node");
    return device_address(kPickNeighbors, part);
  };
  const auto numbers = [&](const std::optional<Tensor>& values) {
    return values.has_value() ? reinterpret_cast<const int64_t*>(readable(*values)) : nullptr;
  };
  const StreamExecutor executor(kPickNeighbors, node, current_stream(device));
  const int64_t batches = static_cast<int64_t>(keys.size());
  std::vector<int64_t> words = std::move(node_ptr);
  words.insert(words.end(), keys.begin(), keys.end());
  const Tensor uploaded = executor.upload(words);
  const int64_t* const begin = static_cast<const int64_t*>(uploaded.const_data_ptr());

  PickHop pick{};
  pick.stored = {numbers(colptr),
                 first,
                 colptr.numel() - 1,
                 row.numel(),
                 num_src,
                 tiered_ids({row}, {1}, readable),
                 edge_id.has_value() ? tiered_ids({*edge_id}, {1}, readable) : TieredIds{},
                 numbers(weight),
                 numbers(time)};
  pick.requests = {node.numel(), numbers(node), numbers(tree),      numbers(node_time), numbers(node_start_time),
                   batches,      begin,         begin + batches + 1};
  pick.fanout = fanout;
  pick.relation = static_cast<int>(number);
  pick.hop = static_cast<int>(hop);
  pick.replace = asked.has(SampleOptions::kReplace);
  pick.last = asked.has(SampleOptions::kLast);
  return PickDriver(executor, pick).run(asked.has(SampleOptions::kWithEdgeId));
}

constexpr char kRelabel[] = "relabel";

// See torch_gnnscale.ops.relabel, which checks the arguments.
std::tuple<Tensor, Tensor, Tensor> relabel(const Tensor& known, const Tensor& ids,
                                           const std::optional<Tensor>& known_tree, const std::optional<Tensor>& tree) {
  const int64_t before = known.numel(), count = ids.numel();
  STD_TORCH_CHECK(known_tree.has_value() == tree.has_value() &&
                      (!tree.has_value() || (known_tree->numel() == before && tree->numel() == count)),
                  "relabel: expected a tree for each node and id, or none");
  STD_TORCH_CHECK(before + count < int64_t{1} << 31, "relabel: expected less than 2^31 nodes and ids, found ",
                  before + count);
  STD_TORCH_CHECK(ids.is_cuda(), "relabel: ids are not on a GPU");
  const int32_t device = ids.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const StreamExecutor executor(kRelabel, ids, current_stream(device));
  const auto numbers = [device](const std::optional<Tensor>& values) -> const int64_t* {
    if (!values.has_value()) return nullptr;
    const Tensor& tensor = *values;
    STD_TORCH_CHECK(tensor.is_cuda() && tensor.get_device_index() == device, kRelabel,
                    ": expected all tensors on the device of ids");
    return static_cast<const int64_t*>(tensor.const_data_ptr());
  };
  const auto data = [](Tensor& tensor) { return static_cast<int64_t*>(tensor.mutable_data_ptr()); };

  const int64_t slots = 2 * (before + count) + 1;
  Tensor local = executor.room(count, ScalarType::Long), table = executor.room(slots, ScalarType::Int);
  Tensor fresh = executor.room(count, ScalarType::Long), rank = executor.room(count + 1, ScalarType::Long);
  executor.fill(static_cast<uint32_t*>(table.mutable_data_ptr()), slots);
  FoundNodes found{before,           count,
                   numbers(known),   numbers(ids),
                   tree.has_value(), numbers(known_tree),
                   numbers(tree),    {static_cast<uint32_t*>(table.mutable_data_ptr()), static_cast<uint64_t>(slots)},
                   data(local),      data(fresh),
                   data(rank),       nullptr,
                   nullptr};
  executor.each(before + count, EnterItem{found});
  executor.each(count, FindFirst{found});
  executor.sum_before(found.fresh, found.rank, count);
  const int64_t added = executor.download(found.rank + count, 1)[0];

  Tensor node = executor.room(added, ScalarType::Long),
         node_tree = executor.room(tree.has_value() ? added : 0, ScalarType::Long);
  found.node = data(node);
  found.tree = data(node_tree);
  executor.each(count, NumberFound{found});
  return {local, node, node_tree};
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CUDA, library) {
  library.impl("sample_bulk", TORCH_BOX(&sample_bulk));
  library.impl("pick_neighbors", TORCH_BOX(&pick_neighbors));
  library.impl("relabel", TORCH_BOX(&relabel));
}

}  // namespace
}  // namespace gnnscale
