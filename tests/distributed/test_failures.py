"""What the ranks of a loader do when one of them fails, differs or ends: all of them raise, and none waits."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from helpers.cluster import Cluster, cluster
from helpers.data import plain, wait_for
from helpers.parts import HERE, as_plain, homogeneous, loader_of_part
from torch import distributed as dist

from torch_gnnscale import NeighborLoader, partition
from torch_gnnscale.comm.rendezvous import rank_and_world
from torch_gnnscale.distributed import open_part
from torch_gnnscale.distributed.own_rows import MappedRows


def fails_at(path, rank, at):
    """A transform fails on one rank at its batch ``at``; every rank tells what each batch came to."""

    def transform(out):
        if dist.get_rank() == rank and next(calls) == at:
            raise KeyError("no luck")
        return out

    calls = iter(range(1000))
    found = []
    with open_part(path) as part:
        loader = loader_of_part(part, transform_sampler_output=transform, prefetch=1)
        iterator = iter(loader)
        while True:
            try:
                found.append(as_plain(next(iterator)))
            except StopIteration:
                return found
            except (KeyError, RuntimeError) as error:
                found.append(f"{type(error).__name__}: {error}")


@pytest.mark.slow
def test_an_error_of_one_rank_is_raised_on_all_and_the_next_batches_follow(parts):
    expected = cluster(2).run(fails_at, parts, -1, 0)
    number = 2 * 2 + 1
    for _ in range(2):
        first, second = cluster(2).run(fails_at, parts, 1, 2)
        assert second[2] == "KeyError: 'no luck'"
        assert first[2] == f"RuntimeError: rank 1 failed to make batch {number}: KeyError: 'no luck'"
        for found, whole in ((first, expected[0]), (second, expected[1])):
            assert found[:2] + found[3:] == whole[:2] + whole[3:]


def unreadable_rows(path):
    """The rows of rank 1 cannot be read by it for others."""
    with open_part(path) as part:
        if dist.get_rank() == 1:
            part.features.tables.own[0][0] = MappedRows(None)
        try:
            list(loader_of_part(part, prefetch=0, shuffle=False))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.slow
def test_rows_that_their_owner_cannot_read(parts):
    first, second = cluster(2).run(unreadable_rows, parts)
    assert second.startswith("TypeError: ")
    told = "RuntimeError: rows: expected those of rank 1, found that it could not read them"
    assert first == f"{told}: {second}"


def unreadable_at(path, bad_rank, at):
    """The rows of one rank cannot be read by it for others in its step ``at``; what each batch of this rank came to."""
    with open_part(path) as part:
        loader = loader_of_part(part, prefetch=0, seed_order="global")
        iterator, rows, found = iter(loader), part.features.tables.own[0], []
        for number in range(len(loader)):
            intact, rows[0] = rows[0], MappedRows(None) if (dist.get_rank(), number) == (bad_rank, at) else rows[0]
            try:
                found.append(as_plain(next(iterator)))
            except Exception as error:
                found.append(f"{type(error).__name__}: {error}")
            rows[0] = intact
        return found


@pytest.mark.slow
def test_rows_that_their_owner_cannot_read_are_an_error_in_all_columns(parts):
    """Ranks 1 and 3 exchange rows, 0 and 2 do."""
    whole = cluster(4).run(unreadable_at, parts, -1, 0)
    found = cluster(4).run(unreadable_at, parts, 3, 1)
    assert found[3][1].startswith("TypeError: ")
    assert [of_rank[1] for of_rank in found[:3]] == [f"RuntimeError: rank 3 failed to make batch 7: {found[3][1]}"] * 3
    assert [of_rank[:1] + of_rank[2:] for of_rank in found] == [of_rank[:1] + of_rank[2:] for of_rank in whole]


def seeds_of_others(path):
    with open_part(path) as part:
        NeighborLoader((part.features, part.graph), [2], input_nodes=torch.arange(200), batch_size=10, seed=1)


@pytest.mark.slow
def test_seeds_of_other_parts(parts):
    first, second = cluster(2).results(seeds_of_others, parts)
    assert first == second
    assert first[1].startswith("ValueError: rank 0: inputs: expected those of part 0 with seed_order='owned', found ")
    assert first[1].endswith(" in part 1; use part.input_nodes(...) or seed_order='global'")


def leaves_by_an_error(path):
    """Rank 1 raises in place of making its second loader."""
    with open_part(path) as part:
        loader_of_part(part)
        if dist.get_rank() == 1:
            raise KeyError("no luck")
        loader_of_part(part)


@pytest.mark.slow
def test_a_rank_that_leaves_the_part_by_an_error_says_why(parts):
    first, second = cluster(2).results(leaves_by_an_error, parts)
    assert second == (False, "KeyError: 'no luck'")
    assert first == (False, "RuntimeError: rank 1: KeyError: 'no luck'")


def opens(path):
    with open_part(path):
        pass


@pytest.mark.slow
def test_a_part_that_is_damaged_on_one_rank_is_an_error_on_all(parts, tmp_path):
    shutil.copytree(parts, tmp_path / "parts")
    (file,) = (tmp_path / "parts" / "part-00001").glob("rows_0*.npy")
    damaged = bytearray(file.read_bytes())
    damaged[-3] ^= 1
    file.write_bytes(damaged)
    first, second = cluster(2).results(opens, str(tmp_path / "parts"))
    assert first == second
    assert first[0] is False
    assert first[1].startswith("ValueError: rank 1: ValueError: ")
    assert str(file) in first[1]
    cluster(2).run(opens, parts)


@pytest.mark.slow
def test_ranks_that_are_no_multiple_of_the_parts(parts):
    results = cluster(3).results(opens, parts)
    expected = "ValueError: rank 0: ValueError: ranks: expected a multiple of 2 parts, found 3 ranks"
    assert results == [(False, expected)] * 3


def endless(path, timeout, told, kept):
    """Iterates for ever; makes a file with its first batch."""
    with open_part(path, timeout=timeout, **kept) as part:
        loader = loader_of_part(part)
        while True:
            for _ in loader:
                (Path(told) / str(dist.get_rank())).touch()


@pytest.mark.slow
@pytest.mark.parametrize("kill", range(100 if os.environ.get("GNNSCALE_SOAK") else 3))
def test_when_a_rank_is_killed_the_others_raise_and_name_it(tmp_path, kill):
    killed, kept, told = kill % 3, [{}, HERE][kill % 2], tmp_path / "told"
    told.mkdir()
    partition.write(homogeneous(), tmp_path / "parts", parts=3, method="random")
    own = Cluster(3)
    own.run(rank_and_world)  # all are there
    for rank in range(3):
        own.tell(rank, endless, str(tmp_path / "parts"), 60.0, str(told), kept)
    wait_for(lambda: len(os.listdir(told)) == 3, 60)
    time.sleep(0.37 * kill % 2)  # another moment in each case
    own.send_signal(killed, signal.SIGKILL)
    begin = time.monotonic()
    for rank in {0, 1, 2} - {killed}:
        returned, text = own.answer(rank, begin + 30)
        assert not returned
        assert text.startswith(f"RuntimeError: rank {killed}")
        assert "is gone" in text
    assert time.monotonic() - begin < 30
    own.kill()


@pytest.mark.slow
@pytest.mark.parametrize(("stopped", "told"), [(1, "rank 1 is"), (0, "rank 0, which keeps the store of the ranks, is")])
def test_when_a_rank_is_stopped_the_others_raise_at_the_timeout(parts, tmp_path, stopped, told):
    own = Cluster(2)
    own.run(rank_and_world)
    for rank in range(2):
        own.tell(rank, endless, parts, 8.0, str(tmp_path), {})
    wait_for(lambda: len(os.listdir(tmp_path)) == 2, 60)
    own.send_signal(stopped, signal.SIGSTOP)
    begin = time.monotonic()
    returned, text = own.answer(1 - stopped, begin + 50)
    assert not returned
    assert text.startswith(f"RuntimeError: {told} gone or does not answer: ")
    assert 1.0 < time.monotonic() - begin < 14.0  # ranks that were asked only after the timeout took 16
    own.kill()


def worker_processes(path):
    with open_part(path) as part:
        loader_of_part(part, num_workers=1, multiprocessing_context="fork")


def threads_for_workers(path):
    with open_part(path) as part:
        with pytest.warns(UserWarning, match="^num_workers=2: threads prepare the batches"):
            loader = loader_of_part(part, num_workers=2)
        return [plain(batch) for batch in loader] == [plain(batch) for batch in loader_of_part(part)]


@pytest.mark.slow
def test_num_workers_alone_means_threads(parts):
    assert cluster(2).results(threads_for_workers, parts) == [(True, True)] * 2


def test_what_is_not_implemented(parts):
    text = "worker processes (num_workers=1) with the stores of a part are not implemented; "
    text += "num_workers alone means threads"
    assert cluster(2).results(worker_processes, parts) == [(False, f"NotImplementedError: {text}")] * 2


def wrong_ids(path):
    """A transform puts an id that is no node's on rank 1."""

    def transform(out):
        if dist.get_rank() == 1:
            out.node[0] = 200
        return out

    with open_part(path) as part:
        return list(loader_of_part(part, transform_sampler_output=transform))


