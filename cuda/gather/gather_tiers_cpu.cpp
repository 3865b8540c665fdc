// Rows of tiers in host memory and in a mapped file, copied into pooled memory.
//
// A task finds the addresses of its rows; asks the kernel to read the pages of the rows on disk, in the order of the
// file; copies the rows in memory while these pages arrive; and then copies the rows on disk, in the order of the file.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <utility>

#include "../memory/tensor.h"
#include "copy_rows.h"
#include "tier_arguments.h"

namespace gnnscale {
namespace {

constexpr int64_t kMergedGap = 1 << 14;    // pages nearer than this are read together
constexpr int64_t kLargestRead = 1 << 17;  // bytes: what every kernel's readahead takes at once
constexpr int64_t kReadAhead = 1 << 25;    // bytes that a task asks for ahead of the row that it copies

struct Source {
  const char* row;
  int64_t at;  // its place in the output
};

using Clock = std::chrono::steady_clock;

int64_t nanoseconds(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(end - begin).count();
}

void add(int64_t& total, int64_t amount) { std::atomic_ref<int64_t>(total).fetch_add(amount); }

// Asks for the pages of rows in rising order, a bounded number of bytes ahead of the row that is used.
class ReadAhead {
 public:
  ReadAhead(const Source* rows, int64_t count, int64_t bytes) : rows_(rows), count_(count), bytes_(bytes) {}

  void reach(int64_t used) {
    while (next_ < count_ && (next_ == 0 || asked_ - released(used) < kReadAhead)) ask();
  }

 private:
  // About how many bytes had been asked for up to the row `used`, in proportion to the rows.
  int64_t released(int64_t used) const { return next_ == 0 ? 0 : asked_ / next_ * std::min(used, next_); }

  void ask() {
    static const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGE_SIZE));
    const uintptr_t begin = reinterpret_cast<uintptr_t>(rows_[next_].row) / page * page;
    uintptr_t end = begin;
    for (; next_ < count_; ++next_) {
      const uintptr_t row = reinterpret_cast<uintptr_t>(rows_[next_].row);
      const uintptr_t last = (row + static_cast<uintptr_t>(bytes_) + page - 1) / page * page;
      if (end > begin && (row > end + kMergedGap || last - begin > kLargestRead)) break;
      end = last;
    }
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);  // a hint: what fails is read when it is used
    asked_ += static_cast<int64_t>(end - begin);
  }

  const Source* rows_;
  const int64_t count_, bytes_;
  int64_t next_ = 0, asked_ = 0;
};

template <typename Index, typename Copy>
void gather(const TierRows& rows, const Index* ids, const Tensor* place, bool disk, int64_t threads, int64_t* counts,
            Copy&& copy) {
  const TierTable& table = rows.table;
  const int64_t n = rows.sizes[0], bytes = rows.stored_bytes;
  const int32_t file = disk ? table.num_tiers - 1 : table.num_tiers;  // the tier whose rows are read from a file
  const int64_t tasks = num_tasks(n * bytes, kGrainBytes, threads);
  std::atomic<bool> outside{false};
  const auto by_task = [&](int64_t task, auto place_of) {
    const auto [begin, end] = part(n, task, tasks);
    PooledArray<Source> sources(end - begin);  // rows in memory from the front, those on disk from the back
    int64_t found[kMaxTiers + 1] = {}, front = 0, back = end - begin;
    const auto start = Clock::now();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = place_of(i, end);
      const int32_t tier = tier_of(table, at);
      ++found[tier];
      if (tier == table.num_tiers) continue;
      const int64_t slot = tier == file ? --back : front++;
      sources[slot] = {row_address(table, tier, at), i};
    }
    if (found[table.num_tiers] > 0) {
      outside.store(true);
      return;
    }
    Source* cold = sources.data() + back;
    const int64_t num_cold = end - begin - back;
    std::sort(cold, cold + num_cold, [](const Source& a, const Source& b) { return a.row < b.row; });
    ReadAhead ahead(cold, num_cold, bytes);
    ahead.reach(0);
    const auto asked = Clock::now();
    copy_rows(
        0, front, bytes, [&](int64_t i) { return sources[i].row; },
        [&](int64_t i, const char* row) { copy(sources[i].at, row); });
    const auto copied = Clock::now();
    for (int64_t i = 0; i < num_cold; ++i) {
      ahead.reach(i);
      copy(cold[i].at, cold[i].row);
    }
    if (counts == nullptr) return;
    for (int32_t tier = 0; tier < table.num_tiers; ++tier) add(counts[2 * tier], found[tier]);
    // Rows of several tiers in memory are copied together, and their time is added to the first tier's.
    const int64_t in_memory = nanoseconds(asked, copied) / tasks, whole = nanoseconds(start, Clock::now()) / tasks;
    if (front > 0) add(counts[1], in_memory);
    if (num_cold > 0) add(counts[2 * file + 1], whole - in_memory);
  };
  const auto run = [&](auto place_of) { run_tasks(tasks, [&](int64_t task) { by_task(task, place_of); }); };
  if (place == nullptr) {
    run([ids](int64_t i, int64_t) { return static_cast<int64_t>(ids[i]); });
  } else {
    dispatch_index(dtype_of(*place), [&](auto* tag) {
      using Place = std::remove_pointer_t<decltype(tag)>;
      const Place* places = static_cast<const Place*>(place->const_data_ptr());
      const uint64_t limit = static_cast<uint64_t>(place->numel());
      run([ids, places, limit](int64_t i, int64_t end) {
        if (i + kRowsAhead < end) GNNSCALE_PREFETCH(places + ids[i + kRowsAhead]);
        const uint64_t id = static_cast<uint64_t>(static_cast<int64_t>(ids[i]));
        return id < limit ? static_cast<int64_t>(places[id]) : -1;  // -1 is in no tier
      });
    });
  }
  STD_TORCH_CHECK(!outside.load(), "gather_tiers: place has an entry that is not in [0, ", table.first[table.num_tiers],
                  ")");
}

