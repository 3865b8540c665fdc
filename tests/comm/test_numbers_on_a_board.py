"""Numbers that ranks of one machine exchange in memory that they share, or else in their group."""

import resource
import time

import pytest
import torch
from helpers.cluster import cluster
from torch import distributed as dist

from torch_gnnscale.comm import exchange as board
from torch_gnnscale.comm.rendezvous import Rendezvous
from torch_gnnscale.distributed import Exchange


class Counted(Exchange):
    """An exchange that counts its collectives over the group."""

    collectives = 0

    def _all_to_all(self, *given, **options):
        self.collectives += 1
        super()._all_to_all(*given, **options)


def connected(rendezvous):
    exchange = Counted(dist.group.WORLD, rendezvous.world, rendezvous.rank)
    exchange.board = rendezvous.board([[*range(rendezvous.world)]])
    assert exchange.board is not None
    return exchange


def expected_of(step, source, to, count):
    return (torch.arange(count) * 7 + 1000 * step + 10 * source + to).tolist()


def rounds(steps, late):
    """Exchanges a few numbers, in other rounds more than a board has room for; in some, one rank comes late."""
    rendezvous = Rendezvous(dist.get_rank(), dist.get_world_size(), 30.0)
    rank, world, exchange, over_group = rendezvous.rank, rendezvous.world, connected(rendezvous), []
    before, board._PATIENCE = board._PATIENCE, 20_000
    try:
        for step in range(steps):
            count, known = 80 if step % 5 == 4 else step % 65, exchange.collectives
            if step in late and step % world == rank:
                time.sleep(0.3)
            calls = []
            sent = torch.tensor([expected_of(step, rank, to, count) for to in range(world)], dtype=torch.int64)
            found = exchange.numbers(sent, "test", lambda calls=calls: calls.append(0))
            assert found.tolist() == [expected_of(step, source, rank, count) for source in range(world)]
            assert (calls, exchange.broken, exchange.waits) == ([0], False, False)
            over_group.append(exchange.collectives - known)
    finally:
        board._PATIENCE = before
        rendezvous.close()
    traffic = exchange.traffic["test"]
    assert traffic.headers == steps
    return over_group


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_numbers_are_those_of_the_group(world):
    late = {6, 7, 11}
    for found in cluster(world).run(rounds, 40, late):
        must = [step for step in range(40) if step % 5 == 4 or step in late]
        assert [found[step] for step in must] == [1] * len(must)
        assert sum(found) < 40, "other rounds take place on the board"


def meanwhile_fails(patience):
    """Rank 0 fails while the ranks exchange numbers; what the others get, and what all get in the next round."""
    rendezvous = Rendezvous(dist.get_rank(), dist.get_world_size(), 30.0)
    before, board._PATIENCE = board._PATIENCE, patience
    exchange, found = connected(rendezvous), []

    def fail():
        time.sleep(0.05)
        raise ValueError("no luck")

    try:
        for meanwhile in (fail if rendezvous.rank == 0 else None, None):
            sent = torch.full((2, 1), rendezvous.rank)
            try:
                found.append(exchange.numbers(sent, "test", meanwhile).tolist())
            except ValueError as error:
                found.append(str(error))
            assert not exchange.broken
    finally:
        board._PATIENCE = before
        rendezvous.close()
    return found


@pytest.mark.parametrize("patience", [0, 10_000_000])
def test_an_error_meanwhile_leaves_the_others_alone(patience):
    assert cluster(2).run(meanwhile_fails, patience) == [["no luck", [[0], [1]]], [[[0], [1]], [[0], [1]]]]


def without(what):
    """Which of two lists of ranks have a board: of ranks 0 and 1, and of rank 2."""
    rendezvous = Rendezvous(dist.get_rank(), dist.get_world_size(), 30.0)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        if what == "machine":
            rendezvous.machines = ["one", "another", "one"]
        elif what == rendezvous.rank:
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
        return rendezvous.board([[0, 1], [2]]) is not None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        rendezvous.close()


@pytest.mark.parametrize(("what", "expected"), [("nothing", True), ("machine", False), (0, False), (1, False)])
def test_ranks_that_have_a_board(what, expected):
    assert cluster(3).run(without, what) == [expected, expected, False]
