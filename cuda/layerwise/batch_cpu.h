// A layer-wise batch on the CPU: its nodes, and its weighted edges, which are appended column by column.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../memory/workspace.h"
#include "../sample/relabelling_cpu.h"
#include "request.h"
#include "row_weights_cpu.h"

namespace gnnscale {

// A drawn edge of a column: its source, its stored position, the cell where the source's local id is looked up, and the
// correction c_v.
struct DrawnEdge {
  int64_t source, position, cell;
  double correction;
};

class LayerBatch {
 public:
  const LayerRequest& request;
  WorkspaceLease work;
  Nodes nodes;  // without include_dst: a block for each hop, with local ids that begin at 0
  PooledArray<int64_t> colptr, row, edge_id;
  PooledArray<float> weight;
  int64_t columns = 0, edges = 0;
  std::vector<int64_t> edges_per_hop;
  int64_t begin = 0, end = 0;  // the current hop expands nodes [begin, end)

  LayerBatch(const LayerRequest& asked, const int64_t* seeds, int64_t count)
      : request(asked),
        work(asked.graph.num_src),
        reader_(request.graph),
        row_weights_(asked.aggregation, asked.weights) {
    for (int64_t i = 0; i < count; ++i) {
      STD_TORCH_CHECK(static_cast<uint64_t>(seeds[i]) < static_cast<uint64_t>(asked.graph.num_src),
                      "seeds are out of range");
    }
    work->prepare(asked.graph.num_src, asked.graph.num_src + count);
    room_for_nodes(count + 1);
    room_for_edges(1);
    std::copy_n(seeds, count, nodes.id.data());
    enter_nodes(cells(), seeds, count);
    nodes.count = end = count;
    nodes.per_hop.push_back(count);
    colptr.reserve(0, 1);
    colptr[0] = 0;
  }
  ~LayerBatch() { start_block(); }

  // The stored positions [first, last) of a node's edges; an empty range if they are malformed: end_hop() throws then.
  std::pair<int64_t, int64_t> stored(int64_t node) { return reader_.stored(node); }

  // The source at a stored position, below num_src; 0 if it is malformed: end_hop() throws then.
  template <typename Id>
  int64_t source_at(int64_t position) {
    const auto id =
        static_cast<int64_t>(*reinterpret_cast<const Id*>(request.graph.row + position * request.graph.row_stride));
    if (static_cast<uint64_t>(id) < static_cast<uint64_t>(request.graph.num_src)) [[likely]]
      return id;
    bad_row_ = position;
    return 0;
  }

  // Notes the position of a stored source that is not in [0, num_src): end_hop() throws then. -1: there is none.
  void note_bad_row(int64_t position) {
    if (position >= 0) bad_row_ = position;
  }

  // Prefetches what add_column() reads for an edge from a node.
  GNNSCALE_INLINE void prefetch(int64_t node) const { GNNSCALE_PREFETCH_WRITE(work->map + node); }

  void begin_hop() {
    if (columns + (end - begin) + 1 > column_room_) {
      column_room_ = std::max(2 * column_room_, columns + (end - begin) + 1);
      colptr.reserve(columns + 1, column_room_);
    }
    edges_before_ = edges;
    if (request.include_dst) return;
    start_block();
    work->prepare(request.graph.num_src, request.graph.num_src);
    block_ = nodes.count;
  }

  // The cells of the block's nodes, by node.
  MapCells cells() const { return {work->map, work->base}; }

  // The local id of a node in the block, or UINT32_MAX.
  uint32_t local_id_of(int64_t node) const {
    const uint32_t local = local_id(work->map[node], work->base);
    return local < nodes.count - block_ ? local : UINT32_MAX;
  }

  // Appends a column with `count` drawn edges of the list at the stored positions [first, last). Local ids are looked
  // up in `locals`: in cells(), or in others, of which enter_since() tells cells() before the hop ends.
  template <typename Id>
  void add_column(const MapCells& locals, int64_t first, int64_t last, const DrawnEdge* drawn, int64_t count) {
    room_for_edges(count);
    room_for_nodes(nodes.count + count + 1);
    uint32_t local = static_cast<uint32_t>(nodes.count - block_);
    int64_t* const found = nodes.id.data() + block_;
    for (int64_t k = 0; k < count; ++k) {
      found[local] = drawn[k].source;  // kept if locals.add() counts the node as new, else overwritten or never read
      row[edges + k] = locals.add(drawn[k].cell, local);
      edge_id[edges + k] = edge_id_at(drawn[k].position);
    }
    nodes.count = block_ + local;
    if (count > 0) weigh<Id>(first, last, drawn, count);
    edges += count;
    colptr[++columns] = edges;
  }

  // Enters the nodes that were found after the first `known` ones into cells().
  void enter_since(int64_t known) {
    for (int64_t i = known; i < nodes.count; ++i) {
      work->map[nodes.id[i]] = work->base + static_cast<uint32_t>(i - block_);
    }
  }

  void end_hop() {
    reader_.check_pointers();
    if (bad_row_ >= 0) reader_.corrupt.store(bad_row_);
    reader_.check_rows();
    nodes.per_hop.push_back(nodes.count - end);
    edges_per_hop.push_back(edges - edges_before_);
    begin = request.layers && request.include_dst ? 0 : end;
    end = nodes.count;
  }

 private:
  // Begins a new block: no node has a local id.
  void start_block() { work->base += static_cast<uint32_t>(nodes.count - block_); }

  void room_for_nodes(int64_t count) {
    if (count <= node_room_) return;
    node_room_ = std::max(2 * node_room_, count);
    nodes.id.reserve(nodes.count, node_room_);
  }

  void room_for_edges(int64_t more) {
    if (edges + more <= edge_room_) return;
    edge_room_ = std::max(2 * edge_room_, edges + more);
    row.reserve(edges, edge_room_);
    edge_id.reserve(edges, edge_room_);
    weight.reserve(edges, edge_room_);
  }

  int64_t edge_id_at(int64_t position) const {
    const Relation& graph = request.graph;
    if (graph.edge_id == nullptr) return position;
    const char* const at = graph.edge_id + position * graph.edge_id_stride;
    return request.edge_id_wide ? *reinterpret_cast<const int64_t*>(at) : *reinterpret_cast<const int32_t*>(at);
  }

  template <typename Id>
  void weigh(int64_t first, int64_t last, const DrawnEdge* drawn, int64_t count) {
    const auto degree_of = [&](int64_t node) {
      const auto [from, to] = stored(node);
      return to - from;
    };
    row_weights_.weigh(
        last - first, count, [&](int64_t k) { return drawn[k].correction; },
        [&](int64_t k) { return degree_of(drawn[k].source); },
        [&](int64_t s) { return degree_of(source_at<Id>(first + s)); }, weight.data() + edges);
  }

  RelationReader reader_;
  int64_t bad_row_ = -1;
  RowWeights row_weights_;
  int64_t block_ = 0, edges_before_ = 0;  // the first node of the current block; the first edge of the current hop
  int64_t column_room_ = 1, edge_room_ = 0, node_room_ = 0;
};

}  // namespace gnnscale
