// The same rows of several tables of host memory, one table after the other. Where tables are columns of one matrix, or
// rows are wide, blocks of rows are copied: the lines of memory that hold them are read once.
#pragma once

#include <algorithm>
#include <atomic>
#include <vector>

#include "../memory/checks.h"
#include "../memory/tensor.h"
#include "../simd_cpu.h"
#include "copy_rows.h"

namespace gnnscale {

// The lines of a block are prefetched before the block in front of it is copied.
constexpr int64_t kBlockBytes = 8192, kMostBlockRows = 64, kLeastBlockRows = 8;
// A narrow row is prefetched alone, so many rows ahead: a burst of prefetches waits for the lines that are on the way.
constexpr int64_t kNarrowBytes = 64, kNarrowAhead = 128;

struct Source {
  const char* table;
  int64_t stride, bytes;  // from row to row, and of a row
  uint64_t limit;         // rows
  char* out;
};

// Bytes that lie side by side in each row, and the sources that have them.
struct Span {
  const char* begin;
  int64_t stride, bytes;
  std::vector<Source> sources;
};

inline std::vector<Span> spans_of(std::vector<Source> sources) {
  std::sort(sources.begin(), sources.end(), [](const Source& a, const Source& b) { return a.table < b.table; });
  std::vector<Span> spans;
  for (const Source& of : sources) {
    const int64_t end = spans.empty() ? 0 : of.table + of.bytes - spans.back().begin;
    if (!spans.empty() && spans.back().stride == of.stride && end <= of.stride) {
      spans.back().bytes = std::max(spans.back().bytes, end);
      spans.back().sources.push_back(of);
    } else {
      spans.push_back({of.table, of.stride, of.bytes, {of}});
    }
  }
  return spans;
}

// Copies `bytes` bytes, from kHalf to 2 * kHalf: two times kHalf, which may overlap.
template <int64_t kHalf>
GNNSCALE_INLINE void copy_halves(char* to, const char* from, int64_t bytes) {
  char first[kHalf], last[kHalf];
  __builtin_memcpy(first, from, kHalf);
  __builtin_memcpy(last, from + bytes - kHalf, kHalf);
  __builtin_memcpy(to, first, kHalf);
  __builtin_memcpy(to + bytes - kHalf, last, kHalf);
}

// Calls f(copy), where copy(to, from) copies a row of so many bytes.
template <typename F>
void with_copy(int64_t bytes, F&& f) {
  if (bytes == 4) return f([](char* to, const char* from) GNNSCALE_INLINE_LAMBDA { __builtin_memcpy(to, from, 4); });
  if (bytes == 8) return f([](char* to, const char* from) GNNSCALE_INLINE_LAMBDA { __builtin_memcpy(to, from, 8); });
  const auto halves = [&](auto half) {
    f([bytes](char* to, const char* from)
          GNNSCALE_INLINE_LAMBDA { copy_halves<decltype(half)::value>(to, from, bytes); });
  };
  if (bytes >= 8 && bytes <= 16) return halves(std::integral_constant<int64_t, 8>());
  if (bytes >= 16 && bytes <= 32) return halves(std::integral_constant<int64_t, 16>());
  if (bytes >= 32 && bytes <= 64) return halves(std::integral_constant<int64_t, 32>());
  f([bytes](char* to, const char* from) GNNSCALE_INLINE_LAMBDA { copy_row(to, from, bytes); });
}

// Rows [begin, end) of one source.
template <typename Index>
void copy_block(const Source& of, const Index* ids, int64_t begin, int64_t end) {
  with_copy(of.bytes, [&](auto&& copy) {
    const char* const table = of.table;  // local copies, which no write can change
    const int64_t stride = of.stride, bytes = of.bytes;
    char* out = of.out + begin * bytes;
    for (int64_t i = begin; i < end; ++i, out += bytes) copy(out, table + static_cast<int64_t>(ids[i]) * stride);
  });
}

// Rows [begin, end) of one source of narrow rows. Each is prefetched kNarrowAhead rows before it is copied. Compiled
// for AVX2, too.
struct NarrowRows {
  template <typename Index>
  static GNNSCALE_INLINE void run(Source of, const Index* ids, int64_t begin, int64_t end) {
    constexpr int64_t kAtOnce = 8;
    with_copy(of.bytes, [&](auto&& copy) GNNSCALE_INLINE_LAMBDA {
      const char* const table = of.table;  // local copies, as above
      const int64_t stride = of.stride, bytes = of.bytes;
      const auto row = [&](int64_t i) GNNSCALE_INLINE_LAMBDA { return table + static_cast<int64_t>(ids[i]) * stride; };
      char* out = of.out + begin * bytes;
      const auto loop = [&](auto one_line) GNNSCALE_INLINE_LAMBDA {
        int64_t i = begin;
        for (; i + kNarrowAhead + kAtOnce <= end; i += kAtOnce, out += kAtOnce * bytes) {
          for (int64_t j = 0; j < kAtOnce; ++j) {
            const char* const next = row(i + kNarrowAhead + j);
            GNNSCALE_PREFETCH(next);
            if constexpr (!decltype(one_line)::value) GNNSCALE_PREFETCH(next + bytes - 1);
          }
          for (int64_t j = 0; j < kAtOnce; ++j) copy(out + j * bytes, row(i + j));
        }
        for (; i < end; ++i, out += bytes) copy(out, row(i));
      };
      // Rows whose size is a power of two, at multiples of it, lie on one line each.
      if (((bytes | stride | reinterpret_cast<int64_t>(table)) & (bytes - 1)) == 0) {
        loop(std::true_type());
      } else {
        loop(std::false_type());
      }
    });
  }
};

// Rows [from, to) of the sources of a span, by blocks of `block` rows.
template <typename Index>
void copy_blocks(const Span& span, const Index* ids, int64_t from, int64_t to, int64_t block) {
  const auto prefetch = [&](int64_t begin) GNNSCALE_INLINE_LAMBDA {
    for (int64_t i = begin; i < std::min(begin + block, to); ++i) {
      const char* const row = span.begin + static_cast<int64_t>(ids[i]) * span.stride;
      prefetch_lines(row, span.bytes);
      GNNSCALE_PREFETCH(row + span.bytes - 1);
    }
  };
  prefetch(from);
  for (int64_t begin = from; begin < to; begin += block) {
    prefetch(begin + block);
    for (const Source& of : span.sources) copy_block(of, ids, begin, std::min(begin + block, to));
  }
}

// Whether ids [from, to) are in [0, limit).
template <typename Index>
bool all_below(const Index* ids, int64_t from, int64_t to, uint64_t limit) {
  uint64_t outside = 0;  // its highest bit is set once an id was negative or too large
  for (int64_t i = from; i < to; ++i) {
    const uint64_t id = static_cast<uint64_t>(static_cast<int64_t>(ids[i]));
    outside |= id | (limit - 1 - id);
  }
  return outside >> 63 == 0;
}

// Copies rows ids[0..count) of all sources. Returns 0, or the least number of rows that a source has if an id is not
// below it.
template <typename Index>
uint64_t copy_each(const std::vector<Source>& sources, const Index* ids, int64_t count, int64_t threads) {
  if (sources.empty()) return 0;
  const std::vector<Span> spans = spans_of(sources);
  int64_t bytes = 0;
  uint64_t limit = INT64_MAX;
  for (const Source& of : sources) {
    bytes += of.bytes;
    limit = std::min(limit, of.limit);
  }
  std::atomic<bool> outside{false};
  const int64_t tasks = num_tasks(count * bytes, kGrainBytes, threads);
  run_tasks(tasks, [&](int64_t task) {
    const auto [from, to] = part(count, task, tasks);
    if (!all_below(ids, from, to, limit)) return outside.store(true);
    for (const Span& span : spans) {
      const int64_t block = std::clamp(kBlockBytes / span.bytes, kLeastBlockRows, kMostBlockRows);
      if (span.sources.size() == 1 && span.bytes <= kNarrowBytes) {
        vectorized<NarrowRows>(span.sources[0], ids, from, to);
      } else {
        copy_blocks(span, ids, from, to, block);
      }
    }
  });
  return outside.load() ? limit : 0;
}

// src[index] of several matrices in host memory, in pooled memory. out: gets the tensors.
inline void gather_each_to(const std::vector<Tensor>& src, size_t from, size_t to, const Tensor& index, int64_t threads,
                           std::vector<Tensor>& out) {
  check_contiguous_ids("index", index);
  const int64_t rows = index.numel();
  std::vector<Source> sources;
  std::vector<PooledArray<char>> arrays;
  std::vector<std::vector<int64_t>> sizes;
  for (size_t s = from; s < to; ++s) {
    const Tensor& of = src[s];
    check_table("src", of);
    int64_t items = 1;
    sizes.push_back({rows});
    for (int64_t d = 1; d < of.dim(); ++d) {
      sizes.back().push_back(of.size(d));
      items *= of.size(d);
    }
    const int64_t item = static_cast<int64_t>(of.element_size()), bytes = items * item;
    arrays.emplace_back(rows * bytes);
    if (rows * bytes == 0) continue;
    STD_TORCH_CHECK(of.size(0) > 0, "index: expected no rows of none");
    sources.push_back({static_cast<const char*>(of.const_data_ptr()), of.stride(0) * item, bytes,
                       static_cast<uint64_t>(of.size(0)), arrays.back().data()});
  }
  dispatch_index(dtype_of(index), [&](auto* tag) {
    using Index = std::remove_pointer_t<decltype(tag)>;
    const uint64_t limit = copy_each(sources, static_cast<const Index*>(index.const_data_ptr()), rows, threads);
    STD_TORCH_CHECK(limit == 0, "index: expected rows in [0, ", limit, ")");
  });
  for (size_t s = from; s < to; ++s) {
    out.push_back(to_tensor(std::move(arrays[s - from]), sizes[s - from], dtype_of(src[s])));
  }
}

// The same of several groups of matrices: index[g] is that of the counts[g] matrices after those of the groups before.
inline std::vector<Tensor> gathered_each(const std::vector<Tensor>& src, const std::vector<Tensor>& index,
                                         const std::vector<int64_t>& counts, int64_t threads) {
  STD_TORCH_CHECK(index.size() == counts.size(), "index, counts: expected as many of each, found ", index.size(),
                  " and ", counts.size());
  std::vector<Tensor> found;
  size_t from = 0;
  for (size_t group = 0; group < index.size(); ++group) {
    const size_t left = src.size() - from;
    STD_TORCH_CHECK(counts[group] >= 0 && static_cast<size_t>(counts[group]) <= left, "counts: expected 0 to ", left,
                    ", found ", counts[group]);
    const size_t to = from + static_cast<size_t>(counts[group]);
    gather_each_to(src, from, to, index[group], threads, found);
    from = to;
  }
  STD_TORCH_CHECK(from == src.size(), "counts: expected the sum ", src.size(), ", found ", from);
  return found;
}

}  // namespace gnnscale
