// A relation of the graph as the sampler reads it on the CPU, and which stored neighbors of a node are candidates.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "../memory/tensor.h"
#include "../pick.h"

namespace gnnscale {

// Reads ids and edge ids of stored edges: positions[0..count) to ids and, unless it is null, edge_ids. An id outside
// [0, num_src) is replaced by 0 and its position stored in `corrupt`. Meanwhile `pending` is prefetched.
using ReadEdges = void (*)(const struct Relation&, const int64_t* positions, int64_t count, int64_t* ids,
                           int64_t* edge_ids, std::atomic<int64_t>& corrupt, class PendingPicks& pending);

struct Relation {
  const int64_t* colptr;
  int64_t first;  // the id of the node whose column is stored first
  int64_t num_src, num_edges;
  const char *row, *edge_id;  // edge_id null: an edge's id is its position
  int64_t row_stride, edge_id_stride;
  bool edge_id_apart;  // edge ids are asked for, and are not stored beside the row entries
  ReadEdges read;
  int64_t (*id_at)(const Relation&, int64_t position);
  const int64_t *weight, *time;              // [num_edges] or null, see torch_gnnscale.ops.sample_neighbors
  const int64_t *exclude_src, *exclude_dst;  // [num_excluded]: pairs sorted by destination, then source
  int64_t num_excluded;
  int number, src, dst, reverse;  // its own, its node types' and its reverse relation's numbers
  const int64_t* fanouts;         // of each hop
  int incoming = -1;              // its place in IncomingRelations of its destinations, or -1
  bool sources_differ = false;    // known: no node is the source of two of its edges
  bool one_each = false;          // known: edge i is the only one into node i

  // Where a node's entry of colptr is.
  const int64_t* pointer_of(int64_t node) const { return colptr + (node - first); }

  // Whether picks need more than a range of positions.
  bool is_plain() const { return weight == nullptr && num_excluded == 0; }

  // Prefetches what `read` reads.
  GNNSCALE_INLINE void prefetch(const int64_t* positions, int64_t count) const {
    for (int64_t k = 0; k < count; ++k) GNNSCALE_PREFETCH(row + positions[k] * row_stride);
    if (!edge_id_apart) return;
    for (int64_t k = 0; k < count; ++k) GNNSCALE_PREFETCH(edge_id + positions[k] * edge_id_stride);
  }
};

template <typename Id>
int64_t read_id(const Relation& relation, int64_t position) {
  return static_cast<int64_t>(*reinterpret_cast<const Id*>(relation.row + position * relation.row_stride));
}

// Picks whose stored edges are prefetched a few at a time while other work is done: many prefetches in a row stall the
// processor if they miss the TLB.
class PendingPicks {
 public:
  static constexpr int64_t kSome = 8;

  explicit PendingPicks(const Relation& relation) : relation_(relation) {}

  void start(const int64_t* positions, int64_t count) {
    next_ = positions;
    left_ = count;
  }
  GNNSCALE_INLINE void prefetch_some() {
    if (left_ >= kSome) prefetch(kSome);
  }
  GNNSCALE_INLINE void prefetch_rest() { prefetch(left_); }

 private:
  GNNSCALE_INLINE void prefetch(int64_t count) {
    relation_.prefetch(next_, count);
    next_ += count;
    left_ -= count;
  }
  const Relation& relation_;
  const int64_t* next_ = nullptr;
  int64_t left_ = 0;
};

template <typename Id, typename EdgeId, int64_t stride>  // EdgeId void: an edge's id is its position; stride 0: any
void read_edges(const Relation& relation, const int64_t* positions, int64_t count, int64_t* ids, int64_t* edge_ids,
                std::atomic<int64_t>& corrupt, PendingPicks& pending) {
  // Locals: the compiler cannot know that no store changes the members.
  const char *const row = relation.row, *const edge_id = relation.edge_id;
  const int64_t row_stride = stride > 0 ? stride : relation.row_stride;
  const int64_t edge_id_stride = stride > 0 ? stride : relation.edge_id_stride;
  const uint64_t num_src = static_cast<uint64_t>(relation.num_src);
  const auto read = [&](int64_t k, auto with_edge_id) GNNSCALE_INLINE_LAMBDA {
    const int64_t position = positions[k];
    int64_t id = static_cast<int64_t>(*reinterpret_cast<const Id*>(row + position * row_stride));
    if (static_cast<uint64_t>(id) >= num_src) [[unlikely]] {
      corrupt.store(position);
      id = 0;
    }
    ids[k] = id;
    if constexpr (!with_edge_id) {
    } else if constexpr (std::is_void_v<EdgeId>) {
      edge_ids[k] = position;
    } else {
      edge_ids[k] = static_cast<int64_t>(*reinterpret_cast<const EdgeId*>(edge_id + position * edge_id_stride));
    }
  };
  const auto read_all = [&](auto with_edge_id) GNNSCALE_INLINE_LAMBDA {
    int64_t k = 0;
    for (; k + PendingPicks::kSome <= count; k += PendingPicks::kSome) {
      pending.prefetch_some();
#pragma GCC unroll 8
      for (int64_t j = 0; j < PendingPicks::kSome; ++j) read(k + j, with_edge_id);
    }
    for (; k < count; ++k) read(k, with_edge_id);
  };
  if (edge_ids == nullptr) {
    read_all(std::false_type());
  } else {
    read_all(std::true_type());
  }
}

// A relation that is read by several threads, and the node or position at which one of them found it malformed.
struct RelationReader {
  const Relation& relation;
  std::atomic<int64_t> corrupt{-1};

