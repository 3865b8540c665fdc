"""R-MAT graphs."""

import numpy as np
import pytest
import torch
from helpers.refused import refuses

from torch_gnnscale.topology import rmat


@pytest.mark.parametrize("seed", [0, 1])
def test_rmat(seed):
    edges = rmat(1000, 20000, seed)
    assert edges.shape == (2, 20000)
    assert edges.dtype == torch.int64
    assert 0 <= int(edges.min()) <= int(edges.max()) < 1000
    assert torch.equal(edges, rmat(1000, 20000, seed))
    assert not torch.equal(edges, rmat(1000, 20000, seed + 1))
    degree = torch.bincount(edges[1], minlength=1000).double()
    assert degree.max() > 10 * degree.mean()
    assert degree.std() > degree.mean()  # far from the sqrt(mean) of uniform edges
    # Unshuffled, the low ids have the high degrees; shuffled, an id says nothing.
    rank = degree.argsort().argsort().double()
    assert abs(torch.corrcoef(torch.stack([rank, torch.arange(1000.0, dtype=torch.float64)]))[0, 1]) < 0.15
    assert torch.equal(rmat(1000, 500, seed), edges[:, :500])
    assert torch.equal(rmat(1000, 500, np.int64(seed)), edges[:, :500])


@pytest.mark.parametrize("seed", [1.5, True, "1"])
def test_seeds_that_are_no_integers_are_refused(seed):
    with refuses(TypeError, f"seed: expected an int, found {type(seed).__name__}"):
        rmat(10, 20, seed)