@pytest.mark.slow
def test_ids_without_rows_are_an_error_on_all_ranks(parts):
    first, second = cluster(2).results(wrong_ids, parts)
    assert second == (False, "IndexError: index[0] = 200 is out of range: expected rows in [0, 200)")
    assert first[1] == f"RuntimeError: rank 1 failed to make batch 1: {second[1]}"


def after_close(path):
    with open_part(path) as part:
        loader = loader_of_part(part)
    return list(loader)


@pytest.mark.slow
def test_a_loader_over_a_part_that_was_closed(parts):
    text = "RuntimeError: expected the stores of an open part, found that it was closed"
    assert cluster(2).results(after_close, parts) == [(False, text)] * 2


def remote_rows(path):
    from torch_geometric.data import TensorAttr

    with open_part(path) as part:
        own = part.stored.user_ids[None]
        low, high = part.parts.book.bounds[None][part.ranks.part : part.ranks.part + 2].tolist()
        ids = part.features.get_tensor(TensorAttr(None, "n_id", torch.arange(low, high)))
        assert torch.equal(ids, own)
        part.features.get_tensor(TensorAttr(None, "x", torch.arange(200)))


def test_remote_rows_outside_a_loader_are_an_error_and_no_hidden_collective(parts):
    text = (
        "RuntimeError: (None, 'x'): expected ids of part {}, found some of other ranks' parts; torch_gnnscale."
        "NeighborLoader and LinkNeighborLoader read them, in steps that all ranks take together"
    )
    assert cluster(2).results(remote_rows, parts) == [(False, text.format(rank)) for rank in range(2)]
