"""Training over ranks: dropout, accumulated gradients, frozen and unused parameters, and what is refused."""

import copy
from contextlib import nullcontext

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.cluster import cluster
from helpers.narrow import CLASSES, FEATURES, HIDDEN
from helpers.slow import SLOW, quick
from helpers.split import cut_batches, cut_of, random_owners
from helpers.split_models import NODES, own_batches
from torch import distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from torch_gnnscale.comm.exchange import Exchange
from torch_gnnscale.comm.rendezvous import rank_and_world
from torch_gnnscale.comm.row_transport import RowTransport
from torch_gnnscale.nn import forward_pass, narrow, weigh
from torch_gnnscale.split import parallelize
from torch_gnnscale.split.connection import GradientSum


def loss_of(out, batch, seeds):
    return cross_entropy(out, batch.y[: batch.batch_size], reduction="sum") / seeds


class Dropping(nn.Module):
    """Dropout as a module and as a function, before, between and within layers, in place, and in three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.within = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Dropout(0.3), nn.ReLU(inplace=True))
        self.first = pyg_nn.GINConv(self.within)
        self.second = pyg_nn.GraphConv(HIDDEN, HIDDEN)
        self.drop = nn.Dropout(0.5, inplace=True)
        self.last = pyg_nn.SAGEConv(HIDDEN, CLASSES)

    def forward(self, x, edge_index):
        x = self.first(nn.functional.dropout(x, 0.1, self.training), edge_index)
        x = self.drop(self.second(x, edge_index)).relu()
        x = nn.functional.dropout(x.view(-1, 2, HIDDEN // 2), 0.2, training=self.training).flatten(1)
        return self.last(x, edge_index)


def train(world, make_model, steps, options):
    """Losses and weights after some steps of training with Adam."""
    forward_pass.LEAST_SAVED = 0
    rank, found = rank_and_world()
    assert found == world
    torch.manual_seed(0)
    model = parallelize(MAKERS[make_model]().double())
    # A bias before BatchNorm has a gradient of 0. Of its rounding, 5e-16, the usual eps of 1e-8 makes steps of 5e-10.
    optimizer = torch.optim.Adam(model.parameters(), 0.01, eps=1e-3)
    losses = []
    for number, (_, batch, _) in enumerate(own_batches(world, rank, steps, options.get("owners", "random"))):
        last = (number + 1) % options.get("every", 1) == 0
        with model.no_sync() if options.get("hold") and not last else nullcontext():
            loss = loss_of(model(batch), batch, batch.global_batch_size)
            loss.backward()
        losses.append(loss.detach())
        if last:
            if options.get("clip"):
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad(set_to_none=not options.get("zero"))
    total = torch.stack(losses)
    if world > 1:
        dist.all_reduce(total)
    model.close()
    return total, model.state_dict()


MAKERS = {
    "dropping": Dropping,
    "sage": lambda: pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES, dropout=0.5, norm="BatchNorm"),
    "layer norm": lambda: pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES, dropout=0.5, norm="LayerNorm",
                                           norm_kwargs={"mode": "node"}, jk="cat"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options"),
    [
        SLOW("dropping", {}),
        SLOW("sage", {}),
        SLOW("layer norm", {}),
        SLOW("dropping", {"every": 2}),
        SLOW("dropping", {"every": 2, "hold": True}),
        ("sage", {"clip": True, "zero": True}),
    ],
    ids=str,
)
def test_training_is_that_of_one_process(name, options):
    check_training(2, name, options)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("owners", ["50:1", "no seeds", "nothing"])
@pytest.mark.parametrize("name", ["dropping", "sage"])
def test_dropout_on_uneven_ranks(name, owners, world):
    check_training(world, name, {"owners": owners})


def check_training(world, name, options):
    """Losses and weights of the ranks against those of one process."""
    expected, weights = train(1, name, 4, options)
    results = cluster(world).run(train, world, name, 4, options)
    for losses, state in results:
        torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
        for key, value in state.items():
            torch.testing.assert_close(value, weights[key], rtol=1e-12, atol=1e-12)
            assert torch.equal(value, results[0][1][key])


def test_holding_is_the_same_as_not_holding():
    held, plain = (train(1, "dropping", 4, {"every": 2, **more}) for more in ({}, {"hold": True}))
    assert torch.equal(held[0], plain[0])


def test_holding_within_holding():
    gradients = GradientSum(RowTransport(Exchange(None, 1, 0)))
    with gradients.held():
        with gradients.held():
            assert gradients.holds
        assert gradients.holds
    assert not gradients.holds
    with pytest.raises(ZeroDivisionError), gradients.held():
        raise ZeroDivisionError
    assert not gradients.holds


CLEARS = {
    "zeroed": lambda model: model.zero_grad(set_to_none=False),
    "dropped": lambda model: model.zero_grad(),
    "replaced": lambda model: [setattr(p, "grad", torch.full_like(p, 2.0)) for p in model.parameters()],
    "left": lambda model: None,
    "left, and zeros are added": lambda model: None,
    "scaled": lambda model: [p.grad.mul_(3) for p in model.parameters()],
}


def clears(how):
    """A pass that is summed, one held, a change of gradients, one held and one summed, against one process."""
    rank, world = rank_and_world()
    forward_pass.LEAST_SAVED = 0
    torch.manual_seed(0)
    model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double()
    split, alone = parallelize(model), copy.deepcopy(model)
    whole_model = narrow(alone)
    for number, (whole, batch, _) in enumerate([*own_batches(world, rank), *own_batches(world, rank, 1)]):
        if number == 1:
            summed = [p.grad.clone() for p in alone.parameters()]
        if number == 2:
            CLEARS[how](model)
            CLEARS[how](alone)
            if how == "scaled":  # what was summed before is no part of a rank's own gradient
                for p, of_first in zip(alone.parameters(), summed, strict=True):
                    p.grad.sub_(of_first, alpha=2)
        scale = 0.0 if number == 1 and how == "left, and zeros are added" else 1.0
        with split.no_sync() if number in (1, 2) else nullcontext():
            (loss_of(split(batch), batch, whole.batch_size) * scale).backward()
        (loss_of(whole_model(whole), whole, whole.batch_size) * scale).backward()
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12)
    split.close()


@pytest.mark.parametrize("how", quick(list(CLEARS), "scaled", "left, and zeros are added"))
def test_gradients_that_are_changed_between_held_passes(how):
    cluster(2).run(clears, how)


class Partly(nn.Module):
    """Frozen, unused and late parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = pyg_nn.SAGEConv(FEATURES, HIDDEN)
        self.unused = nn.Linear(3, 3)
        self.last = pyg_nn.SAGEConv(HIDDEN, CLASSES)

    def forward(self, x, edge_index):
        return self.last(self.frozen(x, edge_index).relu(), edge_index)


