"""Models on batches that are cut over ranks give the outputs and gradients of one process."""

import copy
from itertools import product

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.cluster import cluster
from helpers.narrow import CLASSES, FEATURES, HIDDEN, MODELS, Branches, batches, sequence
from helpers.slow import NIGHTLY, SLOW, quick
from helpers.split import cut_batches, cut_of
from helpers.split_models import OWNERS, SparseWeight, weights_of
from torch import distributed as dist
from torch import nn

from torch_gnnscale.comm.exchange import Exchange
from torch_gnnscale.nn import forward_pass, narrow
from torch_gnnscale.split import parallelize


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def learned(model):
    return [torch.zeros(()) if p.grad is None else p.grad for p in model.parameters()]


def call_of(name):
    if name != "branches":
        return lambda model, batch: model(batch.x, batch.edge_index)
    return lambda model, batch: model(batch.x, batch.edge_index, batch.edge_attr[:, :2].double())


def with_norm(width):
    return nn.Sequential(nn.Linear(width, HIDDEN, bias=False), nn.BatchNorm1d(HIDDEN, momentum=None), nn.ReLU())


class Siblings(nn.Module):
    """Two layers that read one tensor, whose gradients come from both."""

    def __init__(self):
        super().__init__()
        self.first = pyg_nn.SAGEConv(FEATURES, HIDDEN)
        self.left, self.right = pyg_nn.SAGEConv(HIDDEN, HIDDEN), pyg_nn.GraphConv(HIDDEN, HIDDEN)
        self.last = pyg_nn.SAGEConv(HIDDEN, CLASSES)

    def forward(self, x, edge_index):
        x = self.first(x, edge_index).relu()
        return self.last(self.left(x, edge_index) + self.right(x, edge_index), edge_index)


OTHERS = {
    "branches": Branches, "siblings": Siblings, "sparse weights": SparseWeight,
    "batch norm within": sequence(
        lambda: pyg_nn.GINConv(with_norm(FEATURES)), lambda: pyg_nn.GINConv(with_norm(HIDDEN)),
        lambda: pyg_nn.SAGEConv(HIDDEN, CLASSES),
    ),
    "batch norm of edges": sequence(
        lambda: pyg_nn.EdgeConv(with_norm(2 * FEATURES)), lambda: pyg_nn.SAGEConv(HIDDEN, HIDDEN),
        lambda: pyg_nn.SAGEConv(HIDDEN, CLASSES),
    ),
}  # fmt: skip


def make(name):
    return (MODELS | OTHERS)[name]()


def check_model(rank, name, owners, parts, with_halo, training, transport="auto"):
    """Outputs and gradients of two batches against narrow on the whole ones; returns the rounds of the last."""
    forward_pass.LEAST_SAVED = 0
    torch.manual_seed(rank)  # the weights are those of rank 0
    model = make(name).double().train(training)
    split = parallelize(model, call_of(name), transport)
    alone = copy.deepcopy(model)
    whole_model = narrow(alone, call_of(name), check=False)
    for number, whole in enumerate(batches()):
        if number == 2:
            break
        cut = cut_of(whole, OWNERS[owners](parts), parts, rank)
        batch = cut_batches(whole, OWNERS[owners](parts), parts, key=5)[rank]
        if not with_halo:
            del batch.x_halo
        before = {purpose: traffic.rounds for purpose, traffic in split.traffic.items()}
        out, expected = split(batch), whole_model(whole)
        own = cut.local[: cut.num_nodes[0]]
        close(out, expected[own])
        (out * weights_of(expected)[own]).sum().backward()
        (expected * weights_of(expected)).sum().backward()
        for ours, theirs in zip(learned(model), learned(alone), strict=True):
            close(ours, theirs)
        for ours, theirs in zip(model.buffers(), alone.buffers(), strict=True):
            close(ours, theirs)
        rounds = {k: t.rounds - before.get(k, 0) for k, t in split.traffic.items() if t.rounds > before.get(k, 0)}
    split.close()
    assert not any(parameter._backward_hooks for parameter in model.parameters())
    return rounds, [p.grad for p in model.parameters() if p.grad is not None]


def run(world, *arguments):
    results = cluster(world).run(_check, *arguments) if world > 1 else [check_model(0, *arguments)]
    for _, grads in results[1:]:
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(grads, results[0][1], strict=True))
    return results[0][0]


def _check(*arguments):
    return check_model(torch.distributed.get_rank(), *arguments)


@pytest.mark.parametrize(
    "name", quick((name for name in (*MODELS, "branches", "sparse weights") if name != "sage lstm"), "sage", "gat")
)
def test_outputs_and_gradients(name):
    run(2, name, "random", 2, False, False)


@pytest.mark.slow
def test_what_depends_on_all_rows_is_refused_on_all_ranks():
    """The longest column of a batch decides how long PyG's LSTM runs for every column."""
    results = cluster(2).results(_check, "sage lstm", "random", 2, False, False)
    for returned, text in results:
        assert not returned
        assert text.startswith(
            "ValueError: convs.2 (SAGEConv): expected the seeds' rows to be those of the whole batch,"
        )


