"""In which order the ranks of a transport by memory queue what they write and read."""

import pickle
import random
import time
from typing import NamedTuple

import pytest
import torch
from helpers.cluster import cluster
from helpers.slow import SLOW
from helpers.transports import ended
from torch import distributed as dist

from torch_gnnscale.comm.exchange import Exchange
from torch_gnnscale.comm.memory_transport import MemoryTransport
from torch_gnnscale.comm.peer_memory import BUFFERS, GPUMemories, HostMemories, PeerEvents
from torch_gnnscale.memory import HostArray, HostMemory
from torch_gnnscale.split.rank_rows import Moves, ShuffleIndex


class Queued(NamedTuple):
    """What a rank queues: it ``writes`` or ``reads`` in a turn, ``records`` an event for the ``number``-th time, or
    ``waits`` for that of a rank."""

    what: str
    turn_or_event: int
    rank: int = -1
    number: int = -1


class NotedEvents(PeerEvents):
    """Events in memory of all processes, as many times as each was recorded; notes what is queued. They go over
    nothing: what this rank does is done at once."""

    def __init__(self, queue: list[Queued], rank: int, without: range) -> None:
        self.queue, self.rank, self.without = queue, rank, without
        self.own = HostMemory(8 * 2 * BUFFERS, "test")
        self.of = {rank: self._counts(self.own)}

    def _counts(self, memory):
        return memory.tensor(HostArray(0, (2 * BUFFERS,), torch.int64))

    def handles(self):
        return pickle.dumps(self.own)

    def open(self, rank, handles):
        memory = pickle.loads(handles)
        self.of[rank] = self._counts(memory)
        memory.close()

    def record(self, event):
        self.of[self.rank][event] += 1
        self.queue.append(Queued("records", event, self.rank, int(self.of[self.rank][event])))

    def wait(self, rank, event):
        if event not in self.without:
            self.queue.append(Queued("waits", event, rank, int(self.of[rank][event])))


class NotedMemories(HostMemories):
    """Host memory that is shared as that of GPUs is; notes what is queued."""

    writes_once, joined = GPUMemories.writes_once, GPUMemories.joined

    def __init__(self, queue, rank, without):
        self.noted = NotedEvents(queue, rank, without)

    def events(self):
        return self.noted


class NotedTransport(MemoryTransport):
    """Notes what this rank writes."""

    def _written(self, num_bytes, write, turn):
        self.shared.noted.queue.append(Queued("writes", self._turn))
        return super()._written(num_bytes, write, turn)


def queued_in(steps, without=range(0)):
    """What this rank queues in so many turns, in which ranks are faster or slower at random, and of which ranks it read
    in each turn."""
    rank, world = dist.get_rank(), dist.get_world_size()
    queue, senders, pause = [], [], random.Random(rank)
    exchange = Exchange(dist.new_group(backend="gloo"), world, rank)
    transport = NotedTransport.connect(exchange, NotedMemories(queue, rank, without))
    assert isinstance(transport, MemoryTransport), transport
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        most = 400_000 if step == steps // 2 else 5  # memory grows once
        counts = torch.randint(most, (world, world), generator=generator).fill_diagonal_(0)
        counts *= torch.rand(world, world, generator=generator) < 0.6  # else what is read says what was read before
        to, by = counts[rank].tolist(), counts[:, rank].tolist()
        time.sleep(pause.random() * 2e-3)
        if step % 2:
            sent = torch.zeros(sum(to), dtype=torch.int64)
            moves = Moves(ShuffleIndex(world, rank, sent, *([[count] for count in of] for of in (to, by))), 1)
            got = transport.pull(torch.full((1,), 10 * step + rank), moves, "test").split(by)
        else:
            got = transport.swap(torch.full((sum(to),), 10 * step + rank), to, by, "test")
        assert [of_rank.unique().tolist() for of_rank in got] == [
            [10 * step + other] * (count > 0) for other, count in enumerate(by)
        ]
        time.sleep(pause.random() * 2e-3)
        queue.append(Queued("reads", step))
        senders.append([other for other, count in enumerate(by) if count])
    ended(transport)
    transport.shared.noted.own.close()
    return queue, senders


def clocks_of(queues):
    """For each entry of each queue how many entries of every queue are done before it, if each rank's are done in order
    and a wait ends after what it waits for."""
    at = {
        (entry[1:], rank): k
        for rank, queue in enumerate(queues)
        for k, entry in enumerate(queue)
        if entry.what == "records"
    }
    clocks = [[] for _ in queues]
    while any(len(clock) < len(queue) for clock, queue in zip(clocks, queues, strict=True)):
        before = sum(map(len, clocks))
        for rank, (clock, queue) in enumerate(zip(clocks, queues, strict=True)):
            while len(clock) < len(queue):
                entry, known = queue[len(clock)], list(clock[-1]) if clock else [0] * len(queues)
                if entry.what == "waits" and entry.number > 0:
                    of = at[entry[1:], entry.rank]
                    if len(clocks[entry.rank]) <= of:
                        break
                    known = list(map(max, known, clocks[entry.rank][of]))
                known[rank] = len(clock) + 1
                clock.append(known)
        assert sum(map(len, clocks)) > before, "ranks wait for each other"
    return clocks


def too_early(found):
    """What is read before it is written, and overwritten before it is read: (what, turn, rank, other rank)."""
    queues, wrong = [queue for queue, _ in found], []
    clocks = clocks_of(queues)
    place = [{entry[:2]: k for k, entry in enumerate(queue) if entry.what in ("writes", "reads")} for queue in queues]
    for rank, (_, senders) in enumerate(found):
        for turn, of_turn in enumerate(senders):
            read = place[rank]["reads", turn]
            for sender in of_turn:
                if clocks[rank][read][sender] <= place[sender]["writes", turn]:
                    wrong.append(("read", turn, rank, sender))
                again = place[sender].get(("writes", turn + BUFFERS))
                if again is not None and clocks[sender][again][rank] <= read:
                    wrong.append(("overwritten", turn, rank, sender))
    return wrong


@pytest.mark.parametrize("world", [3, SLOW(2)])
def test_rows_are_read_after_they_are_written_and_before_they_are_overwritten(world):
    """Although each rank's queue is worked off by itself, and ranks meet before that."""
    found = cluster(world).run(queued_in, 14)
    assert too_early(found) == []
    assert sum(len(of_turn) for _, senders in found for of_turn in senders) > 10


@pytest.mark.parametrize(("without", "what"), [(range(BUFFERS), "read"), (range(BUFFERS, 2 * BUFFERS), "overwritten")])
def test_without_its_waits_the_order_is_wrong(without, what):
    """So that the test above can fail."""
    wrong = too_early(cluster(2).run(queued_in, 14, without))
    assert {entry[0] for entry in wrong} == {what}


def test_ranks_on_cpus_wait_for_no_event():
    """They meet when all that they queued is done."""
    assert HostMemories().events() is None
