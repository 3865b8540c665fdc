"""DistributedDataParallel over parts: the weights are those of one process that averages the batches' gradients, and
those without bulks are those with."""

import pytest
import torch
from helpers.cluster import cluster
from helpers.parts import homogeneous, loader_over, parts_of_edges, stores_of
from helpers.slow import NIGHTLY
from helpers.training import trained
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

from torch_gnnscale import partition
from torch_gnnscale.distributed import open_part
from torch_gnnscale.nn import narrow, weigh

OPTIONS = {"seed_order": "global", "num_neighbors": [4, 3]}
METHODS = {
    "neighbor": {"num_neighbors": [4, 3]},
    "ladies": {"method": "ladies", "num_neighbors": [24, 24]},
    "labor": {"method": "labor", "num_neighbors": [4, 3]},
}


def model_of(features):
    torch.manual_seed(0)
    return GraphSAGE(features, 8, 2, 3).double()


def loss_of(model, batch):
    batch.x = batch.x.double() / 100
    return nn.functional.cross_entropy(model(batch), batch.y[: batch.batch_size] % 3)


def trained_on_share(path, epochs, options, **kept):
    """The weights after training on this rank's share, with loaders of each of these options."""
    found = []
    with open_part(path, **kept) as part:
        for given in options:
            seeds = part.input_nodes("train", "all" if given.get("seed_order") == "global" else "part")
            loader = loader_over((part.features, part.graph), seeds, "nodes", given)
            model = model_of(part.features.get_tensor_size(part.features.all_attrs()[0])[1])
            ddp = DistributedDataParallel(narrow(weigh(model) if "method" in given else model))
            weights = trained(ddp, lambda loader=loader: loader, lambda batch, ddp=ddp: loss_of(ddp, batch), epochs)
            found.append({name.removeprefix("module."): value for name, value in weights.items()})
    return found


def with_buffer(path, epochs):
    """The weights of a loader that keeps rows of other parts."""
    return trained_on_share(path, epochs, [OPTIONS], buffer=0.3)[0]


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_weights_are_those_of_one_process(tmp_path, world):
    data, epochs = homogeneous(), 2
    partition.write(data, tmp_path / "parts", parts=2, method="random")
    stores = stores_of(data, str(tmp_path / "parts"))
    with partition.open_parts(tmp_path / "parts") as parts:
        seeds = parts.input_nodes("train")
    model = model_of(data.num_features)
    shares = [
        loader_over(stores, seeds, "nodes", {"num_neighbors": [4, 3], "shard": (rank, world)}) for rank in range(world)
    ]
    narrowed = narrow(model)

    def loss(batches):
        return sum(loss_of(narrowed, batch) / world for batch in batches)

    expected = trained(model, lambda: zip(*shares, strict=True), loss, epochs)
    for found in cluster(world).run(with_buffer, str(tmp_path / "parts"), epochs):
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-12)


# Bulks ################################################################################################################


@pytest.fixture(scope="module")
def edges(tmp_path_factory):
    """edges(K): (data, directory of K parts of edges)."""
    return parts_of_edges(lambda: tmp_path_factory.mktemp("parts"))


def check_bulks(path, world, order, epochs=1):
    """Fails unless training by each method, without bulks and with bulks of 4 of which the last is a short one, comes
    to the same weights on all ranks, to the bit."""
    options = [
        {"batch_size": 8, "seed_order": order, "bulk": bulk, **given} for given in METHODS.values() for bulk in (1, 4)
    ]
    found = cluster(world).run(trained_on_share, path, epochs, options)
    for of_rank in found:
        for without, with_bulks, expected, given in zip(
            of_rank[::2], of_rank[1::2], found[0][::2], options[::2], strict=True
        ):
            for name, value in expected.items():
                assert torch.equal(without[name], value), (given, name)
                assert torch.equal(with_bulks[name], value), (given, name)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "world", "order"), [
    (2, 2, "owned"), NIGHTLY(2, 2, "global"), NIGHTLY(4, 4, "owned"), NIGHTLY(2, 4, "owned"), (2, 4, "global"),
])  # fmt: skip
def test_bulks_where_edges_are_in_parts_change_no_bit(edges, count, world, order):
    check_bulks(edges(count)[1], world, order, epochs=1 if world == 2 else 2)


@pytest.mark.slow
def test_bulks_where_every_rank_has_all_edges_change_no_bit(tmp_path):
    partition.write(homogeneous(), tmp_path / "parts", parts=2, method="random")
    check_bulks(str(tmp_path / "parts"), 2, "owned")
