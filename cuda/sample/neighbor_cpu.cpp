// The fused neighbor sampler (FastSample, section 3.2, algorithm 1): all hops of a batch in one call, straight into
// CSC with local ids.
//
// The work is a chain of dependent cache misses: colptr, then row and edge id, then the relabel map. Frontier nodes go
// through it in blocks, as a pipeline: while a block's positions are picked and prefetched, the ids of the block before
// are read and their map cells prefetched, and the block before that is relabelled. Only the relabelling has an order;
// with several threads all of them pick and read, and one relabels the finished blocks in order behind them.
#include <atomic>
#include <optional>
#include <string>
#include <tuple>

#include "../memory/tensor.h"
#include "../memory/workspace.h"
#include "../relabel.h"
#include "picks_cpu.h"

namespace gnnscale {
namespace {

constexpr int64_t kBlockNodes = 64;      // frontier nodes a block, fewer if their picks
constexpr int64_t kBlockPicks = 512;     // would be more than these
constexpr int64_t kNodesAhead = 16;      // how far ahead colptr is prefetched
constexpr int64_t kEdgesAhead = 32;      // how far ahead the relabel map is prefetched
constexpr int64_t kParallelFrom = 2048;  // edges of a hop below which one thread does it all

struct Request {
  const int64_t* colptr;
  int64_t num_nodes, num_edges;
  std::vector<int64_t> fanouts;
  uint64_t key;
  bool replace, layers;
  int64_t threads;
};

template <typename Id, typename EdgeId>  // EdgeId void: an edge's id is its position
class NeighborSampler {
 public:
  NeighborSampler(const Request& request, const Tensor& row, const Tensor* edge_id, bool with_edge_id)
      : request_(request),
        row_(static_cast<const Id*>(row.const_data_ptr())),
        row_stride_(row.stride(0)),
        edge_id_(edge_id == nullptr ? nullptr : static_cast<const EdgeId*>(edge_id->const_data_ptr())),
        edge_id_stride_(edge_id == nullptr ? 0 : edge_id->stride(0)),
        with_edge_id_(with_edge_id),
        // An id that lies beside its row entry comes with it.
        prefetch_edge_id_(with_edge_id && static_cast<const void*>(edge_id_) != static_cast<const void*>(row_ + 1)),
        work_(request.num_nodes) {}

  template <typename Seed>
  void run(const Seed* seeds, int64_t num_seeds) {
    work_->prepare(request_.num_nodes, request_.num_nodes + num_seeds);
    struct AdvanceBase {  // also when a hop throws: cells above the base may have been written
      NeighborSampler& self;
      ~AdvanceBase() { self.work_->base += static_cast<uint32_t>(self.num_nodes); }
    } advance{*this};
    const int64_t hops = static_cast<int64_t>(request_.fanouts.size());
    nodes.reserve(0, std::max(num_seeds, work_->last_nodes));
    rows.reserve(0, work_->last_edges);
    if (with_edge_id_) edges.reserve(0, work_->last_edges);
    colptr.reserve(0, std::max(num_seeds + 1, work_->last_columns));
    colptr[0] = 0;
    // A repeated seed keeps its row; the map leads to its first occurrence.
    for (; num_nodes < num_seeds; ++num_nodes) {
      const int64_t node = static_cast<int64_t>(seeds[num_nodes]);
      uint32_t& cell = work_->map[node];
      if (local_id(cell, work_->base) >= static_cast<uint64_t>(num_nodes)) {
        cell = work_->base + static_cast<uint32_t>(num_nodes);
      }
      nodes[num_nodes] = node;
    }
    nodes_per_hop.push_back(num_nodes);
    int64_t frontier_begin = 0;
    for (int64_t hop = 0; hop < hops; ++hop) {
      const int64_t frontier_end = num_nodes, edges_before = num_edges;
      expand(frontier_begin, frontier_end, static_cast<int>(hop));
      nodes_per_hop.push_back(num_nodes - frontier_end);
      edges_per_hop.push_back(num_edges - edges_before);
      if (!request_.layers) frontier_begin = frontier_end;
    }
    work_->last_nodes = num_nodes;
    work_->last_edges = num_edges;
    work_->last_columns = num_columns + 1;
  }