// Copies rows into `out`, or widens them if the output's type is wider than the stored one.
template <typename F>
void dispatch_copy(const TierRows& rows, ScalarType stored, ScalarType dtype, char* out, F&& run) {
  const int64_t items = rows.items;
  const auto widening = [&](auto item, auto number) {
    using Map = Widen<decltype(item), decltype(number), 1>;
    run([=](int64_t at, const char* row) {
      auto* to = reinterpret_cast<typename Map::To*>(out) + at * items;
      const auto* from = reinterpret_cast<const typename Map::From*>(row);
      for (int64_t i = 0; i < items; ++i) to[i] = Map::map(from[i]);
    });
  };
  if (stored == dtype) {
    const int64_t bytes = rows.stored_bytes;
    run([=](int64_t at, const char* row) { copy_row(out + at * bytes, row, bytes); });
  } else if (stored == ScalarType::Half) {
    dtype == ScalarType::Float ? widening(Half{}, float{}) : widening(Half{}, double{});
  } else {
    dtype == ScalarType::Float ? widening(BFloat16{}, float{}) : widening(BFloat16{}, double{});
  }
}

int64_t size_of(ScalarType dtype, const Tensor& stored) {
  if (dtype == dtype_of(stored)) return static_cast<int64_t>(stored.element_size());
  return dtype == ScalarType::Float ? 4 : 8;
}

// See torch_gnnscale.ops.gather_tiers, which checks the arguments.
Tensor gather_tiers(const std::vector<Tensor>& segments, const std::vector<int64_t>& spread,
                    const std::optional<Tensor>& place, const Tensor& index, bool disk, ScalarType dtype,
                    const std::optional<Tensor>& counts, int64_t threads) {
  const TierRows rows = tier_rows(segments, spread, index, [](const Tensor& segment) {
    return static_cast<const char*>(segment.const_data_ptr());
  });
  const ScalarType stored = dtype_of(segments[0]);
  const bool widens = (stored == ScalarType::Half || stored == ScalarType::BFloat16) &&
                      (dtype == ScalarType::Float || dtype == ScalarType::Double);
  STD_TORCH_CHECK(stored == dtype || widens, "dtype: expected that of the rows, or a wider float");
  if (place.has_value()) check_contiguous_ids("place", *place);
  if (counts.has_value()) check_matrix("counts", *counts, ScalarType::Long, static_cast<int64_t>(spread.size()), 2);
  PooledArray<char> out(rows.sizes[0] * rows.items * size_of(dtype, segments[0]));
  if (rows.sizes[0] * rows.items > 0) {
    int64_t* totals = counts ? static_cast<int64_t*>(counts->mutable_data_ptr()) : nullptr;
    dispatch_index(dtype_of(index), [&](auto* tag) {
      using Index = std::remove_pointer_t<decltype(tag)>;
      const Index* ids = static_cast<const Index*>(index.const_data_ptr());
      dispatch_copy(rows, stored, dtype, out.data(),
                    [&](auto copy) { gather(rows, ids, place ? &*place : nullptr, disk, threads, totals, copy); });
    });
  }
  return to_tensor(std::move(out), rows.sizes, dtype);
}

// See torch_gnnscale.ops.gather_tables, which checks the arguments.
std::vector<Tensor> gather_tables(const std::vector<Tensor>& segments, const std::vector<int64_t>& spread,
                                  const std::vector<int64_t>& layout, const std::vector<std::optional<Tensor>>& place,
                                  const std::vector<Tensor>& index, const std::vector<Tensor>& counts,
                                  int64_t threads) {
  std::vector<Tensor> found;
  each_table(segments, spread, layout, place, index, counts, [&](const TableArguments& of) {
    found.push_back(gather_tiers(of.segments, of.spread, of.place, of.index, of.disk, of.dtype, of.counts, threads));
  });
  return found;
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) {
  library.impl("gather_tiers", TORCH_BOX(&gather_tiers));
  library.impl("gather_tables", TORCH_BOX(&gather_tables));
}

}  // namespace
}  // namespace gnnscale
