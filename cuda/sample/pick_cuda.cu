// The operator pick_neighbors on the current stream of a GPU (see pick_phases.h). The host waits for the stream twice:
// for the number of edges, and for whether the graph is malformed. The graph is in GPU memory or pinned host memory.
#include <torch/csrc/stable/accelerator.h>

#include <optional>
#include <tuple>

#include "../executor_cuda.h"
#include "../gather/tier_arguments.h"
#include "bulk_rooms.h"
#include "options.h"
#include "pick_arguments.h"
#include "pick_phases.h"

namespace gnnscale {
namespace {

constexpr char kName[] = "pick_neighbors";

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
    STD_TORCH_CHECK(found[1 + kBadRequest] < 0, kName, ": nodes are out of range");
    if (column >= 0) {
      const std::vector<int64_t> value = malformed();
      STD_TORCH_CHECK(false, "the graph is malformed: colptr[", column, "] = ", value[0], ", colptr[", column + 1,
                      "] = ", value[1], " with ", hop_.stored.num_edges, " edges");
    }
    STD_TORCH_CHECK(edges <= kMostInHop, kName, ": expected at most ", kMostInHop, " edges, found ", edges,
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
  const SampleOptions asked(kName, options,
                            SampleOptions::kReplace | SampleOptions::kLast | SampleOptions::kWithEdgeId);
  check_draws(number, hop, fanout);
  check_requests(node, node_ptr, keys, tree, node_time, node_start_time);
  STD_TORCH_CHECK(node.is_cuda() && node.numel() <= kMostInHop, kName, ": expected at most ", kMostInHop,
                  " nodes, on a GPU");
  const int32_t device = node.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const auto readable = [device](const Tensor& part) {
    STD_TORCH_CHECK(!part.is_cuda() || part.get_device_index() == device, kName,
                    ": the graph is not on the device of node");
    return device_address(kName, part);
  };
  const auto numbers = [&](const std::optional<Tensor>& values) {
    return values.has_value() ? reinterpret_cast<const int64_t*>(readable(*values)) : nullptr;
  };
  const StreamExecutor executor(kName, node, current_stream(device));
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

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CUDA, library) { library.impl("pick_neighbors", TORCH_BOX(&pick_neighbors)); }

}  // namespace
}  // namespace gnnscale
