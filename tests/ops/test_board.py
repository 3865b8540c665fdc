"""Numbers that ranks leave for each other in memory: here threads of one process are the ranks."""

import re
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_gnnscale import ops

PATIENT = 10_000_000


def left(round, source, to, count):
    return torch.arange(count) + 1000 * round + 100 * source + 10 * to


def rank_of(board, ranks, rank, waits, pauses, found):
    """Takes part in a round for each number of ``waits``; notes what came, or None if the round was to be elsewhere."""
    for round, wait in enumerate(waits):
        count = 1 + 7 * round % ops.BOARD_NUMBERS
        sent = torch.stack([left(round, rank, to, count) for to in range(ranks)])
        if pauses[rank] == round:
            threading.Event().wait(0.005)
        ops.board_leave(board, sent, rank, round)
        received = torch.full_like(sent, -1)
        taken = ops.board_take(board, received, rank, round, wait)
        expected = torch.stack([left(round, source, rank, count) for source in range(ranks)])
        assert torch.equal(received, expected if taken else torch.full_like(sent, -1))
        found[rank].append(taken)
        if not taken:
            BARRIERS[ranks].wait(20)  # the round elsewhere


def test_places_are_used_again_and_again():
    """Rounds that are decided for all, and every third one for nobody, who gives up at once."""
    board, came = torch.zeros(ops.board_size(2), dtype=torch.int64), []

    def take_part():
        for round in range(9):
            for rank in range(1 if round % 3 == 2 else 2):
                ops.board_leave(board, torch.stack([left(round, rank, to, 2) for to in range(2)]), rank, round)
            received = torch.full((2, 2), -1)
            came.append([ops.board_take(board, received, rank, round, 0) for rank in range(2)])
            if round % 3 == 2:
                assert not ops.board_take(board, received, 1, round, PATIENT)
                ops.board_leave(board, torch.zeros(2, 2, dtype=torch.int64), 1, round)
            else:
                assert torch.equal(received, torch.stack([left(round, source, 1, 2) for source in range(2)]))

    thread = threading.Thread(target=take_part, daemon=True)
    thread.start()
    thread.join(20)
    assert came == [[round % 3 != 2] * 2 for round in range(9)]


BARRIERS = {ranks: threading.Barrier(ranks) for ranks in (1, 2, 3, 4)}


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.sampled_from([0, 1, 1000, PATIENT]), max_size=12),
    st.lists(st.integers(-1, 11), min_size=4, max_size=4),
)
def test_all_get_the_same_numbers_or_none(ranks, waits, pauses):
    board, found = torch.zeros(ops.board_size(ranks), dtype=torch.int64), [[] for _ in range(ranks)]
    given = board, ranks
    threads = [
        threading.Thread(target=rank_of, args=(*given, rank, waits, pauses, found), daemon=True)
        for rank in range(ranks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert all(entry == found[0] for entry in found)
    assert len(found[0]) == len(waits)
    assert all(taken for taken, wait in zip(found[0], waits, strict=True) if wait == PATIENT or ranks == 1)


def test_a_round_to_which_nobody_else_comes():
    board = torch.zeros(ops.board_size(2), dtype=torch.int64)
    numbers = torch.ones(2, 3, dtype=torch.int64)
    ops.board_leave(board, numbers, 0, 0)
    assert not ops.board_take(board, numbers, 0, 0, 50)
    ops.board_leave(board, 2 * numbers, 1, 0)
    assert not ops.board_take(board, numbers, 1, 0, PATIENT), "who comes late does not wait"
    assert torch.equal(numbers, torch.ones(2, 3, dtype=torch.int64))


BOARD = torch.zeros(ops.board_size(2), dtype=torch.int64)
ROWS = torch.zeros(2, 1, dtype=torch.int64)
OF_ROWS = "board: expected contiguous int64 rows of at most 64 numbers, one for each rank"


@pytest.mark.parametrize(
    ("board", "rows", "rank", "round", "message"),
    [
        (BOARD, ROWS, 2, 0, "a rank below 2 and a contiguous int64 board for as many, found rank 2 and 544 numbers"),
        (BOARD, ROWS, -1, 0, "a rank below 2 and a contiguous int64 board for as many, found rank -1"),
        (BOARD, ROWS, 0, -1, "a rank below 2 and a contiguous int64 board for as many"),
        (
            BOARD,
            ROWS.new_zeros(3, 1),
            0,
            0,
            "a rank below 3 and a contiguous int64 board for as many, found rank 0 and",
        ),
        (BOARD.to(torch.int8), ROWS, 0, 0, "a contiguous int64 board"),
        (torch.stack([BOARD, BOARD], 1)[:, 0], ROWS, 0, 0, "a contiguous int64 board"),
        (BOARD, ROWS.new_zeros(2, 65), 0, 0, OF_ROWS),
        (BOARD, ROWS.new_zeros(3, 2).t(), 0, 0, OF_ROWS),
        (BOARD, ROWS.int(), 0, 0, OF_ROWS),
        (BOARD, ROWS[:, 0], 0, 0, OF_ROWS),
    ],
)
def test_arguments_that_do_not_fit(board, rows, rank, round, message):
    for call in (ops.board_leave, lambda *given: ops.board_take(*given, 0)):
        with pytest.raises(RuntimeError, match=re.escape(message)):
            call(board, rows, rank, round)
    assert not board.any()
