"""Rows that ranks of one machine write into memory of those that ask for them."""

import os
from contextlib import nullcontext, suppress
from unittest import mock

import pytest
import torch
from helpers.cluster import cluster
from helpers.mapped import memories, memories_left
from helpers.parts import HERE, as_plain, loader_of_part, parts_of_edges, with_links
from helpers.refused import refuses
from helpers.slow import SLOW, quick
from torch import distributed as dist

from torch_gnnscale import machine
from torch_gnnscale.comm import rendezvous
from torch_gnnscale.comm.exchange import Exchange
from torch_gnnscale.comm.memory_transport import MemoryTransport
from torch_gnnscale.comm.mesh import Grid, check_one_machine
from torch_gnnscale.comm.peer_memory import HostMemories
from torch_gnnscale.comm.rendezvous import end_group
from torch_gnnscale.comm.replies import ReplyMemories
from torch_gnnscale.comm.row_transport import RowTransport
from torch_gnnscale.distributed import open_part
from torch_gnnscale.memory import HostMemory


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """(data, a directory of two parts)."""
    return with_links(tmp_path_factory, 2)


# An exchange ##########################################################################################################


def transports():
    """One over memory and one over Gloo."""
    exchanges = [Exchange(dist.new_group(backend="gloo"), dist.get_world_size(), dist.get_rank()) for _ in range(2)]
    found = MemoryTransport.connect(exchanges[0], HostMemories(), tells=True)
    assert isinstance(found, MemoryTransport), found
    return found, RowTransport(exchanges[1])


def ended(*given):
    for transport in given:
        transport.close()
        end_group(transport.exchange.group)


def answers(transport, counts, size, held=None):
    """Rank r answers the id i with ``size`` bytes of i + r."""
    rank, world = transport.exchange.rank, transport.exchange.size
    to, asked = counts[rank], counts[:, rank]
    ids = torch.cat([torch.arange(count) + 10 * other for other, count in enumerate(to.tolist())])
    table = (torch.arange(int(counts.max()) + 10 * world)[:, None] + rank).to(torch.uint8).expand(-1, size).contiguous()
    found, ((begins,),) = transport.replies.exchanged(
        [ids], to[:, None], asked[:, None], [[size]], lambda asked: [[(table, of_type)] for of_type in asked]
    )
    each = [torch.arange(to[other]) + 11 * other for other in range(world)]
    expected = torch.cat(each).to(torch.uint8)[:, None].expand(-1, size)
    assert torch.equal(found[begins[:, None] + torch.arange(size)], expected)
    if held is not None:
        held.append((found, found.clone()))


def ask_at_random(steps):
    """Rows come over memory as over Gloo, and are counted alike; those that are held are not overwritten."""
    both, held = transports(), []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        counts = torch.randint(30, (both[0].exchange.size,) * 2, generator=generator).fill_diagonal_(0)
        if step % 3 == 2:
            counts[step % len(counts)] = 0
        for transport in both:
            answers(transport, counts, 1 + 20_000 * (step % 5 == 1), held)
        assert all(torch.equal(rows, copy) for rows, copy in held)
        del held[: 2 * (step % 4)]
    held.clear()
    memory, gloo = ([(t.rounds, t.bytes_sent, t.bytes_received, t.headers) for t in (
        transport.exchange.traffic["ids"], transport.exchange.traffic["rows"])] for transport in both)  # fmt: skip
    assert memory == gloo
    assert memory[0][0] == memory[1][0] == steps
    kept = len(both[0].replies._idle)
    ended(*both)
    return kept


@pytest.mark.parametrize("world", [3, SLOW(2)])
def test_rows_and_counts_are_those_of_gloo(world):
    for kept in cluster(world).run(ask_at_random, 12):
        assert 1 < kept <= 8


def ask_often(steps):
    """How many memories this process has mapped more after some exchanges, and after many; replies are dropped."""
    both = transports()
    memories_left()
    counts, found = torch.tensor([[0, 5], [7, 0]]), []
    for step in range(steps):
        answers(both[0], counts, 100)
        if step in (0, steps - 1):
            found.append(memories())
    ended(*both)
    return found


