"""Rows that ranks swap, by Gloo and through the memory of peers."""

import re
import resource

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.cluster import cluster
from helpers.mapped import memories, memories_left
from helpers.narrow import CLASSES, FEATURES, HIDDEN, batches
from helpers.slow import SLOW, quick
from helpers.split import cut_batches, own_and_halo, random_owners
from helpers.transports import FLOATS, ended, made, swaps
from helpers.warn import recorded
from torch import distributed as dist

from torch_gnnscale.comm.exchange import Exchange
from torch_gnnscale.comm.mesh import TRANSPORTS
from torch_gnnscale.comm.rendezvous import end_group
from torch_gnnscale.comm.row_transport import RowTransport
from torch_gnnscale.nn.aggregate import aggregate_and_root
from torch_gnnscale.ops.arguments import NO_IDS
from torch_gnnscale.split import local_rows, parallelize
from torch_gnnscale.split.local_rows import OwnHops
from torch_gnnscale.split.rank_rows import Moves, ShuffleIndex

WAYS = ["staged", "all_to_all", "all_to_all, telling", "from gpu to gpu", "peers", "peers, one kernel"]


def test_moves_are_those_of_the_rows_at_hand():
    """The counts of gradients that come back are kept; not for another number of rows."""
    moves = Moves(ShuffleIndex(2, 0, torch.tensor([1, 3]), [[0], [2]], [[0], [0]]), 1)
    for count in (4, 6, 4):
        ptr, part, row = moves.added(count)
        assert ptr.diff().tolist() == [0, 1, 0, 1, 0, 0][:count]
        assert (part.tolist(), row.tolist()) == ([1, 1], [0, 1])


def test_rows_need_not_be_contiguous():
    transport, moves = RowTransport(Exchange(None, 1, 0)), Moves(ShuffleIndex(1, 0, NO_IDS, [[0]], [[0]]), 1)
    own = torch.arange(12.0).view(3, 4).t().requires_grad_()
    out = local_rows.mixed(transport, own, moves, "test")
    assert torch.equal(out, own)
    torch.stack([torch.ones(3, 4), 2 * torch.ones(3, 4)]).sum(0).t().mul(out).sum().backward()
    assert torch.equal(own.grad, torch.full((4, 3), 3.0))
    assert local_rows.apart(transport, own.detach(), moves, "test").receive(lambda: None).shape == (0, 3)


@pytest.mark.parametrize("kind", quick(WAYS, "peers", "all_to_all, telling"))
def test_rows_arrive(kind):
    for world in (2, 3):
        found = cluster(world).run(swaps, kind, 20, 9)
        assert sum(sent for sent, _ in found) == sum(received for _, received in found) > 0


def grows_while_it_ends():
    """The memories of a transport that is closed before ranks say that they have larger ones."""
    transport = made("peers")
    larger = transport.shared.allocated(1 << 20)
    transport.close()
    transport._renew(larger)
    larger.close()
    ended(transport)
    return transport._memories


def test_a_transport_that_was_closed_takes_no_memory():
    assert cluster(2).run(grows_while_it_ends) == [[], []]


def test_a_row_travels_once_however_many_ranks_read_it():
    sent = torch.tensor([7, 2, 5, 2, 9, 7, 7])
    moves = Moves(ShuffleIndex(4, 0, sent, [[0], [3], [2], [2]], [[0]] * 4), 1)
    rows, places = moves.find_distinct(12)
    assert rows.tolist() == [2, 5, 7, 9]
    assert torch.equal(rows[places], sent)
    to_one = Moves(ShuffleIndex(4, 0, sent[:3], [[0], [3], [0], [0]], [[0]] * 4), 1)
    assert to_one.distinct == (to_one.sent, None)


