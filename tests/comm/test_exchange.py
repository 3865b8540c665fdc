"""Numbers, bytes and rows that ranks exchange, and what is counted."""

import threading
from dataclasses import asdict

import pytest
import torch
from helpers.cluster import cluster
from helpers.refused import refuses
from helpers.slow import SLOW
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

from torch_gnnscale.comm.exchange import OtherRankFailed, keep_for_ever
from torch_gnnscale.comm.liveness import Liveness
from torch_gnnscale.comm.rendezvous import Rendezvous
from torch_gnnscale.comm.row_transport import RowTransport
from torch_gnnscale.distributed import Exchange
from torch_gnnscale.distributed.own_rows import MappedRows
from torch_gnnscale.distributed.row_exchange import PartTables, RowKind, Travelled, Wanted, counts_by_part, locate


def exchange_of_all():
    return Exchange(dist.group.WORLD, dist.get_world_size(), dist.get_rank())


def numbers():
    exchange, rank = exchange_of_all(), dist.get_rank()
    sent = torch.tensor([[rank * 10 + other, 7] for other in range(exchange.size)])
    found = exchange.numbers(sent, "headers").tolist()
    assert (exchange.broken, exchange.waits) == (False, False)
    return found, asdict(exchange.traffic["headers"])


@pytest.mark.slow
def test_numbers_of_each_rank_to_each():
    for rank, (found, traffic) in enumerate(cluster(3).run(numbers)):
        assert found == [[other * 10 + rank, 7] for other in range(3)]
        assert (traffic["headers"], traffic["header_bytes"], traffic["rounds"]) == (1, 2 * 16, 0)
        assert traffic["seconds"] > 0


class Unreached(Exchange):
    """An exchange whose collectives bring zeros."""

    def _all_to_all(self, received, *_):
        received.zero_()


@pytest.mark.parametrize(
    ("function", "number", "call"),
    [
        ("empty_like", 0, lambda exchange: exchange.numbers(torch.zeros(2, 1, dtype=torch.int64), "test")),
        ("cat", 0, lambda exchange: RowTransport(exchange).tensors([torch.ones(1)] * 2, [1, 1], "test")),
        ("stack", 0, lambda exchange: RowTransport(exchange).sum(torch.arange(4), "test")),
        ("empty", 1, lambda exchange: exchange.objects("text")),
    ],
)
def test_who_lacks_memory_for_a_collective_leaves_the_others_waiting(function, number, call, monkeypatch):
    exchange, calls, real = Unreached(object(), 2, 0), iter(range(9)), getattr(torch, function)

    def lacking(*given, **options):
        if next(calls) == number:
            raise MemoryError("no luck")
        return real(*given, **options)

    monkeypatch.setattr(torch, function, lacking)
    with pytest.raises(MemoryError, match="no luck"):
        call(exchange)
    assert exchange.broken


