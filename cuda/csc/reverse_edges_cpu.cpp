// The reverse of each edge of a relation, on the CPU.
//
// The columns of one relation are walked in order. If those of the other one are sorted by source, the edges from r
// meet the sources of column r one after another: one pointer per node finds them all. Columns that are not sorted are
// sorted into a copy. Memory besides input and output: 8 bytes per node and task; of such a copy 8 or 16 bytes per
// edge, and 8 more if edges have times.
#include <algorithm>
#include <atomic>
#include <optional>
#include <tuple>
#include <type_traits>

#include "../macros.h"
#include "../memory/checks.h"
#include "../memory/tensor.h"

namespace gnnscale {
namespace {

constexpr int64_t kMaxTasks = 8;     // few, because each has a pointer for every node
constexpr int64_t kGrain = 1 << 16;  // edges worth a task
constexpr int64_t kAhead = 12;       // edges between a prefetch and what it is for
constexpr int64_t kLooked = 64;      // edges whose reverses are looked for before anything is sorted
constexpr int64_t kLong = 1 << 12;   // edges of a column that is not searched for one of these

// The ids of stored edges: int32 or int64, of any stride; without data, their positions.
struct EdgeIds {
  const char* data = nullptr;
  int64_t stride = 0;  // in bytes
  bool narrow = false;

  static EdgeIds of(const std::optional<Tensor>& ids) {
    if (!ids.has_value()) return {};
    const bool narrow = dtype_of(*ids) == ScalarType::Int;
    return {static_cast<const char*>(ids->const_data_ptr()), ids->stride(0) * (narrow ? 4 : 8), narrow};
  }

  int64_t operator[](int64_t position) const {
    if (data == nullptr) return position;
    const char* const at = data + position * stride;
    return narrow ? *reinterpret_cast<const int32_t*>(at) : *reinterpret_cast<const int64_t*>(at);
  }
};

// The edges of a relation.
template <typename Id>
struct Columns {
  const int64_t* colptr;
  int64_t num_dst, num_edges;
  const Id* row;
  int64_t row_stride;
  EdgeIds id;
  const int64_t* time;  // null: edges have no times

  Id source(int64_t position) const { return row[position * row_stride]; }

  // The columns [first, second) of a task.
  std::pair<int64_t, int64_t> of_task(int64_t task, int64_t tasks) const {
    const auto column = [&](int64_t edge) { return std::lower_bound(colptr, colptr + num_dst, edge) - colptr; };
    const auto [from, to] = part(num_edges, task, tasks);
    return {task == 0 ? 0 : column(from), task + 1 == tasks ? num_dst : column(to)};
  }

  bool is_sorted(int64_t column) const {
    bool falls = false;
    for (int64_t i = colptr[column] + 1; i < colptr[column + 1]; ++i) falls |= source(i) < source(i - 1);
    return !falls;
  }

  bool is_sorted_by_source(int64_t tasks) const {
    std::atomic<bool> sorted{true};
    run_tasks(tasks, [&](int64_t task) {
      const auto [from, to] = of_task(task, tasks);
      for (int64_t column = from; column < to && sorted.load(std::memory_order_relaxed); ++column) {
        if (!is_sorted(column)) sorted.store(false, std::memory_order_relaxed);
      }
    });
    return sorted.load();
  }
};

// Whether some edge of a few, spread over all edges, surely has no reverse, as in graphs whose edges lead one way only.
template <typename Id>
bool finds_one_without_reverse(const Columns<Id>& edges, const Columns<Id>& reverse) {
  const int64_t looked = std::min(kLooked, edges.num_edges);
  bool missing = false;
  for (int64_t k = 0; k < looked; ++k) {
    const int64_t position = part(edges.num_edges, k, looked).first;
    const int64_t column = std::upper_bound(edges.colptr, edges.colptr + edges.num_dst, position) - edges.colptr - 1;
    const int64_t source = edges.source(position);
    if (source < 0 || source >= reverse.num_dst) return false;  // Walk raises
    const int64_t begin = reverse.colptr[source], end = reverse.colptr[source + 1];
    if (end - begin > kLong) continue;
    bool found = false;
    for (int64_t i = begin; i < end; ++i) found |= static_cast<int64_t>(reverse.source(i)) == column;
    missing |= !found;
  }
  return missing;
}

// A copy of columns, each sorted by source, stably.
template <typename Id, typename Out>
class SortedCopy {
 public:
  Columns<Id> of(const Columns<Id>& stored, int64_t tasks) {
    edges_.reserve(0, stored.num_edges);
    if (stored.time != nullptr) time_.reserve(0, stored.num_edges);
    run_tasks(tasks, [&](int64_t task) {
      const auto [from, to] = stored.of_task(task, tasks);
      Vector<std::pair<Id, int64_t>> longer;  // sources, and their places in a column
      for (int64_t column = from; column < to; ++column) sort(stored, column, longer);
    });
    Columns<Id> sorted = stored;
    sorted.row = &edges_.data()->source;
    sorted.row_stride = sizeof(Edge) / sizeof(Id);
    sorted.id = {reinterpret_cast<const char*>(&edges_.data()->id), sizeof(Edge), sizeof(Out) == 4};
    sorted.time = time_.data();
    return sorted;
  }