  PooledArray<int64_t> nodes, colptr, rows, edges;
  int64_t num_nodes = 0, num_edges = 0, num_columns = 0;
  std::vector<int64_t> nodes_per_hop, edges_per_hop;

 private:
  // A task's own buffers: the picked positions of the block at hand and of the one before.
  struct Scratch {
    Picker picker;
    std::vector<int64_t> positions[2];
  };

  void expand(int64_t begin, int64_t end, int hop) {
    const int64_t size = end - begin, fanout = request_.fanouts[hop];
    hop_ = hop;
    frontier_ = begin;
    columns_ = num_columns;
    colptr.reserve(num_columns + 1, num_columns + size + 1);
    if (static_cast<int64_t>(work_->begin.size()) < size) {
      work_->begin.resize(size + size / 4);
      work_->degree.resize(size + size / 4);
    }
    const int64_t count_tasks = num_tasks(size, 8192, request_.threads);
    run_tasks(count_tasks, [&](int64_t task) {
      const auto [from, to] = part(size, task, count_tasks);
      count(from, to, fanout);
    });
    if (corrupt_.load() >= 0) {
      const int64_t node = corrupt_.load();
      STD_TORCH_CHECK(false, "the graph is malformed: colptr[", node, "] = ", request_.colptr[node], ", colptr[",
                      node + 1, "] = ", request_.colptr[node + 1], " with ", request_.num_edges, " edges");
    }
    for (int64_t i = 0; i < size; ++i) colptr[columns_ + i + 1] += colptr[columns_ + i];
    const int64_t total = colptr[columns_ + size];
    rows.reserve(num_edges, total);
    if (with_edge_id_) edges.reserve(num_edges, total);
    // Each edge leads to at most one new node, and there are at most as many as the graph has.
    nodes.reserve(num_nodes, num_nodes + std::min(total - num_edges, request_.num_nodes) + 1);

    block_ = std::clamp<int64_t>(kBlockPicks / std::max<int64_t>(fanout, 1), 1, kBlockNodes);
    if (block_ > kLanes) block_ -= block_ % kLanes;
    const int64_t blocks = (size + block_ - 1) / block_;
    const int64_t tasks = total - num_edges < kParallelFrom ? 1 : num_tasks(blocks, 2, request_.threads);
    if (tasks == 1) {
      pick_serially(size, blocks);
    } else {
      pick_in_parallel(size, blocks, tasks);
    }
    if (corrupt_.load() >= 0) {
      const int64_t position = corrupt_.load();
      STD_TORCH_CHECK(false, "the graph is malformed: row[", position,
                      "] = ", static_cast<int64_t>(row_[position * row_stride_]), " in a graph of ", request_.num_nodes,
                      " nodes");
    }
    num_edges = total;
    num_columns += size;
  }

  // Degrees and counts of frontier nodes [from, to); colptr holds counts until they are summed up.
  void count(int64_t from, int64_t to, int64_t fanout) {
    const int64_t* frontier = nodes.data() + frontier_;
    const int64_t* pointers = request_.colptr;
    for (int64_t i = from; i < to; ++i) {
      if (i + kNodesAhead < to) GNNSCALE_PREFETCH(pointers + frontier[i + kNodesAhead]);
      const int64_t first = pointers[frontier[i]], last = pointers[frontier[i] + 1];
      if (first < 0 || last < first || last > request_.num_edges) {
        corrupt_.store(frontier[i]);
        return;
      }
      work_->begin[i] = first;
      work_->degree[i] = last - first;
      colptr[columns_ + i + 1] = pick_count(last - first, fanout, request_.replace);
    }
  }

  int64_t first_edge(int64_t block, int64_t size) const { return colptr[columns_ + std::min(block * block_, size)]; }

