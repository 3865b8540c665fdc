"""What ranks do when one of them fails before an exchange to which the others have come: all raise and name it."""

import contextlib
import functools
import threading
import time
from types import SimpleNamespace
from unittest import mock

import pytest
from helpers.cluster import cluster
from helpers.data import wait_for
from helpers.parts import HERE, homogeneous, loader_over
from helpers.slow import SLOW, quick
from helpers.split import GivenPlan, without_peers
from torch import distributed as dist

from torch_gnnscale import ops, partition
from torch_gnnscale.comm import exchange, peer_memory, replies
from torch_gnnscale.comm.replies import Layout
from torch_gnnscale.distributed import open_part, partitioned_features
from torch_gnnscale.distributed.buffer import PrefetchBuffer

WAIT = 60.0
"""Seconds after which a rank that waits gives up; no test takes as long."""
MODES = {
    "rows": {"topology": "replicated"},
    "rows here": {"topology": "replicated", "kept": HERE, "prefetch": 0},  # ahead: see without_memory_ahead
    "rows of a buffer": {"topology": "replicated", "kept": {"buffer": 0.5}},
    "neighbors": {},
    "neighbors, global": {"seed_order": "global"},
    "neighbors in bulks": {"bulk": 2},
    "neighbors ahead": {"kept": {"buffer": 0.5, "policy": "lookahead", "policy_options": {"window": 2}}},
    "labor": {"method": "labor"},
    "ladies": {"method": "ladies", "num_neighbors": [20, 20]},
    "split": {"split": True},
    "split, whole": {"split": True, "topology": "replicated"},
    "split, whole, not of one machine": {"split": True, "topology": "replicated", "peers": False},
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Of a topology: a directory of two parts."""

    @functools.cache
    def of(topology):
        path = tmp_path_factory.mktemp("parts") / "parts"
        partition.write(homogeneous(), path, parts=2, method="random", topology=topology)
        return str(path)

    return of


def loader_of(part, options):
    options = {"prefetch": 1, "batch_size": 8, **options}
    if options.pop("split", False):
        options["split"] = GivenPlan(part.parts.book.part_of(part.parts.stored_ids()), 2)
    of = "all" if "split" in options or options.get("seed_order") == "global" else "part"
    return loader_over((part.features, part.graph), part.input_nodes("train", of), "nodes", options)


def without_memory(path, at, kept, peers, options):
    """Rank 1 has none for what it receives, from its allocation ``at`` on. What two epochs came to, the seconds of
    each, and how many batches another loader over the part makes."""

    def empty_bytes(count):
        if dist.get_rank() == 1 and next(calls) >= at:
            raise MemoryError("no luck")
        return ops.empty_bytes(count)

    calls, found, seconds = iter(range(1000)), [], []
    fake = SimpleNamespace(**{**vars(ops), "empty_bytes": empty_bytes})
    same_machine = contextlib.nullcontext() if peers else without_peers()
    with open_part(path, timeout=WAIT, **{"transport": "gloo", **kept}) as part, same_machine:
        loader = loader_of(part, options)
        with mock.patch.object(exchange, "ops", fake), mock.patch.object(peer_memory, "ops", fake):
            for _ in range(2):
                begin = time.monotonic()
                with pytest.raises((MemoryError, RuntimeError)) as error:
                    list(loader)
                found.append(f"{error.type.__name__}: {error.value}")
                seconds.append(time.monotonic() - begin)
        return found, seconds, len(list(loader_of(part, options)))


@pytest.mark.parametrize(("world", "at"), [SLOW(2, 0), SLOW(2, 1), (2, 3), SLOW(2, 6), SLOW(4, 3)])
@pytest.mark.parametrize("mode", quick(MODES, "rows"))
def test_a_rank_without_memory_is_named(parts, world, mode, at):
    options = dict(mode)
    given = [parts(options.pop("topology", "partitioned")), at, options.pop("kept", {}), options.pop("peers", True)]
    for rank, (texts, seconds, batches) in enumerate(cluster(world).run(without_memory, *given, options)):
        assert texts[0] == ("MemoryError: no luck" if rank == 1 else "RuntimeError: rank 1: MemoryError: no luck")
        assert texts[1] == "RuntimeError: rank 1: MemoryError: no luck"
        assert max(seconds) < WAIT / 2
        assert batches > 2


def without_memory_ahead(path):
    """Rank 1 has none in its third step, which is taken while the rows of the second are still to be exchanged."""

    def empty_bytes(count):
        if dist.get_rank() == 1 and threading.current_thread().name == "gnnscale-steps" and next(calls) == 2:
            assert delivered.wait(WAIT)
            raise MemoryError("no luck")
        return ops.empty_bytes(count)

    calls, delivered, found, begin = iter(range(1000)), threading.Event(), [], time.monotonic()
    with open_part(path, timeout=WAIT, **HERE) as part:
        loader = loader_of(part, {"prefetch": 4})
        with mock.patch.object(exchange, "ops", SimpleNamespace(**{**vars(ops), "empty_bytes": empty_bytes})):
            iterator = iter(loader)  # here, because it takes steps at once
            next(iterator)
            delivered.set()
            wait_for(lambda: dist.get_rank() == 0 or loader._sharing.steps._behind, WAIT)
            for _ in range(2):
                with pytest.raises((MemoryError, RuntimeError)) as error:
                    next(iterator)
                found.append(f"{error.type.__name__}: {error.value}")
        return found, time.monotonic() - begin, len(list(loader_of(part, {})))


@pytest.mark.slow
def test_rows_of_steps_before_that_of_the_error_are_not_awaited(parts):
    text = "RuntimeError: rank 1: MemoryError: no luck"
    found = cluster(2).run(without_memory_ahead, parts("replicated"))
    assert [texts for texts, _, _ in found] == [[text, text], [text, "MemoryError: no luck"]]
    assert max(seconds for _, seconds, _ in found) < WAIT / 2
    assert min(batches for _, _, batches in found) > 2


def without_buffer(path, options):
    """Rank 1 has no memory for a loader's prefetch buffer."""

    def buffer(*given):
        if dist.get_rank() == 1:
            raise MemoryError("no luck")
        return PrefetchBuffer(*given)

    with open_part(path, timeout=WAIT, buffer=0.5) as part:
        begin = time.monotonic()
        with (
            mock.patch.object(partitioned_features, "PrefetchBuffer", buffer),
            pytest.raises((MemoryError, ValueError)) as error,
        ):
            loader_of(part, options)
        return f"{error.type.__name__}: {error.value}", time.monotonic() - begin, len(list(loader_of(part, options)))


@pytest.mark.parametrize("topology", quick(["replicated", "partitioned"], "replicated"))
def test_a_loader_whose_buffer_has_no_memory_is_made_on_no_rank(parts, topology):
    found = cluster(2).run(without_buffer, parts(topology), {})
    assert [text for text, *_ in found] == ["ValueError: rank 1: MemoryError: no luck", "MemoryError: no luck"]
    assert max(seconds for _, seconds, _ in found) < WAIT / 2
    assert min(batches for *_, batches in found) > 2


def without_layout(path, transport):
    """Rank 1 has no memory for where the rows of its first step lie in replies. What two epochs came to."""

    def layout(*given):
        if dist.get_rank() == 1:
            raise MemoryError("no luck")
        return Layout(*given)

    with open_part(path, timeout=WAIT, transport=transport) as part:
        begin, loader, found = time.monotonic(), loader_of(part, {}), []
        for fails in (True, False):
            try:
                with mock.patch.object(replies, "Layout", layout) if fails else contextlib.nullcontext():
                    found.append(len(list(loader)) > 2)
            except (MemoryError, RuntimeError) as error:
                found.append(f"{type(error).__name__}: {error}")
        return found, time.monotonic() - begin


@pytest.mark.parametrize("transport", ["memory", SLOW("gloo")])
def test_a_rank_that_cannot_lay_out_its_rows_is_named(parts, transport):
    """Over memory it says so where the others read what it asks, and all go on; over Gloo they are not told of it."""
    found = cluster(2).run(without_layout, parts("replicated"), transport)
    if transport == "memory":
        told = "RuntimeError: ids: expected those of rank 1, found that it failed: MemoryError: no luck"
        assert [texts for texts, _ in found] == [[told, True], ["MemoryError: no luck", True]]
    else:
        text = "RuntimeError: rank 1: MemoryError: no luck"
        assert [texts for texts, _ in found] == [[text, text], ["MemoryError: no luck", text]]
    assert max(seconds for _, seconds in found) < WAIT / 2


def unpicklable(path):
    with open_part(path, timeout=WAIT) as part:
        begin, steps = time.monotonic(), loader_of(part, {})._sharing.steps
        with pytest.raises((TypeError, RuntimeError)) as error:
            steps.gather(threading.Lock() if dist.get_rank() == 1 else None)
        return f"{error.type.__name__}: {error.value}", time.monotonic() - begin


def test_a_rank_whose_value_cannot_be_sent_is_named(parts):
    found = cluster(2).run(unpicklable, parts("replicated"))
    text = "TypeError: cannot pickle '_thread.lock' object"
    assert [entry for entry, _ in found] == [f"RuntimeError: rank 1: {text}", text]
    assert max(seconds for _, seconds in found) < WAIT / 2
