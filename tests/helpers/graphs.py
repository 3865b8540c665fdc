"""Random graphs for the tests, and the comparison of two samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import reference
import torch
from hypothesis import strategies as st
from torch import Tensor

from torch_gnnscale import ops


class Graph(NamedTuple):
    colptr: Tensor
    row: Tensor
    edge_id: Tensor | None = None

    @property
    def num_nodes(self) -> int:
        return self.colptr.numel() - 1

    def sample(self, executor, seeds: Tensor, fanouts: Sequence[int], key: int, **options) -> ops.Sample:
        """The sample by ``ops`` or by ``reference``."""
        return executor.sample_neighbors(self.relations(), [seeds], fanouts, key, **options)

    def relations(self, **options) -> ops.Relations:
        """As operators take it, with weights or times if they are given."""
        return ops.relations([self.colptr], [self.row], edge_id=[self.edge_id], **options)

    def stored(self, dtype: torch.dtype, edge_id_dtype: torch.dtype | None, interleaved: bool) -> Graph:
        """The same edges in other types, with arbitrary edge ids, side by side in memory or not."""
        row = self.row.to(dtype)
        if edge_id_dtype is None:
            return Graph(self.colptr, torch.stack([row, row], dim=1)[:, 0] if interleaved else row)
        edge_id = (torch.arange(len(row)) * 7 + 3).flip(0).to(edge_id_dtype)
        if interleaved:
            if dtype == edge_id_dtype:
                row, edge_id = torch.stack([row, edge_id], dim=1).unbind(1)
            else:
                row, edge_id = row.repeat_interleave(3)[::3], edge_id.repeat_interleave(2)[::2]
        return Graph(self.colptr, row, edge_id)


def graph_of_degrees(degrees: Sequence[int] | Tensor, seed: int = 0, dtype: torch.dtype = torch.int64) -> Graph:
    """Each node with as many random neighbors; self loops and multi-edges come up by themselves."""
    degrees = torch.as_tensor(degrees, dtype=torch.int64)
    generator = torch.Generator().manual_seed(seed)
    colptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    row = torch.randint(max(len(degrees), 1), (int(colptr[-1]),), generator=generator, dtype=dtype)
    return Graph(colptr, row)


def random_graph(num_nodes: int, mean_degree: int, seed: int = 0, dtype: torch.dtype = torch.int64) -> Graph:
    """Degrees from 0 up to 8 times the mean, most of them small."""
    generator = torch.Generator().manual_seed(seed)
    degrees = (8 * mean_degree * torch.rand(num_nodes, generator=generator, dtype=torch.float64) ** 7).long()
    return graph_of_degrees(degrees, seed + 1, dtype)


def random_ids(limit: int, count: int, seed: int = 0, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(limit, (count,), generator=torch.Generator().manual_seed(seed), dtype=dtype)


def random_rows(shape: tuple[int, ...], dtype: torch.dtype, device: str = "cpu") -> Tensor:
    """Rows of random bytes, as far as the dtype allows any."""
    if dtype == torch.bool:
        return random_ids(2, max(torch.Size(shape).numel(), 0)).bool().reshape(shape).to(device)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype).to(device)
    return random_ids(127, torch.Size(shape).numel()).reshape(shape).to(dtype).to(device)


TENSORS = [name for name in ops.Sample._fields if name not in ("num_nodes", "num_edges")]
"""The fields of a sample that are lists of tensors."""


def with_tensors(sample: ops.Sample, change: Callable[[Tensor], Tensor]) -> ops.Sample:
    """The sample with ``change(tensor)`` in place of each tensor."""
    return sample._replace(**{name: [change(tensor) for tensor in getattr(sample, name)] for name in TENSORS})


def assert_same(found: ops.Sample, expected: ops.Sample) -> None:
    assert (found.num_nodes, found.num_edges) == (expected.num_nodes, expected.num_edges)
    for name in TENSORS:
        left, right = getattr(found, name), getattr(expected, name)
        assert len(left) == len(right), name
        for ours, theirs in zip(left, right, strict=True):
            assert ours.dtype == theirs.dtype == (torch.float32 if name == "edge_weight" else torch.int64), name
            assert ours.shape == theirs.shape, name
            assert torch.equal(ours, theirs), name


def positions_of(sample: ops.Sample, graph: Graph) -> tuple[Tensor, Tensor]:
    """Destination (its global id) and position in its neighbor list of each edge of a sample of one hop."""
    node = sample.node[0][sample.edge_index[0][1]]
    return node, sample.edge_id[0] - graph.colptr[node]


@st.composite
def small_graphs(draw) -> Graph:
    num_nodes = draw(st.integers(0, 10))
    node = st.integers(0, max(num_nodes - 1, 0))
    edges = draw(st.lists(st.tuples(node, node), max_size=50)) if num_nodes else []
    src, dst = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).unbind(1)
    colptr, stored = reference.coo_to_csc(src, dst, num_nodes, num_nodes)
    plain = Graph(colptr, stored[:, 0].contiguous())
    edge_id_dtype = draw(st.sampled_from([None, torch.int32, torch.int64]))
    return plain.stored(draw(st.sampled_from((torch.int32, torch.int64))), edge_id_dtype, draw(st.booleans()))
