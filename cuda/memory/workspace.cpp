#include "workspace.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "allocate.h"
#include "huge_pages.h"

namespace gnnscale {
namespace {

constexpr size_t kMaxIdle = 16;
constexpr uint64_t kLastTag = UINT32_MAX;  // values of cells stay below it, or else all cells are cleared first

struct Idle {
  std::mutex mutex;
  std::vector<std::unique_ptr<Workspace>> workspaces;
};

// Never destroyed, and locked by the thread that forks; pool.cpp gives the reasons.
Idle& idle() {
  static Idle* instance = [] {
    auto* created = new Idle;
    created->workspaces.reserve(kMaxIdle);
    pthread_atfork([] { idle().mutex.lock(); }, [] { idle().mutex.unlock(); }, [] { idle().mutex.unlock(); });
    return created;
  }();
  return *instance;
}

// Cells of value 0 that are read and written at random. Throws OutOfMemory.
template <typename T>
T* map_zeros(int64_t size) {
  const size_t bytes = static_cast<size_t>(size) * sizeof(T);
  void* const zeros = allocate_or_trim(bytes, [&] {
    void* found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return found == MAP_FAILED ? nullptr : found;
  });
  ask_for_huge_pages(zeros, bytes);
  return static_cast<T*>(zeros);
}

// Words of 64 bits that hold a bit, or a cell, for each node; at least one.
int64_t words_of_bits(int64_t num_nodes) { return num_nodes / 64 + 1; }
int64_t words_of_slots(int64_t num_nodes) { return num_nodes / 2 + 1; }

// The first tag of cells that are all 0, for a batch of at most `num_local` values. It is 1, so that cells are seldom
// cleared; GNNSCALE_TAGS in the environment, for tests, is the number of tags that are left then.
uint32_t first_tag(int64_t num_local) {
  static const uint64_t first = [] {
    const char* const tags = std::getenv("GNNSCALE_TAGS");
    return tags == nullptr ? uint64_t{1} : std::max<uint64_t>(1, kLastTag - std::strtoull(tags, nullptr, 10));
  }();
  return static_cast<uint32_t>(std::min(first, kLastTag - std::min(static_cast<uint64_t>(num_local), kLastTag - 1)));
}

template <typename T>
void unmap(T* cells, int64_t size) {
  if (cells != nullptr) munmap(cells, static_cast<size_t>(size) * sizeof(T));
}

}  // namespace

void Workspace::prepare(int64_t num_nodes, int64_t num_local) {
  if (map_size < num_nodes) {
    unmap(map, map_size);
    map_size = 0;
    map = nullptr;
    map = map_zeros<uint32_t>(num_nodes);
    map_size = num_nodes;
    base = first_tag(num_local);
  } else if (static_cast<uint64_t>(base) + static_cast<uint64_t>(num_local) > kLastTag) {
    std::memset(map, 0, static_cast<size_t>(map_size) * sizeof(uint32_t));
    base = first_tag(num_local);
  }
}

std::pair<int64_t*, int64_t*> Workspace::candidates(int64_t size) {
  if (static_cast<int64_t>(candidates_.size()) < 2 * size) candidates_.resize(2 * size + size / 2);
  return {candidates_.data(), candidates_.data() + size};
}

void Workspace::start_trees(size_t types) {
  if (trees.size() < types) trees.resize(types);
  for (size_t t = 0; t < types; ++t) trees[t].start();
}

void Workspace::prepare_slots(int64_t num_nodes) {
  if (slots_size < num_nodes) {
    unmap_slots();
    bits = map_zeros<uint64_t>(words_of_bits(num_nodes) + words_of_slots(num_nodes));
    slots = reinterpret_cast<uint32_t*>(bits + words_of_bits(num_nodes));
    slots_size = num_nodes;
    slot_base = first_tag(num_nodes);
  } else if (static_cast<uint64_t>(slot_base) + static_cast<uint64_t>(num_nodes) > kLastTag) {
    std::memset(slots, 0, static_cast<size_t>(slots_size) * sizeof(uint32_t));
    slot_base = first_tag(num_nodes);
  }
}

void Workspace::unmap_slots() {
  const int64_t size = std::exchange(slots_size, 0);
  unmap(std::exchange(bits, nullptr), words_of_bits(size) + words_of_slots(size));
}

Workspace::~Workspace() {
  unmap(map, map_size);
  unmap_slots();
}

WorkspaceLease::WorkspaceLease(int64_t num_nodes) {
  Idle& all = idle();
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    auto best = all.workspaces.end();
    for (auto it = all.workspaces.begin(); it != all.workspaces.end(); ++it) {
      const bool fits = (*it)->map_size >= num_nodes;
      if (best == all.workspaces.end()) {
        best = it;
      } else if (const bool best_fits = (*best)->map_size >= num_nodes; fits != best_fits) {
        if (fits) best = it;
      } else if (((*it)->map_size < (*best)->map_size) == fits) {
        best = it;  // the smallest that fits or, if none does, the largest
      }
    }
    if (best != all.workspaces.end()) {
      workspace_ = std::move(*best);
      all.workspaces.erase(best);
    }
  }
  if (!workspace_) workspace_ = std::make_unique<Workspace>();
}

WorkspaceLease::~WorkspaceLease() {
  Idle& all = idle();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (all.workspaces.size() < kMaxIdle) all.workspaces.push_back(std::move(workspace_));
}

void workspace_trim() noexcept {
  Idle& all = idle();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.workspaces.clear();
}

}  // namespace gnnscale
