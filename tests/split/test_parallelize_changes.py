"""What users change of batches, and models whose own tensors layers read too."""

import copy
from contextlib import nullcontext

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.cluster import cluster
from helpers.narrow import CLASSES, FEATURES, HIDDEN, batches
from helpers.slow import SLOW
from helpers.split import cut_batches, cut_of, random_owners
from helpers.split_models import NODES, Begins, own_batches, with_norm
from torch import nn

from torch_gnnscale.comm.rendezvous import rank_and_world
from torch_gnnscale.nn import forward_pass, narrow
from torch_gnnscale.split import parallelize


class Residual(nn.Module):
    """A layer and a product of one tensor: what layers read stays the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = pyg_nn.SAGEConv(FEATURES, HIDDEN), pyg_nn.SAGEConv(HIDDEN, CLASSES)
        self.own, self.norm = nn.Linear(FEATURES, HIDDEN), nn.BatchNorm1d(FEATURES)

    def forward(self, x, edge_index):
        x = self.norm(x)
        x = self.first(x, edge_index) + self.own(nn.functional.dropout(x, 0.5, self.training))
        return self.last(x, edge_index)


class Chunks(nn.Module):
    """Rows of nodes that are taken apart, dropped and put together."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg_nn.SAGEConv(FEATURES, CLASSES)

    def forward(self, x, edge_index):
        columns = (x * 1).split(1, dim=1)
        first, second, third = (nn.functional.dropout(column, 0.5, self.training) for column in columns)
        return self.conv(torch.cat([third, first, second], dim=1), edge_index)


def scaled(how):
    """A step on batches whose features were changed after the halo's had come, against narrow."""
    forward_pass.LEAST_SAVED = 0
    rank, world = rank_and_world()
    torch.manual_seed(0)
    model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double()
    split, alone = parallelize(model), narrow(model, check=False)
    for whole, batch, seeds in own_batches(world, rank, 2):
        whole.x = whole.x * 3
        if how == "replaced":
            batch.x = batch.x * 3
        elif how == "in place":
            batch.x *= 3
        else:  # by one rank alone
            batch.x = batch.x * 3 if rank == 0 else batch.x.mul_(3)
        torch.testing.assert_close(split(batch), alone(whole)[seeds], rtol=1e-12, atol=1e-12)
    split.close()


@pytest.mark.parametrize("how", [SLOW("replaced"), SLOW("in place"), "in two ways"])
def test_changed_features_travel_again(how):
    cluster(2).run(scaled, how)


def outputs_of(kind):
    rank, world = rank_and_world()
    torch.manual_seed(0)
    split = parallelize(kind().double())
    torch.manual_seed(rank)
    out = []
    for _, batch, seeds in own_batches(world, rank, 2):
        found = split(batch)
        found.sum().backward()
        out.append((seeds, found.detach()))
    split.close()
    return out


@pytest.mark.parametrize("kind", [SLOW(Residual), Chunks])
def test_rows_that_layers_and_dropouts_read(kind):
    ranks = cluster(2).run(outputs_of, kind)
    for number, (seeds, expected) in enumerate(outputs_of(kind)):
        rows = torch.empty_like(expected)
        for of_rank in ranks:
            rows[of_rank[number][0]] = of_rank[number][1]
        torch.testing.assert_close(rows[seeds], expected, rtol=1e-12, atol=1e-12)


def statistics():
    rank, _ = rank_and_world()
    model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 2, CLASSES, norm="BatchNorm")
    for buffer in model.buffers():
        buffer.fill_(rank + 1)
    parallelize(model).close()
    return [buffer.unique().tolist() for buffer in model.buffers()]


def test_all_ranks_begin_with_the_buffers_of_rank_0():
    assert cluster(2).run(statistics) == [[[1], [1], [1]]] * 2


def attention():
    """Training with dropout of attention, on batches of one seed: edges may be as many as nodes."""
    rank, world = rank_and_world()
    split = parallelize(pyg_nn.GAT(FEATURES, HIDDEN, 3, CLASSES, dropout=0.5).double())
    owners = random_owners(NODES, world, 3)
    for number, whole in enumerate(batches()):
        if number == 2:
            break
        batch = cut_batches(whole, owners, world, key=number)[rank]
        assert len(cut_of(whole, owners, world, rank).local) == batch.num_nodes
        split(batch).sum().backward()
    split.close()


@pytest.mark.slow
def test_dropout_of_attention():
    cluster(2).run(attention)


def other_models():
    rank, _ = rank_and_world()
    parallelize(pyg_nn.GraphSAGE(FEATURES, HIDDEN + rank, 2, CLASSES))


def test_ranks_with_other_models():
    for returned, text in cluster(2).results(other_models):
        assert not returned
        assert text == "ValueError: model: expected the same on all ranks, found hidden_channels 8 and on rank 1 9"


def single_rows():
    rank, world = rank_and_world()
    norm = {"norm": "BatchNorm", "norm_kwargs": {"allow_single_element": True}}
    split = parallelize(pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES, **norm).double())
    split(next(iter(own_batches(world, rank, 1)))[1])


@pytest.mark.slow
def test_a_norm_that_leaves_single_rows_as_they_are():
    for returned, text in cluster(2).results(single_rows):
        assert not returned
        assert text.startswith("NotImplementedError: norms.0 (BatchNorm): expected allow_single_element=False, found")


def frozen():
    """Steps between which parameters, the last among them, are frozen and trained again."""
    forward_pass.LEAST_SAVED = 0
    rank, world = rank_and_world()
    torch.manual_seed(0)
    model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double()
    split, alone = parallelize(model), narrow(copy.deepcopy(model), check=False)
    parameters = list(zip(model.parameters(), alone.parameters(), strict=True))
    for number, (whole, batch, _) in enumerate(own_batches(world, rank, 4)):
        for ours, theirs in parameters[-1:] if number % 2 else parameters:
            ours.requires_grad_(number % 2 == 0)
            theirs.requires_grad_(number % 2 == 0)
        split(batch).square().sum().backward()
        alone(whole).square().sum().backward()
        for ours, theirs in parameters:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12)
    split.close()


@pytest.mark.slow
def test_parameters_that_are_frozen_between_steps():
    cluster(2).run(frozen)


def beginning():
    """A model that begins to call a function in its fourth batch; on rank 1 in the fifth."""
    rank, world = rank_and_world()
    torch.manual_seed(0)
    split = parallelize(with_norm(norm := Begins()).double())
    norm.calls = -rank
    _, batch, _ = next(own_batches(world, rank))
    for _ in range(3):
        split(batch)
    text = r"^norms\.0 \(Begins\): mean: expected a function that the model called when it was compared with"
    with pytest.warns(UserWarning, match=text) if rank == 0 else nullcontext():
        split(batch)
    try:
        split(batch)
    finally:
        split.close()


def test_functions_that_a_model_calls_from_a_later_batch_on_are_compared_on_all_ranks():
    for returned, text in cluster(2).results(beginning):
        assert not returned
        assert text.startswith(
            "ValueError: norms.0 (Begins): expected the seeds' rows to be those of the whole batch, f"
        )
