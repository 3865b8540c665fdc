"""What the tests of models share."""

import pytest
from torch_geometric.nn import Sequential

from torch_gnnscale.nn import forward_pass


@pytest.fixture(autouse=True)
def the_forward_of_sequential(monkeypatch):
    """PyG's Sequential gives its class the ``forward`` of the object made last, by which others may then be called."""
    monkeypatch.setattr(Sequential, "forward", Sequential.forward)


@pytest.fixture
def every_batch_is_narrowed(monkeypatch):
    """Also those of which narrowing saves nothing."""
    monkeypatch.setattr(forward_pass, "LEAST_SAVED", 0)
