"""What the ranks of a split model do when one of them fails, ends, stops or leaves: the others raise, and name it."""

import os
import signal
import time
from types import SimpleNamespace

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers import forked
from helpers.cluster import answers_without_one, cluster
from helpers.data import wait_for
from helpers.mapped import memories
from helpers.narrow import CLASSES, FEATURES, HIDDEN
from helpers.slow import quick
from helpers.split_models import own_batches

from torch_gnnscale.comm import rendezvous
from torch_gnnscale.comm.rendezvous import rank_and_world
from torch_gnnscale.split import connection, parallelize

TRANSPORTS = ["memory", "gloo"]


def made(transport, timeout=60.0, hidden=HIDDEN, layers=3):
    """A model and a batch of this rank."""
    rank, world = rank_and_world()
    model = pyg_nn.GraphSAGE(FEATURES, hidden, layers, CLASSES).double()
    _, batch, _ = next(own_batches(world, rank))
    return model, parallelize(model, transport=transport, timeout=timeout), batch


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise KeyError("no luck")


def fails(transport, where):
    """Rank 1 fails in its second step."""
    rank, _ = rank_and_world()
    model, split, batch = made(transport)
    split(batch).sum().backward()
    if rank == 1 and where == "forward":
        model.convs[1].register_forward_pre_hook(lambda *_: 1 // 0)
    if rank == 1 and where == "backward":
        model.convs[1].register_forward_hook(lambda _, __, out: Fails.apply(out))
    if rank == 1 and where == "batch":
        del batch.shuffle_index
    begin = time.monotonic()
    try:
        split(batch).sum().backward()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    try:
        split(batch)
    except RuntimeError as error:
        return text, str(error), time.monotonic() - begin


SAID = {
    "forward": ("ZeroDivisionError: integer division or modulo by zero",) * 2,
    "backward": ("KeyError: 'no luck'", "its backward pass failed"),
    "batch": ("ValueError: batch: expected one of NeighborLoader(split=plan) with shuffle_index, found none",) * 2,
}


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("where", SAID)
def test_an_error_of_one_rank_is_raised_on_all(where, transport):
    own, told = SAID[where]
    first, second, third = cluster(3).run(fails, transport, where)
    assert second[0] == own
    assert first[0] == third[0] == f"RuntimeError: split: rank 1: {told}"
    for _, text, seconds in (first, second, third):
        assert text == "split: expected a connection between the ranks, found one that was closed, or that failed"
        assert seconds < 30


def skips(transport):
    """Rank 1 leaves out a backward pass."""
    rank, _ = rank_and_world()
    _, split, batch = made(transport, timeout=4.0)
    split(batch).sum().backward()
    out = split(batch).sum()
    try:
        if rank != 1:
            out.backward()
        split(batch)
    except RuntimeError as error:
        return str(error)


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_leaves_out_a_backward_pass_is_named(transport):
    first, second = cluster(2).run(skips, transport)
    for text in (first, second):
        # By the one that waits longer, or by what each waited for if both have waited long enough.
        assert text.startswith(
            (
                "split: rank 0 waited for the others in 'backward convs.2'; rank 1 waited for the others in 'header'; "
                "did one of them leave out a call, such as a backward pass?: ",
                "split: rank 1 did not come within 4 seconds to what the others do together",
            )
        )


def test_ranks_that_wait_for_different_things():
    assert (
        rendezvous._apart({0: "header", 1: "header"}) == rendezvous._apart({0: "header"}) == rendezvous._apart({}) == ""
    )
    assert rendezvous._apart({0: "backward a", 1: "header", 2: "backward a"}) == (
        "rank 0, 2 waited for the others in 'backward a'; rank 1 waited for the others in 'header'; did one of them "
        "leave out a call, such as a backward pass?"
    )


def closed(transport):
    """A backward pass after the end of its model."""
    _, split, batch = made(transport)
    out = split(batch).sum()
    split.close()
    try:
        out.backward()
    except RuntimeError as error:
        return str(error)
    return None


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_backward_pass_after_the_end(transport):
    said = "split: expected a connection between the ranks, found one that was closed, or that failed"
    assert cluster(2).run(closed, transport) == [said] * 2


def trains(transport, timeout, steps):
    """Some steps; returns the error, and after how many seconds it came."""
    _, split, batch = made(transport, timeout)
    for _ in range(steps):
        begin = time.monotonic()
        try:
            split(batch).sum().backward()
        except RuntimeError as error:
            return str(error), time.monotonic() - begin
    return split is None


_kept = []


def leaves(transport, keeps):
    """Rank 1 leaves the loop alone, and goes on living, with its model or without."""
    if rank_and_world()[0] == 0:
        return trains(transport, 2.0, 3)
    _, split, batch = made(transport, 2.0)
    for _ in range(2):
        split(batch).sum().backward()
    _kept.extend([split] * keeps)
    return None


def forget():
    _kept.clear()


@pytest.mark.parametrize("transport", quick(list(TRANSPORTS), "gloo"))
@pytest.mark.parametrize(
    ("keeps", "said"),
    [
        pytest.param(True, "split: rank 1 did not come within ", marks=pytest.mark.slow),
        (False, "split: rank 1: its model was closed or dropped"),
    ],
)
def test_a_rank_that_leaves_alone(keeps, said, transport):
    (text, seconds), _ = cluster(2).run(leaves, transport, keeps)
    assert text.startswith(said)
    assert seconds < 30
    cluster(2).run(forget)


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_killed_or_stopped(number, transport):
    call = trains, transport, 5.0, 100_000
    for returned, (text, seconds) in answers_without_one(3, number, (trains, transport, 60.0, 1), call, 4):
        assert returned
        assert text.startswith("split: rank 1 is gone or does not answer: ")
        assert seconds < 60


def open_things():
    """How many threads and files are open, and shared memories mapped."""
    return [len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), memories()]


