#include "workspace.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "allocate.h"

namespace gnnscale {
namespace {

constexpr size_t kMaxIdle = 16;

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
  madvise(zeros, bytes, MADV_HUGEPAGE);
  return static_cast<T*>(zeros);
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
    base = 1;
  } else if (static_cast<uint64_t>(base) + static_cast<uint64_t>(num_local) > UINT32_MAX) {
    std::memset(map, 0, static_cast<size_t>(map_size) * sizeof(uint32_t));
    base = 1;
  }
}

std::pair<int64_t*, int64_t*> Workspace::candidates(int64_t size) {
  if (static_cast<int64_t>(candidates_.size()) < 2 * size) candidates_.resize(2 * size + size / 2);
  return {candidates_.data(), candidates_.data() + size};
}

uint64_t* Workspace::scores(int64_t num_nodes) {
  const int64_t size = num_nodes + num_nodes / 64 + 1;
  if (scores_size_ < size) {
    unmap(std::exchange(scores_, nullptr), std::exchange(scores_size_, 0));
    scores_ = map_zeros<uint64_t>(size);
    scores_size_ = size;
  }
  return scores_;
}

Workspace::~Workspace() {
  unmap(map, map_size);
  unmap(scores_, scores_size_);
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
