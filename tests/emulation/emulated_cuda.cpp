#include <cuda_runtime.h>
#undef __CUDA_ARCH__

#include <sanitizer/common_interface_defs.h>
#include <sched.h>
#include <ucontext.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>

namespace emulated {
namespace {

constexpr int kWorkers = 4;  // threads that lanes run on

// What all threads of the host have asked for.
std::atomic<int64_t> launches{0}, allocations{0}, waits{0};
// An allocation of more bytes fails.
std::atomic<size_t> most_bytes{SIZE_MAX};

uint64_t noise() {
  static std::atomic<uint64_t> threads{1};
  thread_local uint64_t state = threads.fetch_add(1) * 0xD6E8FEB86659FD93ull | 1;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "emulated GPU: %s\n", what);
  std::abort();
}

// The stream of a thread of the host: what was queued, and the memory that is freed after it.
struct Stream {
  std::deque<std::function<void()>> work;
  std::vector<Tensor> memory;
  int guards = 0;

  void drain() {
    while (!work.empty()) {
      const std::function<void()> next = std::move(work.front());
      work.pop_front();
      next();
    }
  }
};

Stream& stream() {
  static thread_local Stream* const own = new Stream;  // never freed: threads may end after the library
  return *own;
}

enum Place : int64_t { kOnGPU, kPinned, kPageable };

// Memory that is not the GPU's. What is pinned is read at another address, and its bytes at the host's are spoilt.
struct Range {
  uintptr_t end;
  Place place;
  char* there;
};

std::mutex ranges_lock;
std::map<uintptr_t, Range>& ranges() {
  static auto* const known = new std::map<uintptr_t, Range>;
  return *known;
}

Range range_of(const void* address, uintptr_t& begin) {
  const std::lock_guard lock(ranges_lock);
  const uintptr_t at = reinterpret_cast<uintptr_t>(address);
  auto found = ranges().upper_bound(at);
  if (found == ranges().begin() || at >= (--found)->second.end) return {0, kOnGPU, nullptr};
  begin = found->first;
  return found->second;
}

// A number that is coprime to `count`, to step through its multiples: in order, backwards, or anyhow.
uint64_t step_through(uint64_t count) {
  switch (noise() % 3) {
    case 0:
      return 1;
    case 1:
      return std::max<uint64_t>(count - 1, 1);
    default:
      uint64_t step = noise() % count;
      while (std::gcd(step, count) != 1) step = (step + 1) % count;
      return step;
  }
}

// Threads that wait for a job, which each of them does once.
class Team {
 public:
  explicit Team(int64_t count) : count_(count) {
    for (int64_t i = 0; i < count; ++i) {
      std::thread([this, i] {
        for (int64_t seen = 0;; ++seen) {
          std::unique_lock lock(lock_);
          begin_.wait(lock, [&] { return jobs_ > seen; });
          const auto job = job_;
          lock.unlock();
          (*job)(i);
          lock.lock();
          if (--left_ == 0) end_.notify_one();
        }
      }).detach();
    }
  }

  void run(const std::function<void(int64_t)>& job) {
    std::unique_lock lock(lock_);
    job_ = &job;
    left_ = count_;
    ++jobs_;
    begin_.notify_all();
    end_.wait(lock, [&] { return left_ == 0; });
  }

 private:
  const int64_t count_;
  std::mutex lock_;
  std::condition_variable begin_, end_;
  const std::function<void(int64_t)>* job_ = nullptr;
  int64_t jobs_ = 0, left_ = 0;
};

void run_threads(int64_t count, const std::function<void(int64_t)>& job) {
  static auto* const teams = new std::map<int64_t, Team*>;  // never freed, for their threads never end
  Team*& team = (*teams)[count];
  if (team == nullptr) team = new Team(count);
  team->run(job);
}

// The variables of a launch, on a thread that runs its lanes.
class LaunchVariables {
 public:
  LaunchVariables(int64_t blocks, int64_t threads) {
    gridDim.x = static_cast<unsigned>(blocks);
    kThreads = static_cast<int>(threads);
  }
  ~LaunchVariables() { kThreads = before_; }

