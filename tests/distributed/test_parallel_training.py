"""DistributedDataParallel over parts: the weights are those of one process that averages the batches' gradients."""

import pytest
import torch
from helpers.cluster import cluster
from helpers.parts import homogeneous, loader_over, stores_of
from helpers.slow import SLOW
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

from torch_gnnscale import partition
from torch_gnnscale.distributed import open_part
from torch_gnnscale.nn import narrow

OPTIONS = {"seed_order": "global", "num_neighbors": [4, 3]}


def model_of(features):
    torch.manual_seed(0)
    return GraphSAGE(features, 8, 2, 3).double()


def loss_of(model, batch):
    batch.x = batch.x.double() / 100
    return nn.functional.cross_entropy(model(batch), batch.y[: batch.batch_size] % 3)


def trained(path, epochs):
    """The weights after training on this rank's share."""
    with open_part(path, buffer=0.3) as part:
        loader = loader_over((part.features, part.graph), part.input_nodes("train", "all"), "nodes", OPTIONS)
        model = model_of(part.features.get_tensor_size(part.features.all_attrs()[0])[1])
        ddp = DistributedDataParallel(narrow(model))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for _ in range(epochs):
            for batch in loader:
                optimizer.zero_grad()
                loss_of(ddp, batch).backward()
                optimizer.step()
        return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("world", [2, SLOW(4)])
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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    narrowed = narrow(model)
    for _ in range(epochs):
        for batches in zip(*shares, strict=True):
            optimizer.zero_grad()
            for batch in batches:
                (loss_of(narrowed, batch) / world).backward()
            optimizer.step()
    expected = model.state_dict()
    for found in cluster(world).run(trained, str(tmp_path / "parts"), epochs):
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-12)