 private:
  static constexpr int64_t kShort = 48;  // edges of a column that are sorted by comparing each with each

  struct Edge {
    Id source;
    Out id;
  };

  void sort(const Columns<Id>& stored, int64_t column, Vector<std::pair<Id, int64_t>>& longer) {
    const int64_t begin = stored.colptr[column], count = stored.colptr[column + 1] - begin;
    const auto copy = [&](int64_t from, int64_t to) {
      edges_[begin + to] = {stored.source(begin + from), static_cast<Out>(stored.id[begin + from])};
      if (stored.time != nullptr) time_[begin + to] = stored.time[begin + from];
    };
    if (count <= kShort) {
      Id source[kShort], rank[kShort];
      for (int64_t i = 0; i < count; ++i) source[i] = stored.source(begin + i);
      for (int64_t i = 0; i < count; ++i) {  // no branches: the compiler makes vectors of it
        Id before = 0;
        for (int64_t j = 0; j < i; ++j) {
          const Id later = source[j] > source[i];
          rank[j] += later;
          before += 1 - later;
        }
        rank[i] = before;
      }
      for (int64_t i = 0; i < count; ++i) copy(i, rank[i]);
      return;
    }
    longer.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) longer[i] = {stored.source(begin + i), i};
    std::sort(longer.begin(), longer.end());
    for (int64_t i = 0; i < count; ++i) copy(longer[i].second, i);
  }

  PooledArray<Edge> edges_;
  PooledArray<int64_t> time_;
};

// Writes to table[id of an edge of `reverse`] the id of the edge of `edges` that leads the other way. The columns of
// `reverse` are sorted by source.
template <typename Id, typename Out>
class Walk {
 public:
  Walk(const Columns<Id>& edges, const Columns<Id>& reverse, Out* table, int64_t size)
      : edges_(edges), reverse_(reverse), table_(table), size_(static_cast<uint64_t>(size)) {}

  // Returns whether each edge has a reverse; else the table has no meaning.
  bool run(int64_t tasks) {
    std::vector<PooledArray<int64_t>> next;  // per task and node r: where in column r of `reverse` its next source is
    for (int64_t task = 0; task < tasks; ++task) next.emplace_back(reverse_.num_dst);
    run_tasks(tasks, [&](int64_t task) {
      const auto [from, to] = edges_.of_task(task, tasks);
      point(from, next[task].data());
      for (int64_t column = from; column < to && !failed_.load(std::memory_order_relaxed); ++column) {
        if (!walk(column, next[task].data())) failed_.store(true, std::memory_order_relaxed);
      }
      if (passes_an_end(next[task].data())) failed_.store(true);
    });
    return !failed_.load();
  }

  // Raises if `run` found a source that is no node, or an id without an entry.
  void check() const {
    STD_TORCH_CHECK(bad_source_.load() < 0, "the graph is malformed: row[", bad_source_.load(), "] is not in [0, ",
                    reverse_.num_dst, ")");
    STD_TORCH_CHECK(!bad_id_.load(), "the graph is malformed: expected ids of edges in [0, ", size_, ")");
  }

 private:
  // Column r may hold sources less than `first`, the first column of a task: other tasks find these.
  void point(int64_t first, int64_t* next) const {
    for (int64_t r = 0; r < reverse_.num_dst; ++r) {
      int64_t low = reverse_.colptr[r], high = first == 0 ? low : reverse_.colptr[r + 1];
      while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        static_cast<int64_t>(reverse_.source(middle)) < first ? low = middle + 1 : high = middle;
      }
      next[r] = low;
    }
  }

  bool is_node(int64_t source) const { return static_cast<uint64_t>(source) < static_cast<uint64_t>(reverse_.num_dst); }

  bool walk(int64_t column, int64_t* next) {
    for (int64_t i = edges_.colptr[column]; i < edges_.colptr[column + 1]; ++i) {
      prefetch(i, next);
      const int64_t source = edges_.source(i);
      if (!is_node(source)) return bad_source_.store(i), false;
      const int64_t at = next[source]++;
      if (at >= reverse_.num_edges || static_cast<int64_t>(reverse_.source(at)) != column) return false;
      if (edges_.time != nullptr && edges_.time[i] != reverse_.time[at]) return false;
      const int64_t id = reverse_.id[at];
      if (static_cast<uint64_t>(id) >= size_) return bad_id_.store(true), false;
      // Atomic: malformed graphs may have an id twice.
      std::atomic_ref<Out>(table_[id]).store(static_cast<Out>(edges_.id[i]), std::memory_order_relaxed);
    }
    return true;
  }

