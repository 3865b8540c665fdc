// A board: memory in which processes of one machine leave numbers for each other, round by round.
//
// A round is an all-to-all: every rank leaves a row of numbers for each rank, and takes those that were left for it.
// Even and odd rounds have places of their own. So a rank may begin the next round while others still take from this
// one; it can begin the round after that only when all have begun the next.
//
// In each round one of two things is decided, once: that all have come, by the rank that comes last; or that the round
// takes place elsewhere, by a rank that has waited too long.
#include <atomic>
#include <chrono>
#include <thread>

#include "tensor.h"

namespace gnnscale {
namespace {

constexpr int64_t kMost = 64;         // numbers that a rank leaves for another one in a round; as in ops/memory.py
constexpr int64_t kLine = 8;          // numbers in a line of the caches
constexpr int64_t kHead = 4 * kLine;  // numbers before the rows; as in ops/memory.py
constexpr auto kSpin = std::chrono::microseconds(30);  // for which a rank looks again and again before it sleeps
constexpr auto kLeastSleep = std::chrono::microseconds(20);

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// One round on a board, in the places of even or of odd rounds. use: how many rounds used these places before.
struct Round {
  int64_t* board;
  int64_t ranks, rank, parity, use;

  // `rows`: of numbers, one for each rank.
  Round(const Tensor& memory, const Tensor& rows, int64_t rank_, int64_t number)
      : board(static_cast<int64_t*>(memory.mutable_data_ptr())),
        ranks(rows.dim() == 2 ? rows.size(0) : 0),
        rank(rank_),
        parity(number & 1),
        use(number >> 1) {
    STD_TORCH_CHECK(
        dtype_of(rows) == ScalarType::Long && rows.dim() == 2 && rows.is_contiguous() && rows.size(1) <= kMost,
        "board: expected contiguous int64 rows of at most ", kMost, " numbers, one for each rank");
    STD_TORCH_CHECK(dtype_of(memory) == ScalarType::Long && memory.is_contiguous() && 0 <= rank && rank < ranks &&
                        number >= 0 && kHead + 2 * ranks * ranks * kMost <= memory.numel(),
                    "board: expected a rank below ", ranks, " and a contiguous int64 board for as many, found rank ",
                    rank, " and ", memory.numel(), " numbers");
  }

  std::atomic_ref<int64_t> arrived() const { return std::atomic_ref(board[2 * parity * kLine]); }

  // 2 (use + 1), plus 1 if all have come, once this round is decided; a smaller number before.
  std::atomic_ref<int64_t> decision() const { return std::atomic_ref(board[(2 * parity + 1) * kLine]); }

  int64_t* row(int64_t from, int64_t to) const {
    return board + kHead + ((parity * ranks + from) * ranks + to) * kMost;
  }

  void decide(bool all_came) const {
    int64_t before = decision().load(std::memory_order_acquire);
    if (before >> 1 <= use) decision().compare_exchange_strong(before, 2 * (use + 1) + all_came);
  }

  bool is_decided() const { return decision().load(std::memory_order_acquire) >> 1 > use; }
};

// See torch_gnnscale.ops.board_leave.
void board_leave(Tensor board, const Tensor& sent, int64_t rank, int64_t number) {
  const Round round(board, sent, rank, number);
  const int64_t count = sent.size(1);
  const int64_t* const from = static_cast<const int64_t*>(sent.const_data_ptr());
  for (int64_t to = 0; to < round.ranks; ++to)
    std::copy(from + to * count, from + (to + 1) * count, round.row(rank, to));
  if (round.arrived().fetch_add(1) + 1 == round.ranks * (round.use + 1)) round.decide(true);
}

// See torch_gnnscale.ops.board_take.
bool board_take(Tensor board, Tensor received, int64_t rank, int64_t number, int64_t microseconds) {
  const Round round(board, received, rank, number);
  const int64_t count = received.size(1);
  const auto begin = std::chrono::steady_clock::now();
  while (!round.is_decided()) {
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (waited >= std::chrono::microseconds(microseconds)) {
      round.decide(false);
    } else if (waited < kSpin) {
      pause();
    } else {
      std::this_thread::sleep_for(std::max<std::chrono::nanoseconds>(kLeastSleep, waited / 8));
    }
  }
  if ((round.decision().load(std::memory_order_acquire) & 1) == 0) return false;
  int64_t* const to = static_cast<int64_t*>(received.mutable_data_ptr());
  for (int64_t from = 0; from < round.ranks; ++from) {
    std::copy(round.row(from, rank), round.row(from, rank) + count, to + from * count);
  }
  return true;
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU, library) {
  library.impl("board_leave", TORCH_BOX(&board_leave));
  library.impl("board_take", TORCH_BOX(&board_take));
}

}  // namespace
}  // namespace gnnscale