def read_by_all():
    """Each rank reads all rows of both others: one set of them fits into its buffer, two do not."""
    transport = made("peers")
    rank, count, before = transport.exchange.rank, 100, len(transport._memories[transport.exchange.rank].bytes)
    own = torch.full((count, 700), float(rank), dtype=torch.float64)
    assert own.nbytes <= before // 2 < 2 * own.nbytes
    counts = [[count * (place != rank)] for place in range(3)]
    moves = Moves(ShuffleIndex(3, rank, torch.arange(count).repeat(2), counts, counts), 1)
    out = transport.pull(own, moves, "test")
    assert [set(rows.unique().tolist()) for rows in out.split(count)] == [
        {float(place)} for place in range(3) if place != rank
    ]
    assert len(transport._memories[rank].bytes) == before
    ended(transport)


def test_rows_that_several_ranks_read_are_written_once():
    cluster(3).run(read_by_all)


def aggregates(kind, dtype):
    """The aggregate of [own rows; halo] in one tensor and in two: results, gradients, and what each received."""
    transport = made(kind)
    rank, world, found = dist.get_rank(), dist.get_world_size(), []
    for whole in (*batches(),)[:2]:
        batch = cut_batches(whole, random_owners(200, world, 3), world)[rank]
        hops, groups = OwnHops(batch, False), len(batch.num_sampled_nodes)
        edges, moves = hops.only.edges.prefix(groups), hops.moves(groups - 1)
        made_of = torch.randn(batch.num_nodes, 7, dtype=dtype, generator=torch.Generator().manual_seed(rank))
        for way in ("mixed", "apart"):
            before = transport.exchange.traffic[f"backward {way}"].bytes_received
            own = made_of.clone().requires_grad_()
            if way == "mixed":
                out, root = aggregate_and_root(local_rows.mixed(transport, own, moves, way), edges, "mean")
            else:
                others = local_rows.apart(transport, own, moves, way)
                out, root = aggregate_and_root(own, edges, "mean", None, others)
            ((out + root) * torch.arange(1.0, 8.0)).square().sum().backward()
            received = transport.exchange.traffic[f"backward {way}"].bytes_received - before
            found.append((out.detach(), root.detach(), own.grad, received, torch.equal(own.detach(), made_of)))
    ended(transport)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, SLOW(torch.float64)])
@pytest.mark.parametrize("kind", WAYS[1:])
@pytest.mark.parametrize("world", [SLOW(2), 3])
def test_halo_apart(world, kind, dtype):
    """Rows of the halo need not be copied beside the own ones: results and gradients are equal bit for bit."""
    for found in cluster(world).run(aggregates, kind, dtype):
        for mixed, apart in zip(found[::2], found[1::2], strict=True):
            assert all(torch.equal(ours, theirs) for ours, theirs in zip(mixed[:3], apart[:3], strict=True))
            assert mixed[3] == apart[3] > 0
            assert apart[4]  # what was added to the gradient was not added to the rows


def pulls_others(way, dtype, width):
    """Rank 1 has rows of another type or width."""
    transport = made(way)
    rank = transport.exchange.rank
    own = torch.ones(4, width if rank else 3, dtype=dtype if rank else torch.float32)
    moves = Moves(ShuffleIndex(2, rank, torch.arange(4), *[[[4 * (place != rank)] for place in range(2)]] * 2), 1)
    errors = []
    for call in (
        lambda: transport.pull(own, moves, "forward conv"),
        lambda: transport.swap(own, moves.num_sent, moves.num_received, "backward conv"),
    ):
        try:
            call()
        except ValueError as error:
            errors.append(str(error))
    ended(transport)
    return errors


@pytest.mark.parametrize(
    ("dtype", "width", "kind"),
    [(torch.bfloat16, 6, "6 bfloat16"), (torch.float32, 4, "4 float32"), (torch.int32, 3, "3 int32")],
)
@pytest.mark.parametrize("way", ["peers", "from gpu to gpu"])
def test_rows_of_another_kind(way, dtype, width, kind):
    said = [
        f"split: {purpose} conv: expected the same on all ranks, found rows of 3 float32 and on rank 1 rows of {kind}"
        for purpose in ("forward", "backward")
    ]
    assert cluster(2).run(pulls_others, way, dtype, width) == [said] * 2


