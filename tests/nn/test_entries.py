"""Edges in columns: of a GPU's tensors they are made by torch, of those in host memory by an operator."""

import pytest
import torch
from helpers.edges import random_edges

from torch_gnnscale.nn.aggregate import by_destination, sort_edges
from torch_gnnscale.nn.layered import _is_prefix


class OnGPU(torch.Tensor):
    device = torch.device("cuda")


@pytest.mark.parametrize("num_dst", [30, (1 << 31) - 1, 1 << 31])
def test_columns_on_a_gpu(num_dst, monkeypatch):
    convert, sorted_as = torch._convert_indices_from_coo_to_csr, []

    def few_columns(dst, size):
        sorted_as.append((dst.dtype, size))
        return convert(dst.as_subclass(torch.Tensor), 30)

    monkeypatch.setattr(torch, "_convert_indices_from_coo_to_csr", few_columns)
    src, dst = random_edges(40, 30, 200)
    expected = by_destination(src, dst, 40, 30)
    found = by_destination(src.as_subclass(OnGPU), dst.as_subclass(OnGPU), 40, num_dst)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.as_subclass(torch.Tensor).long(), theirs.long())
    assert sorted_as == [(torch.int32 if num_dst < 1 << 31 else torch.int64, num_dst)]


def test_a_prefix_that_is_larger_than_one_before_is_transposed_anew():
    whole, _ = sort_edges(random_edges(20, 20, 100), 20, 20)
    for num_dst in (5, 12, 20):
        edges = whole.prefix(20, num_dst, int(whole.forward.ptr[num_dst]))
        edges.want_transposed()
        expected = by_destination(edges.index[1], edges.index[0], num_dst, 20)
        assert all(map(torch.equal, edges.transposed(), expected))


def test_what_is_a_prefix_of_edges():
    edges = torch.arange(12).view(2, 6)
    for prefix in (edges, edges[:, :6], edges[:, :4], edges[:, :0], torch.empty(2, 0, dtype=torch.int64)):
        assert _is_prefix(prefix, edges)
    for other in (
        None,
        edges.tolist(),
        edges[0],
        edges[:, 1:],
        edges[:, :4].clone(),
        edges[:, ::2],
        edges.repeat(1, 2),
    ):
        assert not _is_prefix(other, edges)
    assert not _is_prefix(edges, edges[:, :4])
