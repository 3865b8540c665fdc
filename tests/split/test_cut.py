"""The operator that cuts a batch: equal to its twin, for any ids, owners and numbers of ranks."""

import re

import pytest
import reference
import torch
from helpers.data import make_data
from helpers.slow import examples
from helpers.split import Whole, random_owners, wholes
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale import NeighborLoader, ops


def assert_equal(found: ops.Cut, expected: ops.Cut) -> None:
    for name in ops.Cut._fields:
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs, name


def whole_of(batch, owners: torch.Tensor, dtype: torch.dtype = torch.int64) -> Whole:
    """A loader's batch as the operator takes it."""
    degrees = torch.bincount(batch.edge_index[1], minlength=sum(batch.num_sampled_nodes[:-1]))
    colptr = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
    return Whole(batch.n_id, batch.num_sampled_nodes, colptr, batch.edge_index[0], owners[batch.n_id].to(dtype))


@examples(50)
@given(st.data(), st.integers(1, 4), st.sampled_from([1, 2000, 1 << 40]))
def test_equals_the_twin(data, parts, scale):
    whole = data.draw(wholes(parts))
    whole = whole._replace(node=whole.node * scale)
    for part in range(parts):
        assert_equal(ops.cut_batch(*whole, parts, part), reference.cut_batch(*whole, parts, part))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("parts", [1, 3])
def test_equals_the_twin_on_sampled_batches(parts, dtype):
    data = make_data(3000, 20000)
    seeds = torch.cat([torch.arange(0, 900, 3), torch.arange(300)]) * 3
    owners = random_owners(3000, parts)
    for batch in NeighborLoader(data, [5, 4, 3], seeds, batch_size=300, seed=1):
        whole = whole_of(batch, owners, dtype)
        assert len(whole.node) > 256 * parts  # so many are sorted by digits
        for part in range(parts):
            assert_equal(ops.cut_batch(*whole, parts, part), reference.cut_batch(*whole, parts, part))


@pytest.mark.parametrize("scale", [1, 1 << 21])
def test_more_remote_nodes_than_own_ones(scale):
    """Ids of 11 or 32 bits are sorted in an odd number of passes, own nodes in buffers too small for the halo."""
    owners = (torch.arange(2040) % 6 != 0).long()
    for batch in NeighborLoader(make_data(2040, 40000), [8, 8], torch.arange(2040), batch_size=1020, seed=1):
        whole = whole_of(batch, owners)
        assert int((whole.owner == 0).sum()) > 256
        whole = whole._replace(node=whole.node * scale)
        assert_equal(ops.cut_batch(*whole, 2, 0), reference.cut_batch(*whole, 2, 0))


def test_of_nothing():
    nothing = torch.empty(0, dtype=torch.int64)
    found = ops.cut_batch(nothing, [0, 0], torch.zeros(1, dtype=torch.int64), nothing, nothing, 2, 1)
    assert_equal(found, reference.cut_batch(nothing, [0, 0], torch.zeros(1, dtype=torch.int64), nothing, nothing, 2, 1))


GIVEN = {
    "node": torch.tensor([4, 7, 9]), "num_nodes": [1, 2], "colptr": torch.tensor([0, 2]), "row": torch.tensor([1, 2]),
    "owner": torch.tensor([0, 1, 0]), "parts": 2, "part": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"num_nodes": [3]}, ValueError, "num_nodes: expected 2 to 65 numbers, found 1"),
        ({"num_nodes": [1, -1]}, ValueError, f"num_nodes: expected 0 <= num_nodes <= {1 << 62}, found -1"),
        ({"num_nodes": [1, 3]}, ValueError, "node: expected shape (4,), found (3,)"),
        ({"node": torch.zeros(3)}, TypeError, "node: expected an int64 vector, found torch.float32"),
        ({"colptr": torch.tensor([0, 1, 2])}, ValueError, "colptr: expected shape (2,), found (3,)"),
        ({"row": torch.zeros(2)}, TypeError, "row: expected an int64 vector, found torch.float32"),
        ({"owner": torch.zeros(2, dtype=torch.int64)}, ValueError, "owner: expected one for each of 3 nodes, found 2"),
        ({"owner": torch.zeros(4, dtype=torch.int64)}, ValueError, "owner: expected one for each of 3 nodes, found 4"),
        ({"owner": torch.zeros(3)}, TypeError, "owner: expected int32 or int64 ids, found torch.float32"),
        ({"owner": torch.tensor([0, 1, 2])}, IndexError, "owner[2] = 2 is out of range: expected ranks in [0, 2)"),
        ({"owner": torch.tensor([0, -1, 1])}, IndexError, "owner[1] = -1 is out of range: expected ranks in [0, 2)"),
        ({"parts": 0}, ValueError, "parts: expected 1 <= parts <= 65536, found 0"),
        ({"parts": 1 << 20}, ValueError, "parts: expected 1 <= parts <= 65536, found 1048576"),
        ({"part": 2}, ValueError, "part: expected 0 <= part <= 1, found 2"),
        ({"row": torch.tensor([1, 3])}, RuntimeError, "the batch is malformed: row[1] is not in [0, 3)"),
        ({"row": torch.tensor([-1, 2])}, RuntimeError, "the batch is malformed: row[0] is not in [0, 3)"),
        ({"colptr": torch.tensor([0, 3])}, RuntimeError, "the batch is malformed: colptr[1] is 3"),
        ({"colptr": torch.tensor([1, 2])}, RuntimeError, "the batch is malformed: colptr[0] is 1"),
    ],
)  # fmt: skip
def test_bad_input(changes, error, text):
    with pytest.raises(error, match=re.escape(text)):
        ops.cut_batch(**{**GIVEN, **changes})