  // Positions of the picks of a block, kLanes nodes at a time; their row and edge id entries are prefetched.
  void pick_block(int64_t block, int64_t size, Scratch& scratch, std::vector<int64_t>& positions) {
    const int64_t from = block * block_, to = std::min(from + block_, size);
    const int64_t fanout = request_.fanouts[hop_];
    const bool replace = request_.replace;
    const size_t room = static_cast<size_t>(first_edge(block + 1, size) - first_edge(block, size));
    if (positions.size() < room + kLaneFanout) positions.resize(room + kLaneFanout);
    // Locals, for the compiler cannot know that no store changes the members.
    const Id* const row = row_;
    const EdgeId* const edge_id = edge_id_;
    const int64_t row_stride = row_stride_, edge_id_stride = edge_id_stride_;
    const auto prefetch = [&, prefetch_edge_id = prefetch_edge_id_](int64_t position) GNNSCALE_INLINE_LAMBDA {
      GNNSCALE_PREFETCH(row + position * row_stride);
      if constexpr (!std::is_void_v<EdgeId>) {
        if (prefetch_edge_id) GNNSCALE_PREFETCH(edge_id + position * edge_id_stride);
      }
    };
    int64_t* out = positions.data();
    scratch.picker.set_key(request_.key);
    for (int64_t i = from; i < to; i += kLanes) {
      const PickGroup group{nodes.data() + frontier_ + i, work_->begin.data() + i, work_->degree.data() + i, 0,
                            make_counter(0, 0, hop_, 0).tail};
      const int64_t lanes = std::min(to - i, kLanes);
      int64_t largest = 0;
      for (int64_t lane = 0; lane < lanes; ++lane) largest = std::max(largest, group.degree[lane]);
      if (lanes == kLanes && fanout <= kLaneFanout && largest < int64_t{1} << 32 &&
          pick_is_random(largest, fanout, replace)) {
        out = scratch.picker.pick_group(group, fanout, replace, out, prefetch);
        continue;
      }
      for (int64_t lane = 0; lane < lanes; ++lane) {
        const int64_t first = group.first[lane], degree = group.degree[lane];
        if (pick_is_random(degree, fanout, replace)) {
          const Counter counter = make_counter(group.node[lane], 0, hop_, 0);
          out = scratch.picker.pick_node(counter, first, degree, fanout, replace, out, prefetch);
          continue;
        }
        for (int64_t k = 0; k < degree; ++k) {
          *out = first + k;
          if (k % 8 == 0) prefetch(*out);
          ++out;
        }
      }
    }
  }

  // Node ids and edge ids of a block's picks to the outputs.
  void read_block(int64_t block, int64_t size, const std::vector<int64_t>& positions) {
    const int64_t from = first_edge(block, size), count = first_edge(block + 1, size) - from;
    int64_t *ids = rows.data() + from, *edge_ids = with_edge_id_ ? edges.data() + from : nullptr;
    // Locals, for the compiler cannot know that no store changes the members.
    const Id* const row = row_;
    const EdgeId* const edge_id = edge_id_;
    const int64_t row_stride = row_stride_, edge_id_stride = edge_id_stride_;
    const uint64_t num_nodes = static_cast<uint64_t>(request_.num_nodes);
    for (int64_t k = 0; k < count; ++k) {
      const int64_t position = positions[k];
      int64_t id = static_cast<int64_t>(row[position * row_stride]);
      if (static_cast<uint64_t>(id) >= num_nodes) {
        corrupt_.store(position);
        id = 0;
      }
      ids[k] = id;
      if (edge_ids == nullptr) continue;
      if constexpr (std::is_void_v<EdgeId>) {
        edge_ids[k] = position;
      } else {
        edge_ids[k] = static_cast<int64_t>(edge_id[position * edge_id_stride]);
      }
    }
  }

  // Global to local ids, in order of first occurrence; new nodes join the next frontier. The ids of `blocks_read`
  // blocks from this one on are known, and their cells can be prefetched.
  void relabel_block(int64_t block, int64_t size, int64_t blocks_read) {
    const int64_t from = first_edge(block, size), to = first_edge(block + 1, size);
    const int64_t read_to = first_edge(block + blocks_read, size);
    uint32_t* const map = work_->map;
    int64_t *const ids = rows.data(), *const found = nodes.data();
    const uint32_t base = work_->base;
    uint32_t count = static_cast<uint32_t>(num_nodes);
    for (int64_t e = from; e < to; ++e) {
      if (e + kEdgesAhead < read_to) GNNSCALE_PREFETCH(map + ids[e + kEdgesAhead]);
      // Without a branch, for nobody can predict which neighbor is new: what is known is written again.
      const int64_t id = ids[e];
      const uint32_t local = std::min(local_id(map[id], base), count);
      map[id] = base + local;
      found[count] = id;  // the slot after the last node is scratch
      ids[e] = local;
      count += local == count;
    }
    num_nodes = count;
  }

