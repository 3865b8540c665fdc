// The operator pick_neighbors on the CPU: one hop for requests, in global ids (FastSample, section 3.1).
#include <list>
#include <optional>
#include <tuple>

#include "../memory/workspace.h"
#include "drawing_cpu.h"
#include "options.h"
#include "pick_arguments.h"

namespace gnnscale {
namespace {

// Picks and reads blocks [from, to). While a block is read, the stored edges that the next block picked are prefetched.
void draw_blocks(Drawing& drawing, const Relation& relation, int64_t from, int64_t to) {
  Scratch scratch;
  PendingPicks pending(relation), none(relation);
  for (int64_t block = from; block < to; ++block) {
    drawing.pick(block, scratch, scratch.positions[block & 1], pending);
    if (block > from) drawing.read(block - 1, scratch.positions[(block - 1) & 1], pending);
    pending.prefetch_rest();
  }
  if (to > from) drawing.read(to - 1, scratch.positions[(to - 1) & 1], none);
}

void check_nodes(const Tensor& colptr, int64_t first, const Tensor& node) {
  const int64_t* const nodes = data_or_null(node);
  const uint64_t columns = static_cast<uint64_t>(colptr.numel() - 1);
  bool outside = false;
  for (int64_t i = 0; i < node.numel(); ++i) outside |= static_cast<uint64_t>(nodes[i] - first) >= columns;
  STD_TORCH_CHECK(!outside, "pick_neighbors: nodes are out of range");
}

// See torch_gnnscale.ops.pick_neighbors, which checks the arguments.
std::tuple<Tensor, Tensor, Tensor> pick_neighbors(
    const Tensor& colptr, const Tensor& row, const std::optional<Tensor>& edge_id, const std::optional<Tensor>& weight,
    const std::optional<Tensor>& time, int64_t first, int64_t num_src, const Tensor& node,
    std::vector<int64_t> node_ptr, std::vector<int64_t> keys, const std::optional<Tensor>& tree,
    const std::optional<Tensor>& node_time, const std::optional<Tensor>& node_start_time, int64_t number, int64_t hop,
    int64_t fanout, int64_t options, int64_t threads) {
  const SampleOptions asked("pick_neighbors", options,
                            SampleOptions::kReplace | SampleOptions::kLast | SampleOptions::kWithEdgeId);
  const bool with_edge_id = asked.has(SampleOptions::kWithEdgeId);
  check_draws(number, hop, fanout);
  check_columns(colptr, row, edge_id, weight, time);
  check_requests(node, node_ptr, keys, tree, node_time, node_start_time);
  check_nodes(colptr, first, node);
  Relation relation = to_relation(colptr, row, edge_id, with_edge_id);
  relation.number = static_cast<int>(number);
  relation.first = first;
  relation.num_src = num_src;
  relation.weight = data_or_null(weight);
  relation.time = data_or_null(time);

  const int64_t size = node.numel(), batches = static_cast<int64_t>(keys.size());
  const int64_t *const nodes = data_or_null(node), *const trees = data_or_null(tree),
                       *const times = data_or_null(node_time), *const start_times = data_or_null(node_start_time);
  const auto from = [](const int64_t* values, int64_t i) { return values == nullptr ? nullptr : values + i; };
  PooledArray<int64_t> colptr_out(size + 1);
  colptr_out[0] = 0;
  WorkspaceLease work(0);
  const auto [begin, length] = work->candidates(size);
  std::list<Drawing> drawings;
  const auto frontier = [&](int64_t batch) {
    const int64_t i = node_ptr[batch];
    return Frontier{node_ptr[batch + 1] - i, nodes + i, from(trees, i), from(times, i), from(start_times, i), nullptr};
  };
  for (int64_t b = 0; b < batches; ++b) {
    const DrawRule rule{static_cast<uint64_t>(keys[b]), static_cast<int>(hop), fanout,
                        asked.has(SampleOptions::kReplace), asked.has(SampleOptions::kLast)};
    const int64_t i = node_ptr[b];
    drawings.emplace_back(relation, frontier(b), rule, colptr_out.data() + i, begin + i, length + i).count(threads);
  }
  const int64_t total = colptr_out[size];
  PooledArray<int64_t> source(total), id(with_edge_id ? total : 0);
  int64_t b = 0;
  for (Drawing& drawing : drawings) {
    drawing.write_to(frontier(b++), source.data(), with_edge_id ? id.data() : nullptr);
    const int64_t blocks = drawing.num_blocks(), tasks = num_tasks(blocks, 2, threads);
    run_tasks(tasks, [&](int64_t task) {
      const auto [first_block, last_block] = part(blocks, task, tasks);
      draw_blocks(drawing, relation, first_block, last_block);
    });
    drawing.check_rows();
  }
  for (int64_t i = 0; i < size; ++i) colptr_out[i] = colptr_out[i + 1] - colptr_out[i];
  return {to_tensor(std::move(colptr_out), {size}, ScalarType::Long),
          to_tensor(std::move(source), {total}, ScalarType::Long),
          to_tensor(std::move(id), {with_edge_id ? total : 0}, ScalarType::Long)};
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("pick_neighbors", TORCH_BOX(&pick_neighbors)); }

}  // namespace
}  // namespace gnnscale
