"""Rows that change while split batches are made ahead are those of their delivery, those of other ranks included."""

from types import SimpleNamespace

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.cluster import cluster
from helpers.data import make_data
from helpers.split import GivenPlan, random_owners
from torch import nn
from torch_geometric.data import Data

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader
from torch_gnnscale.comm.rendezvous import rank_and_world
from torch_gnnscale.nn import forward_pass, narrow
from torch_gnnscale.split import parallelize
from torch_gnnscale.split.rank_rows import SplitRows

OWNERS = random_owners(200, 2, 1)


def run(learns, stores, prefetch, split):
    """The outputs for the batches of two epochs, after each of which x changes; and, if it learns, its gradients.

    ``split``: over the ranks; else in one process."""
    rank, world = rank_and_world()
    forward_pass.LEAST_SAVED = 0
    torch.manual_seed(0)
    data = make_data()
    data.x = data.x / 200
    data.x = nn.Parameter(data.x) if learns else data.x
    source = (FeatureStore.from_data(data), GraphStore.from_data(data)) if stores else data
    model = pyg_nn.GraphSAGE(3, 8, 2, 4).double()
    call = lambda model, batch: model(batch.x, batch.edge_index)  # noqa: E731
    run = parallelize(model, call) if split else narrow(model, call)
    options = {"split": GivenPlan(OWNERS, world)} if split else {"shard": False}
    loader = NeighborLoader(source, [3, 3], batch_size=40, seed=1, shuffle=True, prefetch=prefetch, **options)
    outputs, gradients = [], []
    for number in range(2):
        loader.set_epoch(number)
        for batch in loader:
            own = slice(None) if split else OWNERS[batch.n_id[:40]] == rank
            rows = data.x.detach()[batch.n_id]
            assert torch.equal(batch.x.detach(), rows)
            out = run(batch)
            outputs.append(out.detach().clone()[own])
            if learns:
                data.x.grad = None
                out.square().sum().backward()
                gradients.append(data.x.grad[rank == OWNERS].clone())
            if len(outputs) % 2:  # else what is made ahead is still right
                with torch.no_grad():
                    data.x.mul_(1.5)
            model.zero_grad()
    if split:
        run.close()
    return outputs, gradients


def check(learns, stores, prefetch):
    found = run(learns, stores, prefetch, split=True)
    expected = run(learns, False, 0, split=False)
    for given, wanted in zip(found, expected, strict=True):
        assert len(given) == len(wanted) == (10 if learns or given else 0)
        for one, other in zip(given, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("stores", "prefetch"), [(False, 0), (False, 3), (True, 3)])
@pytest.mark.parametrize("learns", [False, True])
def test_rows_of_split_batches_that_change(learns, stores, prefetch):
    cluster(2).run(check, learns, stores, prefetch)


def test_a_halo_goes_with_the_rows_that_it_belongs_to():
    source = SplitRows(SimpleNamespace(renew=lambda *_: None))
    batch = Data(x=torch.ones(3, 2), x_halo=torch.ones(1, 2), y=torch.ones(3))
    source.renew(batch, None, None, [(None, "y")])
    assert "x_halo" in batch
    source.renew(batch, None, None, [(None, "y"), (None, "x")])
    assert "x_halo" not in batch


@pytest.mark.parametrize("prefetch", [0, 2])
def test_transforms_of_outputs_do_not_draw_from_what_threads_share(prefetch):
    def transform(out):
        out.node = out.node.clone() if draw() > 2 else out.node
        return out

    def loader():
        return NeighborLoader(
            make_data(), [3], split=GivenPlan(OWNERS, 2), transform_sampler_output=transform, prefetch=prefetch
        )

    draw = lambda: torch.rand(1)  # noqa: E731
    with pytest.raises(
        RuntimeError, match=r"^transform_sampler_output: expected draws by generator= where ranks read or"
    ):
        next(iter(loader()))
    draw = lambda: torch.rand(1, generator=torch.Generator().manual_seed(1))  # noqa: E731
    next(iter(loader()))
