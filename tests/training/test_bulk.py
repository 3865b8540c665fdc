"""Training with bulks comes to the weights of training without, to the bit."""

import pytest
import torch
from helpers.data import make_data
from helpers.training import trained
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

from torch_gnnscale import NeighborLoader
from torch_gnnscale.nn import narrow, weigh

METHODS = {"neighbor": [4, 3], "ladies": [24, 24], "labor": [4, 3]}
EPOCHS = 2


def weights(data, method, bulk, **options):
    loader = NeighborLoader(
        data, METHODS[method], method=method, batch_size=24, shuffle=True, seed=5, bulk=bulk, **options
    )
    torch.manual_seed(0)
    model = GraphSAGE(data.num_features, 8, 2, 3)
    narrowed = narrow(model if method == "neighbor" else weigh(model))

    def loss(batch):
        return cross_entropy(narrowed(batch), batch.y[: batch.batch_size] % 3)

    assert len(loader) % 4  # the last bulk is a short one
    return trained(model, lambda: loader, loss, EPOCHS)


@pytest.mark.parametrize("method", METHODS)
def test_weights_are_equal_to_the_bit(method, one_thread):
    data = make_data()
    data.x = data.x.float() / 100
    expected = weights(data, method, 1)
    for options in ({"bulk": 4}, {"bulk": 100, "prefetch": 0}):
        found = weights(data, method, **options)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected), options