def ragged():
    exchange, rank = exchange_of_all(), dist.get_rank()
    sizes = [4 * (rank + other) if other != rank else 0 for other in range(3)]
    sent = torch.full((sum(sizes) // 2,), rank, dtype=torch.int16).view(torch.uint8)
    done = []
    found = exchange.bytes(sent, sizes, sizes, "rows", lambda: done.append(True)).split(sizes)
    return [entry.view(torch.int16).tolist() for entry in found], asdict(exchange.traffic["rows"]), done


def test_bytes_of_any_size():
    for rank, (found, traffic, done) in enumerate(cluster(3).run(ragged)):
        assert found == [[other] * (2 * (rank + other)) if other != rank else [] for other in range(3)]
        expected = sum(4 * (rank + other) for other in range(3) if other != rank)
        assert (traffic["rounds"], traffic["bytes_sent"], traffic["bytes_received"]) == (1, expected, expected)
        assert done == [True]


def rows_of_ranks():
    """Two types; rank r has rows 100 r, 100 r + 1, ... of the first, of two attributes, and bytes of the second."""
    exchange, rank = exchange_of_all(), dist.get_rank()
    kinds = [[RowKind(torch.float64, (2,)), RowKind(torch.int32, ())], [RowKind(torch.uint8, (3,))]]
    of_nodes = torch.arange(50) + 100 * rank
    read = [
        [of_nodes[:, None] * torch.tensor([1.0, 0.5], dtype=torch.float64), of_nodes.int()],
        [of_nodes[:, None].expand(-1, 3).to(torch.uint8)],
    ]
    wanted = [torch.tensor([3, 5, 9, 1, 2]), torch.tensor([7, 8])]
    counts = torch.zeros(3, 2, dtype=torch.int64)
    others = [other for other in range(3) if other != rank]
    counts[others[0]], counts[others[1]] = torch.tensor([3, 0]), torch.tensor([2, 2])
    asked = exchange.numbers(counts, "counts")
    own = [[MappedRows(rows) for rows in of_type] for of_type in read]
    bounds = torch.arange(4) * 50
    tables = PartTables(rank, [bounds, bounds], kinds, own)
    ids = [of + bounds[:-1].repeat_interleave(count) for of, count in zip(wanted, counts.unbind(1), strict=True)]
    asking = Wanted.of(ids, tables.bounds)
    assert torch.equal(asking.counts, counts)
    found = tables.exchange(RowTransport(exchange), asked, asking)
    (pairs, codes), (bytes_,) = (
        [entry.rows(rows) for entry, rows in zip(of_type, tables, strict=True)]
        for of_type, tables in zip(found, read, strict=True)
    )
    return pairs.tolist(), codes.tolist(), bytes_.tolist()


def test_rows_of_several_types_and_attributes():
    for rank, (pairs, codes, bytes_) in enumerate(cluster(3).run(rows_of_ranks)):
        first, second = (100 * other for other in range(3) if other != rank)
        expected = [first + 3, first + 5, first + 9, second + 1, second + 2]
        assert codes == expected
        assert pairs == [[value, value / 2] for value in expected]
        assert bytes_ == [[(second + value) % 256] * 3 for value in (7, 8)]


def test_contiguous_rows_as_those_that_travelled():
    rows = torch.arange(12, dtype=torch.int16).view(4, 3)
    assert torch.equal(Travelled.of(rows).rows(rows), rows)
    assert torch.equal(Travelled.of(rows[:0]).rows(rows), rows[:0])


@pytest.mark.slow
@given(st.lists(st.integers(0, 8), min_size=1, max_size=5), st.data())
def test_where_rows_lie(sizes, data):
    bounds = torch.tensor([0, *sizes]).cumsum(0)
    part = data.draw(st.integers(0, len(sizes) - 1))
    largest = int(bounds[-1]) - 1
    ids = torch.tensor(data.draw(st.lists(st.integers(0, largest), max_size=20)) if largest >= 0 else [])
    found = locate(ids.to(torch.int64), bounds, part)
    rebuilt = [place + int(bounds[part]) if place >= 0 else int(found.remote[~place]) for place in found.place.tolist()]
    assert rebuilt == ids.tolist()
    assert found.remote.tolist() == sorted({i for i in ids.tolist() if not bounds[part] <= i < bounds[part + 1]})
    by_part = [sum(int(bounds[i]) <= v < int(bounds[i + 1]) for v in found.remote.tolist()) for i in range(len(sizes))]
    assert counts_by_part(found.remote, bounds).tolist() == by_part


def waits_alone():
    """Rank 0 begins an exchange to which rank 1 does not come."""
    group, found = dist.new_group([0, 1], backend="gloo"), None
    if dist.get_rank() == 0:
        exchange = Exchange(group, 2, 0)
        threading.Timer(0.1, exchange.give_up).start()
        try:
            exchange.numbers(torch.zeros(2, 1, dtype=torch.int64), "headers")
        except RuntimeError as error:
            found = str(error), exchange.broken
        keep_for_ever(group)
    dist.barrier()
    dist.destroy_process_group(group)
    return found


@pytest.mark.slow
def test_who_waits_for_other_ranks_may_give_up():
    found = cluster(2).run(waits_alone)
    assert found == [("the part was closed before other ranks came to this step", True), None]


def made_by_all(errors):
    rendezvous = Rendezvous(dist.get_rank(), dist.get_world_size(), 30.0)

    def make():
        if (error := errors[rendezvous.rank]) is not None:
            raise error
        return rendezvous.rank

    try:
        return rendezvous.all_made(make)
    finally:
        rendezvous.close()


def test_what_one_rank_cannot_make_is_an_error_on_all():
    assert cluster(2).run(made_by_all, [None, None]) == [0, 1]
    text = "ValueError: rank 1: {}: no luck"
    for error in (ValueError("no luck"), OSError("no luck")):
        assert cluster(2).results(made_by_all, [None, error]) == [(False, text.format(type(error).__name__))] * 2
    first, second = cluster(2).results(made_by_all, [None, TypeError("no luck")])
    assert (first, second) == ((False, text.format("TypeError")), (False, "TypeError: no luck"))


def seconds_between_looks(worlds):
    return [Liveness(0, world, 1.0)._every for world in worlds]


def test_more_ranks_do_not_ask_the_store_more_often():
    (found,) = set(map(tuple, cluster(2).run(seconds_between_looks, [2, 50, 512])))
    assert found == (0.5, 0.5, 5.12)


def test_time_adds_up():
    exchange, none = Exchange(None, 1, 0), torch.empty(0, dtype=torch.uint8)
    exchange.traffic["a"].seconds = 100.0
    exchange.numbers(torch.zeros(1, 2, dtype=torch.int64), "a")
    after = exchange.traffic["a"].seconds
    exchange.bytes(none, [0], [0], "a")
    assert 100.0 < after < exchange.traffic["a"].seconds
    assert (exchange.traffic["a"].headers, exchange.traffic["a"].rounds) == (1, 1)


def test_nothing_was_heard_where_the_store_does_not_answer():
    liveness = Liveness.__new__(Liveness)
    liveness._asked = lambda ask: None
    assert (liveness.heard(3), liveness._silent()) == ({}, None)
    assert liveness.gone().endswith("which keeps the store of the ranks, is gone or does not answer")


def test_a_presence_that_is_closed_answers_no_more():
    liveness = Liveness.__new__(Liveness)
    liveness._ended = threading.Event()
    liveness._thread = threading.Thread(target=liveness._ended.wait, args=[30])
    liveness._thread.start()
    liveness.close()
    assert not liveness._thread.is_alive()


def sums(count):
    exchange = exchange_of_all()
    return RowTransport(exchange).sum(torch.arange(count) + 10 * exchange.rank, "sums").tolist()


@pytest.mark.parametrize("count", [0, 2, 4])
def test_sums_of_any_length(count):
    assert cluster(3).run(sums, count) == [[3 * i + 30 for i in range(count)]] * 3


class Told(Exchange):
    """An exchange of ranks of which one has failed, and replies from the others that say so."""

    def __init__(self, own, bad):
        super().__init__(object(), 3, own, [4, 6, 8])
        self.bad = bad

    def bytes(self, sent, lengths, sizes, purpose, meanwhile=None):
        return torch.cat([torch.full((size,), rank == self.bad, dtype=torch.uint8) for rank, size in enumerate(sizes)])

    def reasons(self, error):
        return ["no luck" if rank == self.bad else "" for rank in range(self.size)]


@pytest.mark.parametrize("own", range(3))
@pytest.mark.parametrize("other", range(2))
def test_the_rank_whose_reply_has_no_rows_is_named(own, other):
    """Ranks are three that hold all parts among more."""
    counts, bad = torch.zeros(3, 0, dtype=torch.int64), [rank for rank in range(3) if rank != own][other]
    text = f"rows: expected those of rank {4 + 2 * bad}, found that it could not read them: no luck"
    with refuses(OtherRankFailed, text):
        PartTables(own, [], [], []).exchange(RowTransport(Told(own, bad)), counts, Wanted(counts, []))


def renumbered(world_ranks):
    """What an exchange brings that numbers the ranks of its group in another order than the group."""
    own, count = world_ranks.index(dist.get_rank()), len(world_ranks)
    exchange = Exchange(dist.new_group(), count, own, world_ranks)
    lengths = [0 if rank == own else 1 + own + 2 * rank for rank in range(count)]
    sizes = [0 if rank == own else 1 + rank + 2 * own for rank in range(count)]
    given = torch.cat([torch.full((n,), 16 * own + rank, dtype=torch.uint8) for rank, n in enumerate(lengths)])
    assert exchange.bytes(given, lengths, sizes, "rows").tolist() == [
        16 * rank + own for rank, n in enumerate(sizes) for _ in range(n)
    ]
    for _ in range(2):
        numbers = torch.tensor([[10 * own + rank, own] for rank in range(count)])
        assert exchange.numbers(numbers, "counts").tolist() == [[10 * rank + own, rank] for rank in range(count)]
        with pytest.raises(ZeroDivisionError):
            exchange.numbers(numbers, "counts", lambda: 1 / 0)
    assert not exchange.broken
    return exchange.objects(own)


@pytest.mark.parametrize("world_ranks", [SLOW([0, 2, 1]), SLOW([1, 2, 0]), [2, 0, 1]])
def test_ranks_in_another_order_than_their_group(world_ranks):
    assert cluster(3).run(renumbered, world_ranks) == [[0, 1, 2]] * 3