def check_partly():
    rank, world = rank_and_world()
    forward_pass.LEAST_SAVED = 0
    torch.manual_seed(rank)
    model = Partly().double()
    model.frozen.requires_grad_(False)
    split = parallelize(model)
    alone = copy.deepcopy(model)
    whole_model = narrow(alone)
    for number, (whole, batch, _) in enumerate(own_batches(world, rank)):
        if number == 2:  # from now on it learns
            model.frozen.requires_grad_(True)
            alone.frozen.requires_grad_(True)
        was = [parameter.grad for parameter in model.parameters()]
        loss_of(split(batch), batch, whole.batch_size).backward()
        loss_of(whole_model(whole), whole, whole.batch_size).backward()
        for ours, theirs, had in zip(model.parameters(), alone.parameters(), was, strict=True):
            assert (ours.grad is None) == (theirs.grad is None)
            assert had is None or ours.grad is had  # as torch adds to it
            if ours.grad is not None:
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12)
    assert model.unused.weight.grad is None
    before = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    own_grads = torch.autograd.grad(loss_of(split(batch), batch, 1), [model.last.lin_l.weight])
    assert own_grads[0].shape == model.last.lin_l.weight.shape
    for parameter, grad in zip(model.parameters(), before, strict=True):
        assert (grad is None) == (parameter.grad is None)
        assert grad is None or torch.equal(parameter.grad, grad)
    trained = [
        (parameter, grad) for parameter, grad in zip(model.parameters(), before, strict=True) if grad is not None
    ]
    sum(parameter.square().sum() for parameter, _ in trained).backward()  # a loss that the ranks do not share
    for parameter, grad in trained:
        torch.testing.assert_close(parameter.grad, grad + 2 * parameter.detach(), rtol=1e-12, atol=1e-12)
    split.close()