  void pick_serially(int64_t size, int64_t blocks) {
    for (int64_t step = 0; step < blocks + 2; ++step) {
      if (step < blocks) pick_block(step, size, scratch_, scratch_.positions[step & 1]);
      if (step >= 1 && step - 1 < blocks) read_block(step - 1, size, scratch_.positions[(step - 1) & 1]);
      if (step >= 2) relabel_block(step - 2, size, 2);
    }
  }

  // Every task claims blocks in order, picks and reads them; task 0 also relabels, as soon as the next one is read.
  // It finishes the hop alone if no other task runs beside it. A task without memory gives its blocks up.
  void pick_in_parallel(int64_t size, int64_t blocks, int64_t tasks) {
    enum : uint32_t { kWaiting, kRead, kGivenUp };
    std::vector<std::atomic<uint32_t>> states(static_cast<size_t>(blocks));
    std::atomic<int64_t> unclaimed{0};
    run_tasks(tasks, [&](int64_t task) {
      Scratch own;
      Scratch& scratch = task == 0 ? scratch_ : own;
      int64_t picked = -1, next = task == 0 ? 0 : blocks;
      int side = 0;  // of scratch.positions, for the next block
      const auto leave = [&](int64_t block, uint32_t state) {
        states[block].store(state, std::memory_order_release);
        states[block].notify_one();
      };
      const auto finish_picked = [&](int picked_side) {
        read_block(picked, size, scratch.positions[picked_side]);
        leave(std::exchange(picked, -1), kRead);
      };
      while (true) {
        const uint32_t state = next < blocks ? states[next].load(std::memory_order_acquire) : kWaiting;
        if (state == kGivenUp) return;
        if (state == kRead) {
          relabel_block(next++, size, 1);
          continue;
        }
        const int64_t block = unclaimed.fetch_add(1, std::memory_order_relaxed);
        if (block < blocks) {
          try {
            pick_block(block, size, scratch, scratch.positions[side]);
          } catch (const std::bad_alloc&) {
            leave(block, kGivenUp);
            if (picked >= 0) leave(picked, kGivenUp);
            throw;
          }
          side ^= 1;
          if (picked >= 0) finish_picked(side);
          picked = block;
        } else if (picked >= 0) {
          finish_picked(side ^ 1);
        } else if (next < blocks) {
          states[next].wait(kWaiting, std::memory_order_acquire);
        } else {
          return;
        }
      }
    });
  }

