// The operator cut_batch on the current stream of a GPU (see cut_phases.h). The host waits three times: for how many
// entries are sent, how many nodes are own and in the halo, and how many edges lead to own nodes.
#include <torch/csrc/stable/accelerator.h>

#include <numeric>
#include <tuple>
#include <vector>

#include "../executor_cuda.h"
#include "cut_phases.h"

namespace gnnscale {
namespace {

constexpr char kName[] = "cut_batch";

int64_t* data(Tensor& tensor) { return static_cast<int64_t*>(tensor.mutable_data_ptr()); }

// Room for pairs that are sorted, and for what the sort needs.
class Pairs {
 public:
  Pairs(const StreamExecutor& executor, int64_t count)
      : executor_(executor),
        keys_(executor.room(count, ScalarType::Long)),
        spare_keys_(executor.room(count, ScalarType::Long)),
        values_(executor.room(count, ScalarType::Int)),
        spare_values_(executor.room(count, ScalarType::Int)) {}

  int64_t* keys() { return data(keys_); }
  int32_t* values() { return static_cast<int32_t*>(values_.mutable_data_ptr()); }

  void sort(int64_t count) {
    if (count > 0 && executor_.sort(keys(), data(spare_keys_), values(),
                                    static_cast<int32_t*>(spare_values_.mutable_data_ptr()), count)) {
      std::swap(keys_, spare_keys_);
      std::swap(values_, spare_values_);
    }
  }

