// COO to CSC: a parallel, stable counting sort by destination in two passes, whose random writes stay in the caches.
//
// Pass 1 distributes the edges over buckets of consecutive destinations. A bucket is the range of the output that its
// edges fill in the end; the low bits of their destinations are stored in an array of their own. Pass 2 sorts each
// bucket by destination through a copy of it. Memory besides input and output: two bytes per edge (four if a bucket
// holds more than 2^16 destinations), and per thread a copy of the largest bucket that it sorts. Graphs that the caches
// hold are sorted in one pass without further memory.
#include <atomic>
#include <cstring>
#include <memory>

#include "../macros.h"
#include "../memory/checks.h"
#include "../memory/tensor.h"

namespace gnnscale {
namespace {

constexpr int64_t kMaxBuckets = 1024;
constexpr int64_t kGrain = 1 << 16;
constexpr int kLine = 16;          // edges that are collected for a bucket before they are written
constexpr int64_t kFew = 1 << 15;  // edges and destinations together that are sorted in one pass

template <typename Id>
struct StoredEdge {  // one row of the output
  Id src, edge_id;
};

// Edges from sources in [0, num_src) to destinations in [0, num_dst), as the caller says.
template <typename Input>
struct Ends {
  const Input *src, *dst;
  int64_t num_edges, num_src, num_dst;