  const Request& request_;
  const Id* row_;
  const int64_t row_stride_;
  const EdgeId* edge_id_;
  const int64_t edge_id_stride_;
  const bool with_edge_id_, prefetch_edge_id_;
  WorkspaceLease work_;
  Scratch scratch_;
  std::atomic<int64_t> corrupt_{-1};  // the node or position at which the graph is malformed
  int64_t frontier_ = 0, columns_ = 0, block_ = 1;
  int hop_ = 0;
};

using SampleOutput = std::tuple<std::vector<Tensor>, std::vector<Tensor>, std::vector<Tensor>, std::vector<Tensor>,
                                std::vector<Tensor>, Tensor, Tensor>;

// The room of outputs was a guess, but who keeps a small batch must not keep the room of a large one.
Tensor to_tensor(PooledArray<int64_t>&& array, const std::vector<int64_t>& sizes) {
  int64_t used = 1;
  for (const int64_t size : sizes) used *= size;
  array.fit(used);
  return to_tensor(std::move(array), sizes, ScalarType::Long);
}

Tensor to_tensor(const std::vector<int64_t>& values) {
  PooledArray<int64_t> array(static_cast<int64_t>(values.size()));
  std::copy(values.begin(), values.end(), array.data());
  return to_tensor(std::move(array), {1, static_cast<int64_t>(values.size())});
}

// Sources, and below them (with_col) the destination of each edge: the number of its column within the hop when hops
// have columns of their own (layers), else its local id.
template <typename Sampler>
Tensor edge_index(Sampler& sampler, const Request& request, bool with_col) {
  const int64_t num_edges = sampler.num_edges;
  if (with_col) {
    sampler.rows.reserve(num_edges, 2 * num_edges);
    int64_t* col = sampler.rows.data() + num_edges;
    int64_t column = 0, columns = 0;
    for (size_t hop = 0; hop < request.fanouts.size(); ++hop) {
      const int64_t first = request.layers ? column : 0;
      columns = request.layers ? columns + sampler.nodes_per_hop[hop] : sampler.nodes_per_hop[hop];
      for (const int64_t end = column + columns; column < end; ++column) {
        std::fill(col + sampler.colptr[column], col + sampler.colptr[column + 1], column - first);
      }
    }
  }
  return to_tensor(std::move(sampler.rows), {with_col ? 2 : 1, num_edges});
}

template <typename Id, typename EdgeId>
SampleOutput sample(const Request& request, const Tensor& row, const Tensor* edge_id, const Tensor& seeds,
                    bool with_edge_id, bool with_col) {
  NeighborSampler<Id, EdgeId> sampler(request, row, edge_id, with_edge_id);
  dispatch_index(seeds.scalar_type(), [&](auto* tag) {
    using Seed = std::remove_pointer_t<decltype(tag)>;
    sampler.run(static_cast<const Seed*>(seeds.const_data_ptr()), seeds.numel());
  });
  SampleOutput out{{}, {}, {}, {}, {}, to_tensor(sampler.nodes_per_hop), to_tensor(sampler.edges_per_hop)};
  std::get<2>(out).push_back(edge_index(sampler, request, with_col));
  std::get<0>(out).push_back(to_tensor(std::move(sampler.nodes), {sampler.num_nodes}));
  std::get<1>(out).push_back(to_tensor(std::move(sampler.colptr), {sampler.num_columns + 1}));
  if (with_edge_id) {
    std::get<3>(out).push_back(to_tensor(std::move(sampler.edges), {sampler.num_edges}));
  }
  return out;
}

// See torch_gnnscale.ops.sample_neighbors, which checks the arguments.
SampleOutput sample_neighbors(const std::vector<Tensor>& colptr, const std::vector<Tensor>& row,
                              const std::vector<std::optional<Tensor>>& edge_id,
                              const std::vector<std::optional<Tensor>>& weight,
                              const std::vector<std::optional<Tensor>>& node_time,
                              const std::vector<std::optional<Tensor>>& edge_time, const std::vector<int64_t>& src_type,
                              const std::vector<int64_t>& dst_type, const std::vector<Tensor>& seeds,
                              const std::vector<std::optional<Tensor>>& seed_time, const std::vector<int64_t>& fanouts,
                              int64_t key, bool replace, bool disjoint, bool last, bool layers, bool with_edge_id,
                              bool with_col, int64_t threads) {
  STD_TORCH_CHECK(colptr.size() == 1 && row.size() == 1 && edge_id.size() == 1 && seeds.size() == 1,
                  "expected one relation, got ", colptr.size());
  const auto none = [](const std::vector<std::optional<Tensor>>& list) {
    return std::none_of(list.begin(), list.end(), [](const auto& entry) { return entry.has_value(); });
  };
  STD_TORCH_CHECK(none(weight) && none(node_time) && none(edge_time) && none(seed_time) && !disjoint && !last,
                  "weights, times and disjoint trees are not implemented");
  STD_TORCH_CHECK(src_type.size() == 1 && dst_type.size() == 1 && src_type[0] == dst_type[0], "expected one node type");
  const Request request{static_cast<const int64_t*>(colptr[0].const_data_ptr()),
                        colptr[0].numel() - 1,
                        row[0].numel(),
                        fanouts,
                        static_cast<uint64_t>(key),
                        replace,
                        layers,
                        threads};
  return dispatch_index(row[0].scalar_type(), [&](auto* tag) {
    using Id = std::remove_pointer_t<decltype(tag)>;
    if (!edge_id[0].has_value()) {
      return sample<Id, void>(request, row[0], nullptr, seeds[0], with_edge_id, with_col);
    }
    return dispatch_index(edge_id[0]->scalar_type(), [&](auto* edge_tag) {
      using EdgeId = std::remove_pointer_t<decltype(edge_tag)>;
      return sample<Id, EdgeId>(request, row[0], &*edge_id[0], seeds[0], with_edge_id, with_col);
    });
  });
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("sample_neighbors", TORCH_BOX(&sample_neighbors)); }

}  // namespace
}  // namespace gnnscale
