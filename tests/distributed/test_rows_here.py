"""Rows that the thread that iterates exchanges: NCCL's way of doing so, taken here by Gloo and on the CPU."""

import re
import threading

import pytest
import torch
from helpers.cluster import cluster
from helpers.disturbed import disturbed, results_of, unanswerable
from helpers.hetero import PAPER, make_hetero
from helpers.parts import (
    HERE,
    as_plain,
    batches_of_rank,
    check_batches,
    expected_batches,
    fetched,
    homogeneous,
    loader_of_part,
    parts_of_edges,
    with_links,
)
from helpers.slow import SLOW, in_turns, quick
from torch import distributed as dist

from torch_gnnscale import partition
from torch_gnnscale.distributed import open_part, row_exchange
from torch_gnnscale.distributed.own_rows import MappedRows
from torch_gnnscale.distributed.row_exchange import RowKind, _replies

BUFFERS = {
    "none": {},
    "massivegnn": {"buffer": 0.5, "policy_options": {"gamma": 0.9, "delta": 2}},
    "static": {"buffer": 0.25, "policy": "static"},
    "lookahead": {"buffer": 0.3, "policy": "lookahead", "policy_options": {"window": 3}},
    "a whole epoch": {"buffer": 0.3, "policy": "lookahead", "policy_options": {"window": "epoch"}},
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """(data, a directory of two parts)."""
    return with_links(tmp_path_factory, 2)


@pytest.fixture(scope="module")
def edges(tmp_path_factory):
    return parts_of_edges(lambda: tmp_path_factory.mktemp("parts"))


@pytest.mark.slow
@pytest.mark.parametrize("kept", BUFFERS.values(), ids=BUFFERS)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("nodes", {}), ("nodes", {"prefetch": 0, "disjoint": True}), ("nodes", {"prefetch": 7, "bulk": 2}),
        ("nodes", {"uneven": "serve", "batch_size": 7}), ("links", {"seed_order": "global"}),
    ],
    ids=["nodes", "disjoint", "bulk", "serve", "links"],
)  # fmt: skip
@pytest.mark.parametrize("world", [2, 4])
def test_batches_are_those_of_one_process(parts, kept, kind, options, world):
    data, path = parts
    expected = expected_batches(data, path, kind, 3, options, world)
    check_batches(cluster(world).run(batches_of_rank, path, kind, 3, options, {**kept, **HERE}), expected)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"bulk": 3, "uneven": "serve", "seed_order": "global", "batch_size": 7}, {}])
@pytest.mark.parametrize(("count", "world", "kept"), in_turns([(2, 2), (3, 3), (2, 4)], BUFFERS, "none"))
def test_where_edges_are_in_parts(edges, kept, options, count, world):
    data, path = edges(count)
    expected = expected_batches(data, path, "nodes", 2, options, world)
    check_batches(cluster(world).run(batches_of_rank, path, "nodes", 2, options, {**kept, **HERE}), expected)


@pytest.mark.slow
def test_a_part_without_nodes(edges):
    data, path = edges(0)
    options = {"uneven": "serve"}
    expected = expected_batches(data, path, "nodes", 1, options, 3)
    assert cluster(3).run(batches_of_rank, path, "nodes", 1, options, HERE) == expected


@pytest.mark.slow
def test_types(tmp_path):
    data = make_hetero()
    splits = {"train": (PAPER, torch.arange(0, 40, 2))}
    partition.write(data, tmp_path / "parts", parts=2, method="random", splits=splits)
    path = str(tmp_path / "parts")
    options = {"num_neighbors": [3, 2]}
    expected = cluster(2).run(batches_of_rank, path, "nodes", 1, options)
    check_batches(cluster(2).run(batches_of_rank, path, "nodes", 1, options, HERE), expected)


@pytest.mark.slow
def test_tiers(parts):
    data, path = parts
    expected = expected_batches(data, path, "nodes", 3, {}, 2)
    kept = {**HERE, **BUFFERS["lookahead"], "tiers": {"host": "25%"}}
    check_batches(cluster(2).run(batches_of_rank, path, "nodes", 3, {}, kept), expected)


@pytest.mark.slow
@pytest.mark.parametrize("kept", BUFFERS.values(), ids=BUFFERS)
def test_what_travels_is_the_same_but_for_the_status_of_replies(parts, kept):
    options = {"num_neighbors": [9, 9]}
    usual = cluster(2).run(fetched, parts[1], kept, 3, options)
    expected = [(received - 8 * steps, rounds, steps) for received, rounds, steps in usual]
    assert cluster(2).run(fetched, parts[1], {**kept, **HERE}, 3, options) == expected


# Threads ##############################################################################################################


def exchanging_threads(path, prefetch):
    """(how many all-to-alls of rows each step took, whether the thread that iterates issued all of them)."""
    with open_part(path, **HERE) as part:
        loader = loader_of_part(part, prefetch=prefetch)
        exchange = loader._sharing.steps.rows_here
        issued = exchange.bytes
        threads = []

        def noted(*args):
            threads.append(threading.get_ident())
            return issued(*args)

        exchange.bytes = noted
        each = []
        for _ in loader:
            each.append(len(threads))
        return [after - before for before, after in zip([0, *each], each, strict=False)], set(threads) == {
            threading.get_ident()
        }


@pytest.mark.parametrize("prefetch", [SLOW(0), 3])
def test_the_thread_that_iterates_exchanges_rows_once_per_step(parts, prefetch):
    for each, here in cluster(2).run(exchanging_threads, parts[1], prefetch):
        assert len(each) > 3
        assert set(each) == {1}
        assert here


