"""Memory of peers: how ranks connect, how it grows, and what they do when one of them fails meanwhile."""

from contextlib import nullcontext
from unittest import mock

import pytest
import torch
from helpers.cluster import cluster
from helpers.mapped import memories, memories_left
from helpers.transports import ended, made, swaps, swaps_on
from torch import distributed as dist

from torch_gnnscale.comm.exchange import Exchange
from torch_gnnscale.comm.memory_transport import MemoryTransport
from torch_gnnscale.comm.peer_memory import GPUMemories, HostMemories
from torch_gnnscale.comm.rendezvous import end_group
from torch_gnnscale.comm.row_transport import ENDED
from torch_gnnscale.memory import HostMemory
from torch_gnnscale.split.rank_rows import Moves, ShuffleIndex


@pytest.mark.slow
def test_buffers_of_peers_grow():
    cluster(2).run(swaps, "peers", 6, 30_000)


@pytest.mark.slow
@pytest.mark.parametrize("most", [300, 30_000])
def test_random_rows_of_peers(device, most):
    """On a GPU two processes read each other's memory there; it grows."""
    cluster(2).run(swaps_on, device, 28, most)


def grows():
    """How many shared memories this process has mapped: before, after its peers' have grown, and after one more swap;
    rank 0 sends more and more."""
    memories_left()
    transport, found = made("peers"), []
    rank = transport.exchange.rank
    for count in (1, 300_000, 1):
        rows = torch.arange(count * (rank == 0) + 1)
        sent, received = ([0, len(rows)], [0, 1]) if rank == 0 else ([len(rows), 0], [count + 1, 0])
        transport.swap(rows, sent, received, "test")
        found.append(memories())
    ended(transport)
    return [*found, memories()]


@pytest.mark.slow
def test_memory_that_was_replaced_is_freed_after_the_next_barrier():
    """By then the others have closed it; they close theirs at once."""
    of_writer, of_reader = cluster(2).run(grows)
    assert [entry - of_writer[0] for entry in of_writer] == [0, 1, 0, -2]
    assert [entry - of_reader[0] for entry in of_reader] == [0, 0, 0, -2]


def unlike():
    """Why ranks do not connect: their rows are on other devices, or they have no GPU."""
    exchange = Exchange(dist.new_group(backend="gloo"), 2, dist.get_rank())
    gpu = GPUMemories(torch.device("cuda", 99))
    assert MemoryTransport.connect(Exchange(None, 1, 0), HostMemories()) == "one rank"
    found = [
        MemoryTransport.connect(exchange, gpu if exchange.rank else HostMemories()),
        MemoryTransport.connect(exchange, gpu),
    ]
    end_group(exchange.group)
    return found


def test_why_peers_are_not_connected():
    first, second = cluster(2).run(unlike)
    assert first == second
    assert first[0] == "rows on cpu and cuda"
    assert first[1].startswith("rank 0: ")


def grows_out_of_reach():
    """Rank 0 takes new memory, which rank 1 cannot open; then all try again."""
    exchange = Exchange(dist.new_group(backend="gloo"), 2, dist.get_rank())
    transport, rank = MemoryTransport.connect(exchange, HostMemories(), tells=True), exchange.rank
    sent, received = (300_000, 1) if rank == 0 else (1, 300_000)
    counts = ([[count], [0]] if rank else [[0], [count]] for count in (sent, received))
    own, errors = torch.arange(sent), []
    moves = Moves(ShuffleIndex(2, rank, own, *counts), 1)
    for reached in (rank == 0, True):
        attach = nullcontext() if reached else mock.patch.object(HostMemory, "_attach", side_effect=OSError("no map"))
        try:
            with attach:
                transport.pull(own, moves, "rows")
        except (OSError, RuntimeError) as error:
            errors.append(str(error))
    ended(transport)
    return errors


class CountedMemories(HostMemories):
    """Counts how often the host waits for what was queued."""

    settled = 0

    def settle(self):
        self.settled += 1
        super().settle()


def fails_meanwhile(rows):
    """Rank 1 fails while rows are exchanged: returns the error, and what came in the next exchange."""
    transport, rank = made("peers"), dist.get_rank()
    try:
        transport.swap(torch.zeros(2 * rows), [rows] * 2, [rows] * 2, "test", (lambda: 1 // 0) if rank else None)
        said = None
    except ZeroDivisionError as error:
        said = str(error)
    came = transport.swap(torch.full((4,), float(rank)), [2] * 2, [2] * 2, "test")
    found = said, [of_rank.tolist() for of_rank in came]
    ended(transport)
    return found


@pytest.mark.parametrize("rows", [8, 1 << 18])
def test_ranks_are_in_step_after_an_error_meanwhile(rows):
    """Also if they exchange new memory."""
    came = [[0.0, 0.0], [1.0, 1.0]]
    assert cluster(2).run(fails_meanwhile, rows) == [(None, came), ("integer division or modulo by zero", came)]


def fails_while_the_other_grows():
    """Rank 1 cannot write its rows when rank 0 takes new memory; then it can. The rows take three quarters of a memory,
    more than one of its two buffers. The host waits for what is queued where memory is replaced, and nowhere else."""
    exchange, memories = Exchange(dist.new_group(backend="gloo"), 2, dist.get_rank()), CountedMemories()
    transport, rank = MemoryTransport.connect(exchange, memories, tells=True), exchange.rank
    before_swaps = memories.settled
    before, errors = len(transport._memories[0].bytes), []
    count = before // 8 * 3 // 4
    counts = ([[count], [0]] if rank else [[0], [count]] for _ in range(2))
    moves = Moves(ShuffleIndex(2, rank, torch.arange(count), *counts), 1)
    for step in range(4):
        own, fails = torch.full((count,), 10 * step + rank), rank == 1 and step == 0
        with (
            mock.patch.object(MemoryTransport, "_written", side_effect=MemoryError("full")) if fails else nullcontext()
        ):
            try:
                out = transport.pull(own, moves, "rows")
                errors.append((out == 10 * step + 1 - rank).all().item())
            except (MemoryError, RuntimeError) as error:
                errors.append(str(error))
    grew = len(transport._memories[0].bytes) > before
    ended(transport)
    return grew, errors, memories.settled - before_swaps


def test_a_rank_that_cannot_write_takes_new_memory_of_others():
    elsewhere = "rows: expected those of rank 1, found that it could not write them: MemoryError: full"
    found = cluster(2).run(fails_while_the_other_grows)
    assert found == [(True, [elsewhere, True, True, True], 2), (True, ["full", True, True, True], 2)]


def test_after_memory_out_of_reach_nothing_is_read():
    """What such a rank has open is old: it would read rows of an earlier batch."""
    elsewhere = "rows: expected those of rank 1, found that it could not write them: "
    told = f"split: {ENDED}"
    assert cluster(2).run(grows_out_of_reach) == [[f"{elsewhere}RuntimeError: {told}"], ["no map", told]]