def halos(kind, dtype):
    """All values are integers up to 256, which each type has."""
    transport = made(kind)
    rank, world = transport.exchange.rank, transport.exchange.size
    shares = cut_batches(next(iter(batches())), random_owners(200, world, 1), world)
    for groups in (3, 2, 1):
        index = shares[rank].shuffle_index
        moves = Moves(index, groups)
        own = [(share.n_id.view(-1, 1) + torch.arange(5)).to(dtype) for share in shares]
        x = own[rank].requires_grad_()
        out = local_rows.mixed(transport, x, moves, "test")
        halo = own_and_halo(shares, rank, [rows.detach() for rows in own])[len(x) :]
        assert torch.equal(out, torch.cat([x, halo[moves.halo]]))
        scale = (torch.arange(1, len(out) + 1) % 64).to(dtype).view(-1, 1)
        (out * scale).sum().backward()
        times = scale[: len(x)].clone()
        came = transport.swap(scale[len(x) :].contiguous(), moves.num_received, moves.num_sent, "test")
        for row, value in zip(moves.sent.tolist(), torch.cat(came).tolist(), strict=True):
            times[row] += value[0]
        assert torch.equal(x.grad, times.expand(-1, 5))
    ended(transport)


@pytest.mark.parametrize("dtype", [FLOATS[0], *map(SLOW, FLOATS[1:])], ids=str)
@pytest.mark.parametrize("kind", WAYS[1:])
def test_halos_and_their_gradients(kind, dtype):
    cluster(3).run(halos, kind, dtype)


def without_descriptors(transport):
    """Trains a step where this process may open no further file."""
    batch = cut_batches(next(iter(batches())), random_owners(200, dist.get_world_size(), 1), dist.get_world_size())
    open_before = memories_left()
    model = parallelize(pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double(), transport=transport)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with recorded() as said:
        index = batch[dist.get_rank()].shuffle_index
        group = dist.new_group(backend="gloo")  # which itself opens files
        if dist.get_rank() == 1:
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))  # those that are open stay so
        try:
            found = type(model._connected(Exchange(group, index.parts, index.part), [[0, 1]], (-1, -1))).__name__
        except ValueError as error:
            found = str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    end_group(group)
    model.close()
    return found, [str(entry.message) for entry in said], memories() - open_before


@pytest.mark.slow
def test_ranks_that_cannot_read_their_peers():
    for found, said, memory in cluster(2).run(without_descriptors, "auto"):
        assert (found, said, memory) == ("RowTransport", [], 0)
    refused = "transport='memory': expected ranks that can read each other's memory, found rank 1: OSError: "
    for text, said, memory in cluster(2).run(without_descriptors, "memory"):
        assert text.startswith(refused)
        assert "Too many open files" in text
        assert (said, memory) == ([], 0)


def gives_nccl():
    """What a batch on the CPU comes to with NCCL."""
    with pytest.raises(
        ValueError, match=r"^transport='nccl': expected a GPU that torch sees and NCCL in torch, found "
    ):
        parallelize(pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES), transport="nccl")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nccl_without_a_gpu():
    cluster(2).run(gives_nccl)


@pytest.mark.parametrize(("name", "now", "kept"), [
    ("peers", "'auto' or 'memory'", "auto"), ("all_to_all", "'gloo' or 'nccl'", "all_to_all"),
])  # fmt: skip
def test_earlier_names_of_transports(name, now, kept):
    text = f"transport: expected one of {TRANSPORTS}, found {name!r}, an earlier name of {now}"
    with pytest.warns(FutureWarning, match=f"^{re.escape(text)}$"):
        assert parallelize(pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES), transport=name).transport == kept


def test_a_transport_that_there_is_not():
    with pytest.raises(ValueError, match=f"^{re.escape(f'transport: expected one of {TRANSPORTS}, found')} 'mpi'$"):
        parallelize(pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES), transport="mpi")