 private:
  const StreamExecutor& executor_;
  Tensor keys_, spare_keys_, values_, spare_values_;
};

// See torch_gnnscale.ops.cut_batch, which checks the arguments.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> cut_batch(const Tensor& node,
                                                                             const std::vector<int64_t>& num_nodes,
                                                                             const Tensor& colptr, const Tensor& row,
                                                                             const Tensor& owner, int64_t parts,
                                                                             int64_t part) {
  const int64_t nodes = node.numel(), columns = colptr.numel() - 1, edges = row.numel();
  const int64_t hops = static_cast<int64_t>(num_nodes.size()) - 1, pairs = nodes * parts;
  const CutRules rules{nodes, columns, edges, hops, parts, part};
  STD_TORCH_CHECK(node.is_cuda(), "cut_batch: nodes are not on a GPU");
  const int32_t device = node.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const StreamExecutor executor(kName, node, current_stream(device));
  for (const Tensor* tensor : {&colptr, &row, &owner}) {
    const Tensor& other = *tensor;
    STD_TORCH_CHECK(other.is_cuda() && other.get_device_index() == device, kName,
                    ": expected all tensors on the device of nodes");
  }
  const auto numbers = [](const Tensor& tensor) { return static_cast<const int64_t*>(tensor.const_data_ptr()); };
  const bool narrow = owner.scalar_type() == ScalarType::Int;
  std::vector<int64_t> ends(num_nodes.size());
  std::partial_sum(num_nodes.begin(), num_nodes.end(), ends.begin());
  STD_TORCH_CHECK(ends.back() == nodes && owner.numel() == nodes && ends.back() - num_nodes.back() == columns, kName,
                  ": expected an owner for each node, and a column for each node but those of the last group");

  const Tensor uploaded = executor.upload(ends);
  Tensor level = executor.room(pairs, ScalarType::Int), rank = executor.room(nodes, ScalarType::Long);
  // The counts; how many entries are sent; whether the batch is well formed.
  const int64_t totals = rules.counts();
  Tensor counts = executor.room(totals + 2, ScalarType::Long);
  if (pairs > 0) executor.fill(static_cast<uint32_t*>(level.mutable_data_ptr()), pairs);
  int64_t* const count = data(counts);
  executor.fill(count, totals + 2);
  const CutBatch batch{rules,
                       numbers(node),
                       numbers(colptr),
                       numbers(row),
                       narrow ? static_cast<const int32_t*>(owner.const_data_ptr()) : nullptr,
                       narrow ? nullptr : numbers(owner),
                       numbers(uploaded),
                       static_cast<uint32_t*>(level.mutable_data_ptr()),
                       data(rank),
                       reinterpret_cast<uint32_t*>(count + totals + 1)};

  Pairs sorted(executor, nodes);
  executor.each(nodes, WriteSortKey{batch, sorted.keys(), sorted.values()});
  executor.each(columns, CheckColumn{batch});
  executor.each(edges, EnterEdge{batch});
  sorted.sort(nodes);
  executor.each(nodes, WritePosition{batch, sorted.values()});

  executor.each(nodes, KeyOfOwn{batch, sorted.keys(), sorted.values()});
  sorted.sort(nodes);
  executor.each(hops + 1, CountBlock{sorted.keys(), nodes, count});
  Pairs halo(executor, nodes);
  executor.each(nodes, KeyOfHalo{batch, halo.keys(), halo.values()});
  halo.sort(nodes);
  executor.each(rules.blocks(), CountBlock{halo.keys(), nodes, count + rules.first_received()});
  Tensor flag = executor.room(pairs, ScalarType::Long), before = executor.room(pairs + 1, ScalarType::Long);
  executor.each(pairs, IsSent{batch, data(flag)});
  executor.sum_before(data(flag), data(before), pairs);
  const int64_t num_sent = executor.download(data(before) + pairs, 1)[0];
  std::vector<int64_t> found = executor.download(count, totals + 2);
  STD_TORCH_CHECK(static_cast<uint32_t>(found[totals + 1]) != 0, "the batch is malformed: an owner, a column or a ",
                  "source is out of range");
  const auto own = std::accumulate(found.begin(), found.begin() + hops + 1, int64_t{0});
  const auto first_received = found.begin() + rules.first_received();
  const auto num_halo = std::accumulate(first_received, first_received + rules.blocks(), int64_t{0});
  const int64_t own_columns = own - found[hops];

  Tensor local = executor.room(own, ScalarType::Long), of_halo = executor.room(num_halo, ScalarType::Long);
  Tensor sent = executor.room(num_sent, ScalarType::Long), place = executor.room(nodes, ScalarType::Long);
  executor.each(own, WriteNode{sorted.values(), 0, data(local), data(place)});
  executor.each(num_halo, WriteNode{halo.values(), own, data(of_halo), data(place)});
  Pairs given(executor, num_sent);
  executor.each(pairs, KeyOfSent{batch, data(flag), data(before), given.keys(), given.values()});
  given.sort(num_sent);
  executor.each(rules.blocks(), CountBlock{given.keys(), num_sent, count + rules.first_sent()});
  executor.each(num_sent, WriteSent{given.values(), data(place), data(sent)});

  Tensor degree = executor.room(own_columns, ScalarType::Long),
         own_colptr = executor.room(own_columns + 1, ScalarType::Long);
  executor.each(own_columns, CountColumn{batch, data(local), data(degree)});
  executor.sum_before(data(degree), data(own_colptr), own_columns);
  executor.each(hops, CountGroupEdges{count, data(own_colptr), count + rules.first_edges()});
  found = executor.download(count, totals);
  const auto first_edges = found.begin() + rules.first_edges();
  const auto own_edges = std::accumulate(first_edges, first_edges + hops, int64_t{0});
  Tensor own_row = executor.room(own_edges, ScalarType::Long), edge = executor.room(own_edges, ScalarType::Long);
  const EdgeOutput<int64_t> output{batch.row, data(place), data(own_row), data(edge)};
  executor.each(own_edges, WriteEdge{batch, output, data(local), data(own_colptr), own_columns});
  return {local, own_colptr, own_row, edge, of_halo, sent, executor.on_host(found)};
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CUDA, library) { library.impl("cut_batch", TORCH_BOX(&cut_batch)); }

}  // namespace
}  // namespace gnnscale
