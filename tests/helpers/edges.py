"""Random edges, and the comparison of two CSCs."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_gnnscale import CSC


def random_edges(num_src: int, num_dst: int, count: int, seed: int = 0, hub: int = 0) -> Tensor:
    """COO edges, int64 [2, count], ``hub`` tenths of which lead to one node."""
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(num_src, (count,), generator=generator)
    dst = torch.randint(num_dst, (count,), generator=generator)
    dst[: count * hub // 10] = num_dst // 2
    return torch.stack([src, dst])[:, torch.randperm(count, generator=generator)]


def assert_same_csc(found: CSC, expected: CSC, edge_ids: bool = True) -> None:
    assert torch.equal(found.colptr, expected.colptr)
    assert found.row.dtype == expected.row.dtype
    assert torch.equal(found.row, expected.row)
    assert (found.num_src, found.num_dst) == (expected.num_src, expected.num_dst)
    if edge_ids:
        assert found.edge_id.dtype == expected.edge_id.dtype
        assert torch.equal(found.edge_id, expected.edge_id)
    else:
        assert found.edge_id is None
