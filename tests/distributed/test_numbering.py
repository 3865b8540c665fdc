"""The numbering of a graph in parts."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from torch_gnnscale.distributed.partitioned_graph import PartNumbering
from torch_gnnscale.partition import StoredParts


def test_numberings_are_equal_where_the_parts_are():
    numbering, equal, other = (PartNumbering(SimpleNamespace(fingerprint=number)) for number in (5, 5, 6))
    assert numbering.equals(equal)
    assert not numbering.equals(other)
    assert not numbering.equals(None)


@pytest.mark.parametrize("wrong", [-1, 3])
def test_ids_that_are_no_nodes_are_named(wrong):
    parts = SimpleNamespace(
        stored_ids=lambda node_type: torch.tensor([2, 0, 1]),
        book=SimpleNamespace(bounds=[None]),
        _file=lambda name: name,
    )
    parts.to_stored = partial(StoredParts.to_stored, parts)
    numbering = PartNumbering(parts)
    assert numbering.to_stored(torch.tensor([0, 2], dtype=torch.int32)).tolist() == [2, 1]
    with pytest.raises(IndexError, match=rf"^ids\[1\] = {wrong} is out of range: expected nodes in \[0, 3\)$"):
        numbering.to_stored(torch.tensor([0, wrong]))
