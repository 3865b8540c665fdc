"""Ranks that leave a loader's loop before its end, begin another one, or end their program within it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers import forked
from helpers.cluster import cluster
from helpers.parts import HERE, as_plain, loader_of_part
from helpers.slow import SLOW
from torch import distributed as dist

from torch_gnnscale.distributed import open_part


def leaves_at(path, steps, kept):
    """Leaves the loop after steps[rank] batches, then goes through an epoch."""
    with open_part(path, **kept) as part:
        loader = loader_of_part(part)
        iterator = iter(loader)
        for _ in range(steps[dist.get_rank()]):
            next(iterator)
        del iterator
        return [as_plain(batch) for batch in loader], loader.state_dict()["epoch"]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("kept", [{}, HERE], ids=["", "here"])
def test_all_ranks_may_leave_the_loop_at_one_step_and_iterate_again(parts, steps, kept):
    whole = cluster(2).run(leaves_at, parts, [0, 0], {})
    found = cluster(2).run(leaves_at, parts, [steps, steps], kept)
    assert found == whole
    assert [epoch for _, epoch in found] == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("kept", [{}, HERE], ids=["", "here"])
def test_ranks_that_leave_the_loop_at_different_steps_are_told(parts, kept):
    results = cluster(2).results(leaves_at, parts, [1, 2], kept)
    assert [returned for returned, _ in results] == [False, False]
    first, second = (text for _, text in results)
    told = "ValueError: loader: expected all ranks at the same batch after which they left the last iteration "
    assert first.startswith((told, "RuntimeError: rank 1 is gone"))
    assert second.startswith((told, "RuntimeError: rank 0 left the loop of epoch 0: all ranks must leave it after the"))


def closes_within_a_loop(path):
    """Rank 0 closes its part after two batches, with the iterator still there; rank 1 goes on."""
    with open_part(path) as part:
        iterator = iter(loader_of_part(part, prefetch=0))
        found = [next(iterator) for _ in range(2)]
        if dist.get_rank() == 1:
            found += iterator
    return len(found)


@pytest.mark.slow
def test_a_part_that_is_closed_within_a_loop_leaves_it(parts):
    text = "RuntimeError: rank 0 left the loop of epoch 0: all ranks must leave it after the same batch"
    assert cluster(2).results(closes_within_a_loop, parts) == [(True, 2), (False, text)]


def leaves_when_all_is_made(path, steps, kept, uneven):
    """As :func:`leaves_at`, once all steps of the epoch were taken: 5, of which rank 1 serves in the last, or pads."""
    with open_part(path, **kept) as part:
        loader = loader_of_part(part, prefetch=10, uneven=uneven)
        iterator = iter(loader)
        for _ in range(steps[dist.get_rank()]):
            next(iterator)
        loader._sharing.steps.thread.submit(int).result()
        del iterator
        return len([as_plain(batch) for batch in loader])


@pytest.mark.parametrize("kept", [{}, SLOW(HERE)], ids=["", "here"])
@pytest.mark.parametrize(
    ("uneven", "steps", "told"),
    [
        ("pad", [0, 5], [0, -1]),
        SLOW("pad", [1, 2], [1, 2]),
        SLOW("pad", [4, 5], [4, -1]),
        SLOW("pad", [5, 5], None),
        SLOW("serve", [3, 4], [3, 4]),
        ("serve", [5, 4], [-1, 4]),
        SLOW("serve", [4, 4], None),
    ],
)
def test_ranks_that_leave_when_no_step_is_left_are_told_if_they_had_different_batches(parts, kept, uneven, steps, told):
    found = cluster(2).results(leaves_when_all_is_made, parts, steps, kept, uneven)
    if told is None:
        assert found == [(True, 5), (True, 5 if uneven == "pad" else 4)]
    else:
        text = "ValueError: loader: expected all ranks at the same batch after which they left the last iteration "
        assert found == [(False, f"{text}(-1: all), found {told}")] * 2


def begins_again(path, steps, kept):
    """Takes ``steps`` batches, and begins an iterator while the one before is kept; what becomes of both."""
    with open_part(path, **kept) as part:
        loader = loader_of_part(part)
        before = iter(loader)
        for _ in range(steps):
            next(before)
        iterator = iter(loader)
        found = [as_plain(batch) for batch in iterator]
        with pytest.raises(RuntimeError, match=r"^expected one iterator at a time .* that a later one has begun$"):
            next(before)
        return found, loader.state_dict()["epoch"]


@pytest.mark.parametrize("steps", [SLOW(0), 1, SLOW(5)])
@pytest.mark.parametrize("kept", [{}, SLOW(HERE)], ids=["", "here"])
def test_an_iterator_ends_when_a_later_one_begins(parts, steps, kept):
    assert cluster(2).run(begins_again, parts, steps, kept) == cluster(2).run(leaves_at, parts, [0, 0], {})


NO_CLOSE = """
import sys
from torch import distributed as dist
from helpers.parts import loader_of_part
from torch_gnnscale.distributed import open_part
dist.init_process_group("gloo", f"file://{sys.argv[1]}/ranks", rank=int(sys.argv[3]), world_size=2)
part = open_part(sys.argv[2])
loader = loader_of_part(part)
iterator = iter(loader)
next(iterator)
print("here", flush=True)
dist.barrier()
"""


@pytest.mark.slow
def test_a_program_that_ends_without_closing_its_part_exits_with_0(parts, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        arguments = [(str(tmp_path), parts, str(rank)) for rank in range(2)]
        ended = list(pool.map(lambda given: forked.run(NO_CLOSE, *given, timeout=60), arguments))
    assert [(process.returncode, process.stdout) for process in ended] == [(0, "here\n")] * 2, ended
