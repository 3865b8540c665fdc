"""What is made of columns piece by piece does not depend on the length of the pieces."""

import pytest
import torch
from helpers.boundary import boundary_graph, owners_of

from torch_gnnscale import CSC
from torch_gnnscale.partition import part_writer as columns
from torch_gnnscale.partition.part_writer import order_by_part

WHOLE = 10_000


@pytest.mark.parametrize("parts", [1, 3, 4])
@pytest.mark.parametrize("step", [1, 2, 7, 199, 200])
def test_nodes_are_ordered_by_part(parts, step):
    owner = owners_of(parts).to(torch.int32)
    order, bounds = order_by_part(owner, parts, step)
    assert torch.equal(order.old.long(), torch.argsort(owner, stable=True))
    assert torch.equal(order.new.long()[order.old.long()], torch.arange(len(owner)))
    assert torch.equal(bounds.diff(), torch.bincount(owner, minlength=parts))


@pytest.mark.slow
@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("step", [1, 2, 7, 199, 200])
def test_edges_of_columns(step, with_ids):
    csc = CSC.from_data(boundary_graph())
    csc = csc if with_ids else CSC(csc.colptr, csc.row, None, csc.num_src)
    order, bounds = order_by_part(owners_of(3).to(torch.int32), 3, WHOLE)
    for first, last in [(0, 200), *zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True), (5, 5)]:
        some = order.old[first:last]
        for made in (columns.degrees, columns.pointers, columns.edge_ids):
            pieces, whole = list(made(csc, some, step)), list(made(csc, some, WHOLE))
            assert max(map(len, pieces), default=0) <= step
            none = torch.empty(0, dtype=torch.int64)
            assert torch.equal(torch.cat([*pieces, none]), torch.cat([*whole, none]))
        row = torch.cat([*columns.sources(csc, some, order.new, step), order.new[:0]])
        assert torch.equal(row, torch.cat([*columns.sources(csc, some, order.new, WHOLE), order.new[:0]]))
    ids, place = (torch.cat(pieces) for pieces in zip(*columns.positions(csc, order.old, step), strict=True))
    stored = torch.cat(list(columns.edge_ids(csc, order.old, WHOLE)))
    assert torch.equal(stored[place].long(), ids)
    assert torch.equal(place.sort().values, torch.arange(csc.num_edges))