LISTED = (
    "sage", "sage max", "gcn", "gat", "gat v2", "gin", "pna", "edge", "jumping, cat", "branches", "residual",
    "two layers on three hops",
)  # fmt: skip


def models_owners_and_ranks():
    """All models on one rank, which owns all, and with every second kind of owners on two to four, in turns, half of
    them by night."""
    for name in LISTED:
        yield (pytest.param if name in ("sage", "gcn", "gat", "edge") else SLOW)(name, "random", 1)
    for (i, name), (j, owners) in product(enumerate(LISTED), enumerate(OWNERS)):
        if (i + j) % 2 == 0:
            yield (NIGHTLY if (i + j) % 4 else SLOW)(name, owners, 2 + (i + j // 2) % 3)


@pytest.mark.parametrize(("name", "owners", "world"), list(models_owners_and_ranks()))
def test_owners_and_numbers_of_ranks(name, owners, world):
    run(world, name, owners, world, True, False)


@pytest.mark.parametrize("name", ["sage", SLOW("siblings"), SLOW("gcn"), SLOW("gcn2"), SLOW("branches")])
@pytest.mark.parametrize("with_halo", [SLOW(False), True])
@pytest.mark.parametrize("world", [2, SLOW(3), SLOW(4)])
def test_rounds(name, with_halo, world):
    """A shuffle for each layer forward, and backward but for the first; degrees, and what all layers read, once, on any
    number of ranks."""
    found = run(world, name, "random", world, with_halo, False)
    names = {"siblings": ["first", "left", "last"], "branches": ["first", "last"]}.get(
        name, ["convs.0", "convs.1", "convs.2"]
    )
    expected = {f"{way} {layer}": 1 for way in ("forward", "backward") for layer in names}
    expected["gradients"] = 1 if world == 2 else 2  # else a rank adds up a share of all gradients, and sends it to all
    if name in ("gcn", "gcn2"):
        expected["forward degrees"] = 1
    if name == "gcn2":  # the first layer gets a tensor as both of its arguments
        pass
    else:
        del expected[f"backward {names[0]}"]
        if with_halo:
            del expected[f"forward {names[0]}"]
    assert found == expected


@pytest.mark.parametrize("name", ["sage", "gcn"])
def test_a_single_rank_takes_no_rounds(name):
    assert run(1, name, "random", 1, False, False) == {}


def collectives(transport):
    """How many collectives the last of three steps has; the first finds out how the model is called."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES)
    split, found = parallelize(model, transport=transport), []
    numbers, bytes_of = Exchange.numbers, Exchange.bytes
    batch = cut_batches(next(iter(batches())), OWNERS["random"](world), world)[rank]
    batch.x = batch.x.float()
    try:
        Exchange.numbers = lambda *args, **options: (found.append(args), numbers(*args, **options))[1]
        Exchange.bytes = lambda *args, **options: (found.append(args), bytes_of(*args, **options))[1]
        for _ in range(3):
            found.clear()
            split(batch).sum().backward()
    finally:
        Exchange.numbers, Exchange.bytes = numbers, bytes_of
    split.close()
    return len(found)


@pytest.mark.parametrize("transport", ["memory", SLOW("gloo")])
@pytest.mark.parametrize("world", [2, SLOW(3), SLOW(4)])
def test_collectives_of_a_step(transport, world):
    """One header, 3 layers forward, 2 backward, and one for the gradients of two ranks, two for those of more."""
    assert cluster(world).run(collectives, transport) == [7 if world == 2 else 8] * world


def groups_of_purposes():
    """What two groups of a model were used for, and whether they are two."""
    rank, world = dist.get_rank(), dist.get_world_size()
    split = parallelize(pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES, norm="BatchNorm").double())
    split(cut_batches(next(iter(batches())), OWNERS["random"](world), world)[rank]).sum().backward()
    every, sums = split._connection.all, split._of_all.exchange
    found = list(every.traffic), sorted(sums.traffic), every.group is not sums.group
    assert {*every.traffic, *sums.traffic} <= {*split.traffic}
    split.close()
    return found


@pytest.mark.slow
def test_gradients_and_statistics_have_a_group_of_their_own():
    statistics = [f"{way} norms.{number}.module statistics" for way in ("backward", "forward") for number in (0, 1)]
    assert cluster(2).run(groups_of_purposes) == [(["header"], [*statistics, "gradients"], True)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sage", "gcn", "jumping, cat"])
def test_without_memory_of_peers(name):
    run(3, name, "random", 3, False, False, "gloo")


@pytest.mark.parametrize("world", [SLOW(1), 2])
@pytest.mark.parametrize("name", ["sage min", SLOW("batch norm within"), SLOW("batch norm of edges")])
def test_batch_norm_in_training(name, world):
    run(world, name, "random", world, True, True)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("owners", list(OWNERS))
def test_batch_norm_on_uneven_ranks(owners, world):
    run(world, "sage min", owners, world, True, True)