@pytest.mark.slow
def test_frozen_and_unused_parameters():
    cluster(2).run(check_partly)


def check_inputs():
    """Gradients of x on its way through the halo, edge weights, and a weighed model."""
    rank, world = rank_and_world()
    forward_pass.LEAST_SAVED = 0
    torch.manual_seed(0)
    model = pyg_nn.GCN(FEATURES, HIDDEN, 3, CLASSES).double()
    owners = random_owners(NODES, world, 3)
    call = lambda model, batch: model(batch.x, batch.edge_index, batch.edge_weight)  # noqa: E731
    split, whole_model = parallelize(model, call), narrow(copy.deepcopy(model), call)
    for whole, _, own in own_batches(world, rank, 2):
        whole.edge_weight = torch.linspace(0.5, 2, whole.num_edges, dtype=torch.float64)
        cut = cut_of(whole, owners, world, rank)
        batch = cut_batches(whole, owners, world)[rank]
        for of in (batch, whole):
            of.x.requires_grad_(True)
            of.edge_weight.requires_grad_(True)
        out, expected = split(batch), whole_model(whole)
        torch.testing.assert_close(out, expected[own], rtol=1e-12, atol=1e-12)
        out.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(batch.x.grad, whole.x.grad[cut.local], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(batch.edge_weight.grad, whole.edge_weight.grad[cut.edge], rtol=1e-12, atol=1e-12)
    split.close()
    model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double()
    split, whole_model = parallelize(weigh(model)), narrow(weigh(model))
    for whole, _, own in own_batches(world, rank, 2):
        whole.edge_weight = torch.linspace(0.5, 2, whole.num_edges, dtype=torch.float64)
        batch = cut_batches(whole, owners, world)[rank]
        torch.testing.assert_close(split(batch), whole_model(whole)[own], rtol=1e-12, atol=1e-12)
    split.close()


@pytest.mark.slow
def test_gradients_of_inputs_and_weighed_models():
    cluster(2).run(check_inputs)


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([pyg_nn.SAGEConv(-1, HIDDEN), pyg_nn.SAGEConv(-1, CLASSES)])

    def forward(self, x, edge_index):
        return self.convs[1](self.convs[0](x, edge_index).relu(), edge_index)


def check_lazy():
    rank, world = rank_and_world()
    torch.manual_seed(rank)
    split = parallelize(Lazy().double())
    for _, batch, _ in own_batches(world, rank, 2):
        split(batch)
    split.close()
    return list(split.state_dict().values())


@pytest.mark.slow
def test_lazy_parameters_are_those_of_rank_0():
    ours, theirs = cluster(2).run(check_lazy)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def two_by_two():
    """Two groups of two ranks, each with a batch of its own: the gradient is that of both batches."""
    rank = dist.get_rank()
    forward_pass.LEAST_SAVED = 0
    torch.manual_seed(rank)
    model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double()
    split = parallelize(model)
    alone = copy.deepcopy(model)
    whole_model = narrow(alone)
    batches = [of for of, *_ in own_batches(2, rank % 2, 2)]
    owners, seeds = random_owners(NODES, 2, 3), sum(batch.batch_size for batch in batches)
    batch = cut_batches(batches[rank // 2], owners, 2, key=rank // 2)[rank % 2]
    loss_of(split(batch), batch, seeds).backward()
    for whole in batches:
        loss_of(whole_model(whole), whole, seeds).backward()
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12)
    split.close()


@pytest.mark.slow
def test_groups_of_ranks_train_on_batches_of_their_own():
    assert cluster(4).world == 4
    cluster(4).run(two_by_two)