def drop(count, transport):
    """Makes and drops so many models after a step, with and without its way back; the parameters stay. Batches are
    too large for the first buffers of peers."""
    parameters = []
    for number in range(count):
        model, split, batch = made(transport, hidden=8192, layers=2)
        out = split(batch).sum()
        grown = [
            len(memory.bytes) for of in split._connection.transports.values() for memory in getattr(of, "_memories", [])
        ]
        assert all(num_bytes > 1 << 21 for num_bytes in grown)
        parameters += model.parameters()
        del split
        if number % 2:
            out.backward()  # the graph has kept the groups
        del out, model
    return parameters


def drops(transport):
    """Fails if more is open after many dropped models than after a few."""
    _first = drop(2, transport)
    few = open_things()
    _more = drop(18, transport)
    # Threads take a moment to end.
    wait_for(lambda: all(after <= before for before, after in zip(few, open_things(), strict=True)))


@pytest.mark.slow
@pytest.mark.parametrize("transport", quick(list(TRANSPORTS), "gloo", slow=()))
def test_dropped_models_leave_nothing_open(transport):
    cluster(2).run(drops, transport)


PROGRAM = """
from torch import distributed as dist
from torch_geometric.nn import GraphSAGE
from torch_gnnscale import split
dist.init_process_group("gloo")
model = split.parallelize(GraphSAGE(4, 8, 2, 3))
print("made", flush=True)
dist.barrier()
"""


@pytest.mark.slow
def test_a_program_that_ends_with_a_model():
    for done in forked.run_ranks(2, PROGRAM):
        assert (done.returncode, done.stdout) == (0, "made\n"), done.stderr


class Held:
    """What a model's groups are to an exchange; rank 1 has left why it failed."""

    def __init__(self):
        self.ended, self.why, self.rendezvous = False, [], self

    def lost(self, error, waited_for):
        assert waited_for == "parameters"
        return f"rank 1: no luck ({error})"

    def end(self, why, failed=False):
        self.why.append(why)


def test_a_broadcast_that_fails_names_the_rank(monkeypatch):
    def broadcast(*_):
        raise RuntimeError("closed")

    monkeypatch.setattr(connection.dist, "broadcast", broadcast)
    monkeypatch.setattr(connection.dist, "get_global_rank", lambda group, rank: rank)
    held = Held()
    exchange = connection._Connected(object(), 2, 0, held, "gloo")
    with pytest.raises(RuntimeError, match=r"^split: rank 1: no luck \(closed\)$"):
        exchange.broadcast(torch.zeros(1))
    assert held.why == [""]
    held.ended = True
    with pytest.raises(RuntimeError, match=f"^split: {connection.ENDED}$"):
        exchange.broadcast(torch.zeros(1))


@pytest.mark.parametrize(
    ("waits", "failed", "backend", "ends"),
    [
        (False, False, "gloo", True), (False, True, "gloo", True), (True, False, "gloo", False),
        (True, True, "gloo", False), (False, False, "nccl", True), (False, True, "nccl", False),
    ],
)  # fmt: skip
def test_a_group_in_which_a_collective_may_wait_is_kept(monkeypatch, waits, failed, backend, ends):
    """Its end would wait, too."""
    group, ended, kept, said = object(), [], [], []
    monkeypatch.setattr(connection, "end_group", ended.append)
    monkeypatch.setattr(connection, "keep_for_ever", kept.append)
    held = connection._Held(SimpleNamespace(fail=said.append, close=lambda: said.append("closed")))
    held.exchanges.append(SimpleNamespace(group=group, waits=waits, backend=backend))
    for _ in range(2):
        held.end("no luck", failed)
    assert (ended, kept) == (([group], []) if ends else ([], [group]))
    assert said == ["no luck", "closed"]
    assert held.exchanges[0].group not in (None, group)


@pytest.mark.parametrize(("why", "failed"), [("closed", False), ("", True)])
def test_a_connection_ends_once(monkeypatch, why, failed):
    """Its transports close, the others are told why unless they know, and of a group in which a collective may wait
    for ever nothing is freed."""
    said = []
    monkeypatch.setattr(connection, "end_group", lambda group: said.append(f"{group} ends"))
    monkeypatch.setattr(connection, "keep_for_ever", lambda group: said.append(f"{group} is kept"))

    def closes(name):
        return SimpleNamespace(close=lambda: said.append(f"{name} closes"))

    def exchange(group, waits, backend="gloo"):
        return SimpleNamespace(group=group, board="board", waits=waits, backend=backend)

    exchanges = [exchange("first", False), exchange("second", True), exchange(None, True)]
    exchanges.append(exchange("nccl", False, "nccl"))
    meeting = closes("rendezvous")
    meeting.fail = lambda why: said.append(f"told: {why}")
    held = connection._Held(meeting, exchanges, {"column": closes("rows")}, {(0,): closes("sums")})
    held.end(why, failed)
    told = [f"told: {why}"] if why else []
    ends = ["first ends", "second is kept", "nccl is kept" if failed else "nccl ends"]
    assert said == [*told, "rows closes", "sums closes", *ends, "rendezvous closes"]
    assert [entry.board for entry in exchanges] == [None] * 4
    assert [entry.group for entry in exchanges] == [connection._ENDED, connection._ENDED, None, connection._ENDED]
    held.end("again")
    assert said[-1] == "rendezvous closes"
    assert len(said) == len(told) + 6
    other = connection._Held(meeting, [])
    assert (other.exchanges, other.transports, other.of_all, other.ended) == ([], {}, {}, False)