  bool inside(int64_t edge) const {
    return static_cast<uint64_t>(src[edge]) < static_cast<uint64_t>(num_src) &&
           static_cast<uint64_t>(dst[edge]) < static_cast<uint64_t>(num_dst);
  }
};

// Returns whether all ends are in range; else the output has no meaning.
template <typename Input, typename Id>
bool sort_few_edges(const Ends<Input>& ends, int64_t* colptr, StoredEdge<Id>* edges) {
  const int64_t num_dst = ends.num_dst;
  std::fill(colptr, colptr + num_dst + 1, 0);
  for (int64_t e = 0; e < ends.num_edges; ++e) {
    if (!ends.inside(e)) return false;
    ++colptr[ends.dst[e] + 1];
  }
  for (int64_t i = 0; i < num_dst; ++i) colptr[i + 1] += colptr[i];
  for (int64_t e = 0; e < ends.num_edges; ++e) {
    edges[colptr[ends.dst[e]]++] = {static_cast<Id>(ends.src[e]), static_cast<Id>(e)};
  }
  std::copy_backward(colptr, colptr + num_dst, colptr + num_dst + 1);  // the loop moved each to the next one's value
  colptr[0] = 0;
  return true;
}

// Returns whether all ends are in range; else the output has no meaning.
template <typename Input, typename Id, typename Low>
bool sort_many_edges(const Ends<Input>& ends, int shift, int64_t threads, int64_t* colptr, StoredEdge<Id>* edges) {
  const Input *src = ends.src, *dst = ends.dst;
  const int64_t num_edges = ends.num_edges, num_dst = ends.num_dst;
  const int64_t buckets = (num_dst >> shift) + 1;
  const int64_t tasks = num_tasks(num_edges, kGrain, threads);
  PooledArray<Low> low(num_edges);

  // offsets[task][bucket]: where the task's next edge of the bucket goes.
  std::vector<int64_t> offsets(static_cast<size_t>(tasks * buckets), 0);
  std::atomic<bool> inside{true};
  run_tasks(tasks, [&](int64_t task) {
    const auto [begin, end] = part(num_edges, task, tasks);
    int64_t* counts = offsets.data() + task * buckets;
    for (int64_t e = begin; e < end; ++e) {
      if (!ends.inside(e)) return inside.store(false);
      ++counts[dst[e] >> shift];
    }
  });
  if (!inside.load()) return false;
  std::vector<int64_t> bucket_begin(static_cast<size_t>(buckets + 1), 0);
  int64_t sum = 0;
  for (int64_t bucket = 0; bucket < buckets; ++bucket) {
    bucket_begin[bucket] = sum;
    for (int64_t task = 0; task < tasks; ++task) {
      sum += std::exchange(offsets[task * buckets + bucket], sum);
    }
  }
  bucket_begin[buckets] = sum;

  const Input low_mask = (Input{1} << shift) - 1;
  run_tasks(tasks, [&](int64_t task) {
    const auto [begin, end] = part(num_edges, task, tasks);
    int64_t* next = offsets.data() + task * buckets;
    struct Line {
      StoredEdge<Id> edge[kLine];
      Low low[kLine];
    };
    const std::unique_ptr<Line[]> lines(new Line[buckets]);
    std::vector<uint8_t> fill(static_cast<size_t>(buckets), 0);
    const auto flush = [&](int64_t bucket, int count) {
      const int64_t to = next[bucket];
      const Line& line = lines[bucket];
      std::memcpy(edges + to, line.edge, static_cast<size_t>(count) * sizeof(StoredEdge<Id>));
      std::memcpy(low.data() + to, line.low, static_cast<size_t>(count) * sizeof(Low));
      next[bucket] = to + count;
    };
    for (int64_t e = begin; e < end; ++e) {
      const Input to = dst[e];
      const int64_t bucket = to >> shift;
      Line& line = lines[bucket];
      const int at = fill[bucket];
      line.edge[at] = {static_cast<Id>(src[e]), static_cast<Id>(e)};
      line.low[at] = static_cast<Low>(to & low_mask);
      if (at + 1 == kLine) {
        flush(bucket, kLine);
        fill[bucket] = 0;
      } else {
        fill[bucket] = static_cast<uint8_t>(at + 1);
      }
    }
    for (int64_t bucket = 0; bucket < buckets; ++bucket) flush(bucket, fill[bucket]);
  });

  std::atomic<int64_t> unclaimed{0};
  run_tasks(std::min(tasks, buckets), [&](int64_t) {
    Vector<int64_t> next(size_t{1} << shift);
    Vector<StoredEdge<Id>> copy;
    for (int64_t bucket; (bucket = unclaimed.fetch_add(1, std::memory_order_relaxed)) < buckets;) {
      const int64_t begin = bucket_begin[bucket], count = bucket_begin[bucket + 1] - begin;
      const int64_t first = bucket << shift, width = std::min(num_dst - first, int64_t{1} << shift);
      if (width <= 0) continue;
      copy.assign(edges + begin, edges + begin + count);
      std::fill(next.begin(), next.begin() + width, 0);
      const Low* bucket_low = low.data() + begin;
      for (int64_t i = 0; i < count; ++i) ++next[bucket_low[i]];
      int64_t position = begin;
      for (int64_t i = 0; i < width; ++i) {
        colptr[first + i] = position;
        position += std::exchange(next[i], position);
      }
      for (int64_t i = 0; i < count; ++i) edges[next[bucket_low[i]]++] = copy[i];
    }
  });
  colptr[num_dst] = num_edges;
  return true;
}

template <typename Input, typename Id>
std::tuple<Tensor, Tensor> build(const Tensor& src, const Tensor& dst, int64_t num_src, int64_t num_dst,
                                 ScalarType type, int64_t threads) {
  const int64_t num_edges = src.numel();
  const Ends<Input> ends{static_cast<const Input*>(src.const_data_ptr()),
                         static_cast<const Input*>(dst.const_data_ptr()), num_edges, num_src, num_dst};
  int shift = 0;
  while ((num_dst >> shift) >= kMaxBuckets) ++shift;
  PooledArray<int64_t> colptr(num_dst + 1);
  PooledArray<StoredEdge<Id>> edges(num_edges);
  const auto run = [&](auto* tag) {
    using Low = std::remove_pointer_t<decltype(tag)>;
    return sort_many_edges<Input, Id, Low>(ends, shift, threads, colptr.data(), edges.data());
  };
  const bool inside = num_edges <= kFew - std::min(num_dst, kFew) ? sort_few_edges(ends, colptr.data(), edges.data())
                      : shift <= 16                               ? run(static_cast<uint16_t*>(nullptr))
                                                                  : run(static_cast<uint32_t*>(nullptr));
  STD_TORCH_CHECK(inside, "expected sources in [0, ", num_src, ") and destinations in [0, ", num_dst, ")");
  return {to_tensor(std::move(colptr), {num_dst + 1}, ScalarType::Long),
          to_tensor(std::move(edges), {num_edges, 2}, type)};
}

// See torch_gnnscale.ops.coo_to_csc, which checks types and shapes.
std::tuple<Tensor, Tensor> coo_to_csc(const Tensor& src, const Tensor& dst, int64_t num_src, int64_t num_dst,
                                      bool int32, int64_t threads) {
  check_contiguous_ids("src", src);
  check_vector("dst", dst, dtype_of(src), src.numel());
  STD_TORCH_CHECK(num_src >= 0 && num_dst >= 0 && num_dst <= int64_t{1} << 40, "expected numbers of nodes, found ",
                  num_src, " and ", num_dst);
  const ScalarType type = int32 ? ScalarType::Int : ScalarType::Long;
  return dispatch_index(dtype_of(src), [&](auto* input) {
    return dispatch_index(type, [&](auto* id) {
      return build<std::remove_pointer_t<decltype(input)>, std::remove_pointer_t<decltype(id)>>(src, dst, num_src,
                                                                                                num_dst, type, threads);
    });
  });
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) { library.impl("coo_to_csc", TORCH_BOX(&coo_to_csc)); }

}  // namespace
}  // namespace gnnscale