@pytest.mark.slow
def test_memory_is_used_again_when_its_rows_are_gone():
    for first, last in cluster(2).run(ask_often, 20):
        assert first == last


def files_without_path():
    """How many memfds this process has open. Sockets and other files may be closed meanwhile."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing
            found += os.readlink(f"/proc/self/fd/{number}").startswith("/memfd:")
    return found


def ask_and_hold(steps):
    """How many more files without a path a process has open when it holds the replies of so many exchanges."""
    both, held, counts = transports(), [], torch.tensor([[0, 5], [7, 0]])
    before = files_without_path()
    for _ in range(steps):
        answers(both[0], counts, 100, held)
    after = files_without_path()
    held.clear()
    ended(*both)
    return after - before


def test_what_other_ranks_have_allocated_takes_no_descriptors():
    assert cluster(2).run(ask_and_hold, 4) == [4, 4]


def ask_where_a_rank_fails(what):
    """What each of four exchanges came to, of which rank 1 fails in the second, which needs new memory."""
    both, found = transports(), []
    for step in range(4):
        fails = step == 1 and dist.get_rank() == 1
        failing = {
            "allocates": mock.patch.object(HostMemories, "allocated", side_effect=MemoryError("full")),
            "opens": mock.patch.object(HostMemory, "_attach", side_effect=OSError("no map")),
        }[what]
        counts = torch.tensor([[0, 5], [7, 0]]) * (1 if step == 0 else 1000)
        if what == "opens":
            counts[1, 0] = 7  # rank 0 alone needs new memory
        try:
            with failing if fails else nullcontext():
                answers(both[0], counts, 1000)
            found.append("rows")
        except (MemoryError, OSError, RuntimeError) as error:
            found.append(f"{type(error).__name__}: {error}")
    idle = len(both[0].replies._idle)
    ended(*both)
    return found, idle


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "own", "others"),
    [
        ("allocates", "MemoryError: full",
         "OtherRankFailed: ids: expected those of rank 1, found that it failed: MemoryError: full"),
        ("opens", "OSError: no map",
         "OtherRankFailed: rows: expected memory that all ranks can open, found that rank 1 cannot: OSError: no map"),
    ],
)  # fmt: skip
def test_after_a_rank_has_no_memory_all_go_on(what, own, others):
    found = cluster(2).run(ask_where_a_rank_fails, what)
    assert found == [(["rows", text, "rows", "rows"], 1) for text in (others, own)]


def replies_of_a_closed_transport():
    """Whether replies have memory before their transport is closed, and after."""
    given = transports()
    given[0].replies.take(100)
    before = any(given[0].replies._of)
    ended(*given)
    return before, any(given[0].replies._of)


def test_memories_of_replies_are_closed():
    assert cluster(2).run(replies_of_a_closed_transport) == [(True, False)] * 2


def test_a_memory_that_is_too_small_is_replaced():
    replies = ReplyMemories(Exchange(None, 1, 0), HostMemories())
    first, is_new = replies.take(100)
    assert (first, is_new) == (0, True)
    assert replies.take(100) == (1, True)  # the first is not idle
    rows = replies.held(first, 8, 16)
    assert replies.take(5) == (2, True)
    del rows
    assert replies.take(100) == (0, False)
    replies.give_back(0)
    assert replies.take(3 << 20) == (0, True)
    assert len(replies.bytes_of(0, 0)) >= 3 << 20
    assert replies.take(100) == (3, True)  # what replaced the first one is not idle
    replies.give_back(0)
    replies.give_back(3)
    assert replies.take(100) == (3, False)  # the smaller one
    assert replies.take(len(replies.bytes_of(0, 0))) == (0, False)  # just large enough
    replies.drop(0)
    assert replies.take(100) == (0, True)
    assert replies.take(100) == (4, True)
    replies.close()


# Loaders ##############################################################################################################


def by_transport(path, transport, options, kept):
    """(How rows travelled, this rank's batches, what was counted)."""
    with open_part(path, transport=transport, **kept) as part:
        loader = loader_of_part(part, **options)
        batches = [as_plain(batch) for batch in loader]
        kind = type(loader._sharing.steps.transport).__name__
        stats = part.stats()
        for entry in stats.values():
            del entry["seconds"]
        return kind, batches, stats


LOADERS = {
    "nodes": ({"prefetch": 3}, {}),
    "buffer": ({}, {"buffer": 0.3, "policy": "lookahead"}),
    "tiers": ({"uneven": "serve"}, {"tiers": {"host": "25%"}}),
    "in the thread that iterates": ({"prefetch": 0, "seed_order": "global"}, {}),
}


@pytest.mark.parametrize(("options", "kept"), quick(LOADERS, "nodes"))
@pytest.mark.parametrize("world", [2, SLOW(4)])
def test_batches_and_counts_do_not_depend_on_the_transport(parts, world, options, kept):
    memory, auto, gloo = (
        cluster(world).run(by_transport, parts[1], name, options, kept) for name in ("memory", "auto", "gloo")
    )
    assert {kind for kind, *_ in memory + auto} == {"MemoryTransport"}
    assert {kind for kind, *_ in gloo} == {"RowTransport"}
    assert [rest for _, *rest in memory] == [rest for _, *rest in auto] == [rest for _, *rest in gloo]


def edges_by_transport(path, transport, method):
    """:func:`by_transport`, and which purposes the transport of rows moved something for."""
    with open_part(path, transport=transport) as part:
        loader = loader_of_part(part, method=method)
        batches, moved = [as_plain(batch) for batch in loader], loader._sharing.steps.transport.moved
        counts = {name: {**entry, "seconds": 0} for name, entry in part.stats().items()}
        return batches, counts, sorted(name for name, entry in moved.items() if entry.sent or entry.received)


@pytest.mark.parametrize(
    ("method", "purposes"),
    [("neighbor", ["picks", "requests"]), SLOW("labor", ["picks", "requests"]), SLOW("ladies", ["edges", "requests"])],
)
def test_edges_in_parts_travel_as_rows_do(tmp_path, method, purposes):
    _, path = parts_of_edges(lambda: tmp_path)(2)
    memory, gloo = (cluster(2).run(edges_by_transport, path, name, method) for name in ("memory", "gloo"))
    assert memory == gloo
    assert all(moved == purposes for *_, moved in memory)


def on_two_machines(path, transport, where):
    """What a loader's epoch came to where rank 1 is on another machine, or cannot open memory."""
    elsewhere = {
        "machine": mock.patch.object(machine, "identity", return_value=f"machine {dist.get_rank()}"),
        "memory": mock.patch.object(HostMemories, "opened", side_effect=OSError("no map")),
    }[where]
    anywhere = mock.patch.object(rendezvous, "gloo_address", return_value="")
    with anywhere, elsewhere if where == "machine" or dist.get_rank() == 1 else nullcontext():
        try:
            return by_transport(path, transport, {}, {})[0]
        except ValueError as error:
            return str(error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("machine", "rank 0: ValueError: transport='memory': expected ranks [0, 1] on one machine, found several; use "
         "transport='auto', or consecutive='parts' if each machine has as many ranks as there are parts"),
        ("memory", "transport='memory': expected ranks that can read each other's memory, found rank 1: OSError: "
         "no map"),
    ],
)  # fmt: skip
def test_memory_that_cannot_be_had(parts, where, message):
    assert cluster(2).run(on_two_machines, parts[1], "memory", where) == [message] * 2
    assert cluster(2).run(on_two_machines, parts[1], "auto", where) == ["RowTransport"] * 2


def test_columns_on_one_machine_each():
    check_one_machine(Grid(4, 2, "parts"), ["a", "a", "b", "b"])
    with refuses(
        ValueError,
        "transport='memory': expected ranks [0, 2] on one machine, found several; use "
        "transport='auto', or consecutive='parts' if each machine has as many ranks as there are parts",
    ):
        check_one_machine(Grid(4, 2), ["a", "a", "b", "b"])  # fmt: skip


def earlier(path):
    with pytest.warns(FutureWarning, match=r"^open_part\(backend=\) is now transport="):
        part = open_part(path, backend=HERE["transport"])
    with part:
        return part.features.rows_here


def test_the_earlier_name_of_the_argument(parts):
    assert cluster(2).run(earlier, parts[1]) == [True, True]