  // Prefetches what three later edges read and write.
  GNNSCALE_INLINE void prefetch(int64_t i, const int64_t* next) const {
    if (i + 3 * kAhead >= edges_.num_edges) return;
    if (const int64_t source = edges_.source(i + 3 * kAhead); is_node(source)) GNNSCALE_PREFETCH_WRITE(next + source);
    if (const int64_t source = edges_.source(i + 2 * kAhead); is_node(source)) {
      GNNSCALE_PREFETCH(reverse_.row + next[source] * reverse_.row_stride);
    }
    if (const int64_t source = edges_.source(i + kAhead); is_node(source) && next[source] < reverse_.num_edges) {
      GNNSCALE_PREFETCH_WRITE(table_ + reverse_.id[next[source]]);
    }
  }

  // Whether a pointer has left its column. If none has, all edges met edges of their own; there are as many of either.
  bool passes_an_end(const int64_t* next) const {
    bool passes = false;
    for (int64_t r = 0; r < reverse_.num_dst; ++r) passes |= next[r] > reverse_.colptr[r + 1];
    return passes;
  }

  const Columns<Id>&edges_, &reverse_;
  Out* const table_;
  const uint64_t size_;
  std::atomic<bool> failed_{false}, bad_id_{false};
  std::atomic<int64_t> bad_source_{-1};
};

using OptionalTensor = std::optional<Tensor>;

void check_edges(const char* name, const Tensor& colptr, const Tensor& row, const OptionalTensor& edge_id,
                 const OptionalTensor& time) {
  check_int64(name, colptr);
  check_ids(name, row);
  check_pointer(name, colptr, row.numel());
  if (edge_id.has_value()) check_ids(name, *edge_id, row.numel());
  check_int64(name, time, row.numel());
}

template <typename Id>
Columns<Id> columns(const Tensor& colptr, const Tensor& row, const OptionalTensor& edge_id,
                    const OptionalTensor& time) {
  return {static_cast<const int64_t*>(colptr.const_data_ptr()),
          colptr.numel() - 1,
          row.numel(),
          static_cast<const Id*>(row.const_data_ptr()),
          row.stride(0),
          EdgeIds::of(edge_id),
          data_or_null(time)};
}

// See torch_gnnscale.ops.reverse_edges, which checks the arguments. Without a reverse for each edge, the table has no
// meaning, and may be empty.
std::tuple<Tensor, bool> reverse_edges(const Tensor& colptr, const Tensor& row, const OptionalTensor& edge_id,
                                       const OptionalTensor& time, const Tensor& reverse_colptr,
                                       const Tensor& reverse_row, const OptionalTensor& reverse_edge_id,
                                       const OptionalTensor& reverse_time, int64_t size, bool int32, int64_t threads) {
  check_edges("edges", colptr, row, edge_id, time);
  check_edges("reverse", reverse_colptr, reverse_row, reverse_edge_id, reverse_time);
  check_count("size", size);
  STD_TORCH_CHECK(!int32 || size <= int64_t{1} << 31, "expected ids in int64 for ", size, " of them");
  STD_TORCH_CHECK(dtype_of(row) == dtype_of(reverse_row) && row.numel() == reverse_row.numel() &&
                      time.has_value() == reverse_time.has_value(),
                  "expected as many edges of one type, all with times or none, in both directions");
  const ScalarType type = int32 ? ScalarType::Int : ScalarType::Long;
  const int64_t tasks = std::min(num_tasks(row.numel(), kGrain, threads), kMaxTasks);
  return dispatch_index(dtype_of(row), [&](auto* id_tag) {
    return dispatch_index(type, [&](auto* tag) {
      using Id = std::remove_pointer_t<decltype(id_tag)>;
      using Out = std::remove_pointer_t<decltype(tag)>;
      const Columns<Id> edges = columns<Id>(colptr, row, edge_id, time);
      Columns<Id> reverse = columns<Id>(reverse_colptr, reverse_row, reverse_edge_id, reverse_time);
      if (finds_one_without_reverse(edges, reverse)) {
        return std::tuple(to_tensor(PooledArray<Out>(0), {0}, type), false);
      }
      SortedCopy<Id, Out> copy;
      if (!reverse.is_sorted_by_source(tasks)) reverse = copy.of(reverse, tasks);
      PooledArray<Out> table(size);
      std::fill_n(table.data(), size, Out{-1});
      Walk<Id, Out> walk(edges, reverse, table.data(), size);
      const bool complete = walk.run(tasks);
      walk.check();
      return std::tuple(to_tensor(std::move(table), {size}, type), complete);
    });
  });
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("reverse_edges", TORCH_BOX(&reverse_edges)); }

}  // namespace
}  // namespace gnnscale
