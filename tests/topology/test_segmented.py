"""A graph in two segments, of which the CPU stands for the GPU that has the first."""

import pytest
import torch
from helpers.edges import random_edges

from torch_gnnscale import CSC
from torch_gnnscale.topology.segmented import SegmentedCSC


@pytest.mark.parametrize("num_edges", [0, 1, 60])
@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_a_cut_has_every_edge(num_edges, share):
    csc = CSC.from_edge_index(random_edges(20, 20, num_edges), 20)
    room = int(share * (csc.colptr.nbytes + csc.row.nbytes + csc.edge_id.nbytes))
    cut = SegmentedCSC.cut(csc, torch.device("cpu"), room, copied=False)
    assert torch.equal(cut.colptr, csc.colptr)
    assert torch.equal(torch.cat(cut.row), csc.row)
    assert torch.equal(torch.cat(cut.edge_id), csc.edge_id)