  explicit RelationReader(const Relation& of) : relation(of) {}

  // Where the stored list of a node begins and ends; an empty one, and the node in `corrupt`, if that cannot be.
  std::pair<int64_t, int64_t> stored(int64_t node) {
    const int64_t* const pointer = relation.pointer_of(node);
    const int64_t first = pointer[0], last = pointer[1];
    if (first >= 0 && last >= first && last <= relation.num_edges) return {first, last};
    corrupt.store(node);
    return {0, 0};
  }

  void check_pointers() const {
    const int64_t node = corrupt.load();
    if (node < 0) return;
    const int64_t column = node - relation.first;
    STD_TORCH_CHECK(false, "the graph is malformed: colptr[", column, "] = ", relation.colptr[column], ", colptr[",
                    column + 1, "] = ", relation.colptr[column + 1], " with ", relation.num_edges, " edges");
  }

  void check_rows() const {
    const int64_t position = corrupt.load();
    if (position < 0) return;
    STD_TORCH_CHECK(false, "the graph is malformed: row[", position, "] = ", relation.id_at(relation, position),
                    " in a graph of ", relation.num_src, " nodes");
  }
};

// A relation of tensors; `first`, `num_src`, weights, times, exclusions and types are the caller's to set.
inline Relation to_relation(const Tensor& colptr, const Tensor& row, const std::optional<Tensor>& edge_id,
                            bool with_edge_id) {
  Relation relation{};
  relation.colptr = static_cast<const int64_t*>(colptr.const_data_ptr());
  relation.num_edges = row.numel();
  relation.row = static_cast<const char*>(row.const_data_ptr());
  dispatch_index(dtype_of(row), [&](auto* tag) {
    using Id = std::remove_pointer_t<decltype(tag)>;
    relation.row_stride = row.stride(0) * static_cast<int64_t>(sizeof(Id));
    relation.id_at = read_id<Id>;
    relation.read = relation.row_stride == sizeof(Id) ? read_edges<Id, void, sizeof(Id)> : read_edges<Id, void, 0>;
    if (!edge_id.has_value()) return;
    dispatch_index(dtype_of(*edge_id), [&](auto* edge_tag) {
      using EdgeId = std::remove_pointer_t<decltype(edge_tag)>;
      constexpr int64_t kPair = sizeof(Id) + sizeof(EdgeId);
      relation.edge_id = static_cast<const char*>(edge_id->const_data_ptr());
      relation.edge_id_stride = edge_id->stride(0) * static_cast<int64_t>(sizeof(EdgeId));
      relation.edge_id_apart = with_edge_id && relation.edge_id != relation.row + sizeof(Id);
      const bool pairs = relation.row_stride == kPair && relation.edge_id_stride == kPair;
      relation.read = pairs ? read_edges<Id, EdgeId, kPair> : read_edges<Id, EdgeId, 0>;
    });
  });
  return relation;
}

// The candidates of a node: stored positions [first, first + length) without `excluded` of them.
struct CandidateRange {
  int64_t first, length, excluded;
  int64_t count() const { return length - excluded; }
};

// Appends to `positions` those of [first, first + length) at which a node's list holds an excluded source.
inline void find_excluded(const Relation& relation, int64_t node, int64_t first, int64_t length,
                          Vector<int64_t>& positions) {
  const ExcludedPairs all{relation.exclude_src, relation.exclude_dst, 0, relation.num_excluded};
  const ExcludedPairs pairs = all.into(node);
  if (pairs.begin == pairs.end) return;
  for (int64_t position = first; position < first + length; ++position) {
    if (pairs.has(relation.id_at(relation, position))) positions.push_back(position);
  }
}

// The candidates of a node among the stored positions [first, last), which its time allows: those that are not excluded
// or, with `last_only`, the last `fanout` of these. `positions` receives the excluded positions in their range.
inline CandidateRange find_candidates(const Relation& relation, int64_t node, int64_t first, int64_t last,
                                      int64_t fanout, bool last_only, Vector<int64_t>& positions) {
  positions.clear();
  if (relation.num_excluded > 0) find_excluded(relation, node, first, last - first, positions);
  if (last_only && relation.time != nullptr && fanout >= 0 && last - first > fanout) {
    if (positions.empty()) return {last - fanout, fanout, 0};
    auto excluded = positions.end();
    first = begin_of_last(first, last, fanout, [&](int64_t position) {
      if (excluded == positions.begin() || *(excluded - 1) != position) return false;
      --excluded;
      return true;
    });
    positions.erase(positions.begin(), excluded);
  }
  return {first, last - first, static_cast<int64_t>(positions.size())};
}

}  // namespace gnnscale