 private:
  const int before_ = kThreads;
};

void run_lanes(int64_t blocks, int64_t threads, const std::function<void()>& kernel) {
  const uint64_t lanes = static_cast<uint64_t>(blocks * threads), step = step_through(lanes), first = noise() % lanes;
  const uint64_t at_once = std::clamp<uint64_t>(lanes / 64, 1, 256);
  std::atomic<uint64_t> next{0};
  const auto run = [&](int64_t) {
    const LaunchVariables variables(blocks, threads);
    for (uint64_t from = next.fetch_add(at_once); from < lanes; from = next.fetch_add(at_once)) {
      uint64_t lane = static_cast<uint64_t>((static_cast<unsigned __int128>(from) * step + first) % lanes);
      for (uint64_t k = from; k < std::min(from + at_once, lanes); ++k, lane = (lane + step) % lanes) {
        blockIdx.x = static_cast<unsigned>(lane / static_cast<uint64_t>(threads));
        threadIdx.x = static_cast<unsigned>(lane % static_cast<uint64_t>(threads));
        kernel();
      }
    }
  };
  lanes < 64 ? run(0) : run_threads(kWorkers, run);
}

// Runs the lanes of one block at a time on the calling thread, which holds the block's __shared__ variables. Each lane
// has a stack of its own, on which it runs to its next barrier or its end; then another lane does.
class Multiprocessor {
 public:
  void run(uint64_t lanes, const std::function<void()>& kernel) {
    kernel_ = &kernel;
    while (lanes_.size() < lanes) start();
    for (Stop stop = Stop::kBarrier; stop != Stop::kEnd;) {
      const uint64_t step = step_through(lanes), first = noise() % lanes;
      for (uint64_t k = 0; k < lanes; ++k) {
        const uint64_t lane = (k * step + first) % lanes;
        threadIdx.x = static_cast<unsigned>(lane);
        lane_ = lanes_[lane].get();
        void* mine = nullptr;
        __sanitizer_start_switch_fiber(&mine, lane_->stack, kStackBytes);
        swapcontext(&own_, &lane_->context);
        __sanitizer_finish_switch_fiber(mine, nullptr, nullptr);
        if (k > 0 && lane_->stop != stop) fail("some lanes of a block end, or wait, where others do not");
        stop = lane_->stop;
      }
    }
  }

  // What each of a block's lanes stops at before the others go on.
  enum class Stop { kBarrier, kShuffle, kEnd };

  // Called on a lane's stack: the others run until it is this lane's turn again.
  void leave(Stop stop) {
    Lane& lane = *lane_;
    lane.stop = stop;
    void* mine = nullptr;
    __sanitizer_start_switch_fiber(&mine, stack_, stack_bytes_);
    swapcontext(&lane.context, &own_);
    __sanitizer_finish_switch_fiber(mine, nullptr, nullptr);
  }

  // Called on a lane's stack: the value of a lane of the group of `width` that this one is in.
  uint64_t shuffle(uint64_t value, int lane, int width) {
    if (width < 1 || width > 32 || (width & (width - 1)) != 0) fail("lanes are shuffled in groups of no power of two");
    const size_t from = threadIdx.x / width * width + static_cast<unsigned>(lane % width);
    lane_->shuffled = value;
    leave(Stop::kShuffle);  // until all have given theirs
    const uint64_t found = lanes_[from]->shuffled;
    leave(Stop::kShuffle);  // until all have taken theirs
    return found;
  }

 private:
  static constexpr size_t kStackBytes = 1 << 17;

  struct Lane {
    ucontext_t context;
    Stop stop = Stop::kBarrier;
    uint64_t shuffled = 0;  // what it gives to others
    char stack[kStackBytes];
  };

  static void run_lane();

  void start() {
    Lane& lane = *lanes_.emplace_back(new Lane);
    getcontext(&lane.context);
    lane.context.uc_stack.ss_sp = lane.stack;
    lane.context.uc_stack.ss_size = kStackBytes;
    makecontext(&lane.context, &run_lane, 0);
  }

  const std::function<void()>* kernel_ = nullptr;
  ucontext_t own_;
  const void* stack_ = nullptr;  // the thread's own
  size_t stack_bytes_ = 0;
  std::vector<std::unique_ptr<Lane>> lanes_;
  Lane* lane_ = nullptr;
};

Multiprocessor& multiprocessor() {
  static thread_local auto* const own = new Multiprocessor;  // never freed: its threads never end
  return *own;
}

// A lane's stack goes from block to block, and from kernel to kernel.
void Multiprocessor::run_lane() {
  Multiprocessor& own = multiprocessor();
  __sanitizer_finish_switch_fiber(nullptr, &own.stack_, &own.stack_bytes_);
  for (;;) {
    (*own.kernel_)();
    own.leave(Stop::kEnd);
  }
}

void run_blocks(int64_t blocks, int64_t threads, const std::function<void()>& kernel) {
  const uint64_t count = static_cast<uint64_t>(blocks), step = step_through(count);
  std::atomic<uint64_t> next{0};
  run_threads(kWorkers, [&](int64_t) {
    const LaunchVariables variables(blocks, threads);
    for (uint64_t k = next.fetch_add(1); k < count; k = next.fetch_add(1)) {
      blockIdx.x = static_cast<unsigned>(k * step % count);
      multiprocessor().run(static_cast<uint64_t>(threads), kernel);
    }
  });
}

}  // namespace

DeviceGuard::DeviceGuard(int) { ++stream().guards; }

DeviceGuard::~DeviceGuard() {
  if (--stream().guards > 0) return;
  stream().drain();
  stream().memory.clear();
}

void enqueue(int64_t of_launches, std::function<void()> work) {
  if (stream().guards == 0) fail("work was queued outside a device guard");
  launches += of_launches;
  stream().work.push_back(std::move(work));
}

