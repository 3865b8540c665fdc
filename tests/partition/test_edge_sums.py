"""The checksum of a relation sees what happens to single edges, and how it is read does not change it."""

import pytest
import torch
from helpers.graphs import graph_of_degrees

from torch_gnnscale.partition.input_graph import checksum_of, edge_sum
from torch_gnnscale.topology import CSC


def csc_of(dst, src, ids, nodes):
    colptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(dst, minlength=nodes).cumsum(0)])
    return CSC(colptr, src, ids, nodes)


def changed(dst, src, ids, nodes):
    """(what was done, the relation after it), for each edge."""
    count = len(dst)
    for e in range(count):
        lost, doubled = torch.arange(count) != e, torch.arange(count).repeat_interleave((torch.arange(count) == e) + 1)
        order = torch.arange(count)
        order[[0, e]] = order[[e, 0]]
        yield f"lost {e}", csc_of(dst[lost], src[lost], ids[lost], nodes)
        yield f"doubled {e}", csc_of(dst[doubled], src[doubled], ids[doubled], nodes)
        if e > 0:
            yield f"ids of 0 and {e}", csc_of(dst, src, ids[order], nodes)
        if src[e] != src[0]:
            yield f"sources of 0 and {e}", csc_of(dst, src[order], ids, nodes)


@pytest.mark.parametrize("length", [1, 3, 1 << 17])
def test_single_edges_are_seen(monkeypatch, length):
    """The first edge is 0 in all that it has."""
    monkeypatch.setattr("torch_gnnscale.partition.input_graph._LENGTH", length)
    graph = graph_of_degrees([2, 0, 3, 1, 4], seed=3)
    row = graph.row.long().clone()
    row[0] = 0
    degree = graph.colptr.diff()
    dst, ids = torch.arange(5).repeat_interleave(degree), torch.arange(len(row))
    whole = csc_of(dst, row, ids, 5)
    expected = checksum_of(whole)
    place = torch.arange(len(row)) - whole.colptr[dst]
    assert expected == edge_sum(dst, place, row, ids) == checksum_of(csc_of(dst, row.int(), ids.int(), 5))
    order = torch.randperm(len(row))
    assert edge_sum(dst[order], place[order], row[order], ids[order]) == expected
    assert [what for what, other in changed(dst, row, ids, 5) if checksum_of(other) == expected] == []
    zeros = torch.zeros(len(row), dtype=torch.int64)
    assert checksum_of(csc_of(dst, row, None, 5)) != checksum_of(csc_of(dst, row, zeros, 5))