# Errors ###############################################################################################################


@pytest.mark.slow
@pytest.mark.parametrize("kept", BUFFERS.values(), ids=BUFFERS)
@pytest.mark.parametrize("world", [2, 4])
def test_loops_that_are_left_and_batches_that_fail(parts, kept, world):
    expected = cluster(world).run(disturbed, parts[1], {}, {})
    assert any("failed" in batches for batches in expected[0])
    assert cluster(world).run(disturbed, parts[1], {**kept, **HERE}, {}) == expected


@pytest.mark.slow
@pytest.mark.parametrize("bulk", [1, 2])
def test_sampling_that_fails_on_one_rank(edges, bulk):
    expected = cluster(2).run(unanswerable, edges(2)[1], 1, bulk)
    assert cluster(2).run(unanswerable, edges(2)[1], 1, bulk, {**BUFFERS["massivegnn"], **HERE}) == expected


class Unreadable(MappedRows):
    """Rows that cannot be read once: in the third step, for other ranks."""

    reads = 0

    def gather(self, ids):
        self.reads += 1
        if self.reads == 5:
            raise OSError("no luck")
        return super().gather(ids)


def unreadable(path, bad_rank, kept):
    with open_part(path, **kept, **HERE) as part:
        if dist.get_rank() == bad_rank:
            part.features.tables.own[0][0] = Unreadable(part.features.tables.own[0][0].tensor)
        return results_of(loader_of_part(part))


@pytest.mark.slow
@pytest.mark.parametrize("kept", BUFFERS.values(), ids=BUFFERS)
@pytest.mark.parametrize(("bad_rank", "world"), [(1, 2), (0, 4)])
def test_rows_that_a_rank_cannot_read_fail_on_all_before_they_travel(parts, kept, bad_rank, world):
    whole = cluster(world).run(unreadable, parts[1], -1, kept)
    found = cluster(world).run(unreadable, parts[1], bad_rank, kept)
    for rank, (ours, expected) in enumerate(zip(found, whole, strict=True)):
        assert ours[2] == "OSError: no luck" if rank == bad_rank else f"rank {bad_rank} failed" in ours[2]
        assert ours[:2] + ours[3:] == expected[:2] + expected[3:]


@pytest.mark.parametrize(
    ("transport", "message"),
    [
        ("nccl", "transport='nccl': expected a GPU that torch sees and NCCL in torch, found no GPU that torch sees"),
        ("mpi", "transport: expected one of ('auto', 'gloo', 'nccl', 'memory'), found 'mpi'"),
    ],
)
def test_bad_input(tmp_path, transport, message):
    if transport == "nccl" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    partition.write(homogeneous(), tmp_path / "parts", parts=1, method="random")
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        open_part(tmp_path / "parts", transport=transport)


def other_backends(path):
    open_part(path, **(HERE if dist.get_rank() else {"transport": "nccl"}))


def test_other_backends_are_refused(parts):
    text = "ValueError: transport: expected the same on all ranks, found ['nccl', 'gloo on cpu']"
    assert cluster(2).results(other_backends, parts[1]) == [(False, text)] * 2


def out_of_memory(path, kept):
    """What a loader's first four batches are, or say, where a rank has no memory for the rows of the first step."""
    plain_rows, left = row_exchange._rows, [True]

    def rows(*arguments):
        if left:
            left.clear()
            raise MemoryError("no room")
        return plain_rows(*arguments)

    row_exchange._rows, said = rows, []
    try:
        with open_part(path, **kept, **HERE) as part:
            batches = iter(loader_of_part(part))
            for _ in range(4):
                try:
                    next(batches)
                    said.append("a batch")
                except Exception as error:
                    said.append(f"{type(error).__name__}: {error}")
    finally:
        row_exchange._rows = plain_rows
    return said


@pytest.mark.parametrize("kept", quick(BUFFERS, "static"))
def test_no_batch_follows_rows_that_were_lost(parts, kept):
    for said in cluster(2).run(out_of_memory, parts[1], kept):
        assert said[0] == "MemoryError: no room"
        assert "a batch" not in said


def two_iterators(path):
    """What the newer iterator of a loader delivers, when rows of the older one's steps are still to be exchanged."""
    with open_part(path, **HERE) as part:
        loader = loader_of_part(part, prefetch=2)
        older = iter(loader)
        next(older)
        loader._sharing.steps.thread.submit(int).result()
        assert len(loader._sharing._together._owed) == 2
        newer = iter(loader)
        with pytest.raises(RuntimeError, match=r" that a later one has begun$"):
            next(older)
        return [as_plain(batch) for batch in newer]


@pytest.mark.slow
def test_rows_that_were_on_their_way_when_another_iterator_began(parts):
    found = cluster(2).run(two_iterators, parts[1])
    assert found == [epochs[1] for epochs in cluster(2).run(batches_of_rank, parts[1], "nodes", 2, {})]


def test_ids_that_others_ask_for_are_checked():
    rows, kind = MappedRows(torch.arange(6).view(3, 2)), RowKind(torch.int64, (2,))
    found = _replies([torch.tensor([2, 0]), torch.tensor([1])], rows, kind, torch.device("cpu"))
    assert [piece.view(torch.int64).tolist() for piece in found] == [[4, 5, 0, 1], [2, 3]]
    with pytest.raises(IndexError, match=r"^ids\[1\] = 3 is out of range: expected rows in \[0, 3\)$"):
        _replies([torch.tensor([2]), torch.tensor([3])], rows, kind, torch.device("cpu"))