void launch(int64_t blocks, int64_t threads, bool barriers, std::function<void()> kernel) {
  if (blocks < 1 || blocks > INT32_MAX || threads < 1 || threads > 1024) fail("no such grid can be launched");
  enqueue(1, [=] {
    static std::mutex one_kernel_at_a_time;
    const std::lock_guard lock(one_kernel_at_a_time);
    barriers ? run_blocks(blocks, threads, kernel) : run_lanes(blocks, threads, kernel);
  });
  kThreads = noise() % 2 == 0 ? 256 : 64;
  kMaxBlocks = noise() % 4 == 0 ? 1 + static_cast<int64_t>(noise() % 5) : 1 << 20;
}

void barrier() { multiprocessor().leave(Multiprocessor::Stop::kBarrier); }

uint64_t shuffle(uint64_t value, int lane, int width) { return multiprocessor().shuffle(value, lane, width); }

void sometimes_yield() {
  if (noise() % 16 == 0) sched_yield();
}

bool is_cuda(const Tensor& tensor) {
  uintptr_t begin = 0;
  return range_of(tensor.const_data_ptr(), begin).place == kOnGPU;
}

int32_t current_stream(int32_t, void** stream) {
  *stream = nullptr;
  return 0;
}

Tensor new_empty(const Tensor& like, torch::headeronly::IntHeaderOnlyArrayRef size,
                 std::optional<torch::headeronly::ScalarType> dtype) {
  if (stream().guards == 0) fail("memory was taken outside a device guard");
  ++allocations;
  const int64_t none = 0;
  size_t count = static_cast<size_t>(torch::stable::new_empty(like, {&none, 1}, dtype).element_size());
  for (const int64_t entries : size) count *= static_cast<size_t>(entries);
  if (count > most_bytes) throw std::runtime_error("an API call failed");  // before the host is asked for it
  Tensor tensor = torch::stable::new_empty(like, size, dtype);
  unsigned char* const bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  const uint64_t kind = noise() % 3;
  if (count > 0) std::memset(bytes, kind == 1 ? 0xff : 0, count);
  if (kind == 2) {
    for (size_t i = 0; i < count; i += 8) bytes[i] = static_cast<unsigned char>(noise() >> 60);
  }
  stream().memory.push_back(tensor);
  return tensor;
}

}  // namespace emulated

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* address) {
  uintptr_t begin = 0;
  const emulated::Range range = emulated::range_of(address, begin);
  if (range.place == emulated::kPinned) {
    *found = {cudaMemoryTypeHost, range.there + (reinterpret_cast<uintptr_t>(address) - begin)};
  } else {
    *found = {range.place == emulated::kOnGPU ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered, nullptr};
  }
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* left, size_t* all) {
  *left = emulated::most_bytes;
  *all = SIZE_MAX;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (attribute != cudaDevAttrMultiProcessorCount) emulated::fail("no such attribute is known");
  *value = 1 + static_cast<int>(emulated::noise() % 4);  // to have as many blocks or fewer than a kernel could use
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  if (kind == cudaMemcpyHostToDevice) {  // from pageable memory, which is read before the call returns
    const char* const begin = static_cast<const char*>(from);
    emulated::enqueue(
        1, [to, copy = std::vector<char>(begin, begin + bytes)] { std::memcpy(to, copy.data(), copy.size()); });
  } else {
    emulated::enqueue(0, [=] { std::memcpy(to, from, bytes); });
  }
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  emulated::enqueue(1, [=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
  ++emulated::waits;
  emulated::stream().drain();
  return cudaSuccess;
}

// For the tests: says that memory is pinned (1) or pageable (2), and forgets it all.
extern "C" __attribute__((visibility("default"))) void emulated_mark(void* address, int64_t bytes, int64_t place) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(address);
  char* there = nullptr;
  if (place == emulated::kPinned) {
    char* const room = static_cast<char*>(std::malloc(static_cast<size_t>(bytes) + 128));
    there = room + (begin - reinterpret_cast<uintptr_t>(room)) % 128;  // aligned as it is for the host
    std::memcpy(there, address, static_cast<size_t>(bytes));
    std::memset(address, 0xA5, static_cast<size_t>(bytes));
  }
  const std::lock_guard lock(emulated::ranges_lock);
  emulated::ranges()[begin] = {begin + static_cast<uintptr_t>(bytes), static_cast<emulated::Place>(place), there};
}

extern "C" __attribute__((visibility("default"))) void emulated_forget() {
  const std::lock_guard lock(emulated::ranges_lock);
  emulated::ranges().clear();
}

// For the tests: from now on no more bytes can be had at a time.
extern "C" __attribute__((visibility("default"))) void emulated_limit(int64_t bytes) {
  emulated::most_bytes = static_cast<size_t>(bytes);
}

// For the tests: what was asked for so far. Launches are kernels, those of CUB's that it would make, and memsets.
extern "C" __attribute__((visibility("default"))) void emulated_counts(int64_t* counts) {
  counts[0] = emulated::launches;
  counts[1] = emulated::allocations;
  counts[2] = emulated::waits;
}
