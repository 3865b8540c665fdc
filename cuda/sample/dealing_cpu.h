// Batches that do not depend on one another, dealt to threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <vector>

#include "../memory/tensor.h"

namespace gnnscale {

// Calls f(batch) for each of `batches` batches; a thread that has finished one takes the next. `f` may throw: what the
// first batch that failed threw is thrown here after all have ended.
template <typename F>
void deal_batches(int64_t batches, int64_t threads, F&& f) {
  if (batches == 1) return f(0);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(batches));
  std::atomic<int64_t> next{0};
  run_tasks(num_tasks(batches, 1, threads), [&](int64_t) {
    for (int64_t batch; (batch = next.fetch_add(1, std::memory_order_relaxed)) < batches;) {
      try {
        f(batch);
      } catch (...) {
        errors[batch] = std::current_exception();
      }
    }
  });
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace gnnscale
