"""The rows of several tables at the same ids, whether or not the tables are columns of one matrix."""

import pytest
import torch
from helpers.graphs import random_ids, random_rows

from torch_gnnscale import ops
from torch_gnnscale.ops.arguments import OPS
from torch_gnnscale.ops.rows import select_each

WIDTHS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 56, 63, 64, 65, 80, 300, 9000]
INDEX = (torch.int32, torch.int64)


@pytest.mark.parametrize("dtype", INDEX)
@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1000])
def test_rows_of_any_width(count, dtype):
    """Alone, all together, and as columns of one matrix that begin at any byte."""
    ids, rows = random_ids(50, min(count, 50), dtype=dtype), 50
    ids = ids[torch.randint(len(ids), (count,), generator=torch.Generator().manual_seed(1))] if count else ids[:0]
    tables = [random_rows((rows, width), torch.uint8) for width in WIDTHS]
    side_by_side = list(torch.cat(tables, 1).split(WIDTHS, 1))
    for sources in (*([table] for table in tables), tables, tables[::-1], side_by_side, [side_by_side[9], tables[3]]):
        for threads in (1, 3):
            found = OPS.gather_each(sources, [ids], [len(sources)], threads)
            for rows_found, table in zip(found, sources, strict=True):
                assert torch.equal(rows_found, table[ids.long()])
                assert rows_found.is_contiguous()


def test_no_two_outputs_share_memory():
    table, ids = torch.arange(20.0).view(10, 2), random_ids(10, 4)
    first, second = OPS.gather_each([table, table], [ids], [2], 1)
    first.zero_()
    assert torch.equal(second, table[ids])
    assert OPS.gather_each([], [ids], [0], 1) == []


def test_each_group_has_an_index_of_its_own():
    tables = [random_rows((rows, width), torch.uint8) for rows, width in ((9, 4), (9, 56), (30, 8), (5, 3))]
    first, second, third = random_ids(9, 4), random_ids(5, 2), random_ids(5, 3, dtype=torch.int32)
    for threads in (1, 3):
        found = OPS.gather_each(tables, [first, second, first, third], [2, 0, 1, 1], threads)
        for rows, table, ids in zip(found, tables, (first, first, first, third), strict=True):
            assert torch.equal(rows, table[ids.long()])


@pytest.mark.parametrize("count", [3, 500])
def test_tensors_of_every_kind(count):
    """Few rows and many; of one number, of several, strided, without elements, shorter than the bound, with grad."""
    ids = torch.randint(40, (count,), generator=torch.Generator().manual_seed(1))
    wide = torch.randn(40, 20)
    sources = [
        torch.arange(40), torch.randn(40, 3, 2).half(), wide[:, 4:9], wide[:, ::2], torch.ones(40, 0), torch.arange(50),
        torch.randn(40, 2, requires_grad=True), wide[:, 9], torch.eye(40).to_sparse(), torch.tensor(1.0),
        torch.eye(40).to_sparse_csr(),
    ]  # fmt: skip
    with torch.no_grad():
        (found,) = select_each([(sources, ids, 40)])
    assert [of is None for of in found] == [src.layout != torch.strided or not src.dim() or
                                            not ops.can_gather_rows(src) for src in sources]  # fmt: skip
    for rows, src in zip(found, sources, strict=True):
        assert rows is None or torch.equal(rows, src[ids])
    with pytest.raises(IndexError):
        select_each([([torch.arange(40), torch.arange(30)], torch.tensor([39]), 40)])


@pytest.mark.parametrize("sources", [1, 2, 3])
def test_few_numbers_of_several_groups(sources):
    """Each group at its own ids, by torch or in one call."""
    groups = [([torch.arange(40) * k for k in range(sources)], torch.tensor([3, 39]), 40), ([], torch.tensor([1]), 40),
              ([torch.arange(9)], torch.tensor([8, 8, 0]), 9)]  # fmt: skip
    for found, (tensors, ids, _) in zip(select_each(groups), groups, strict=True):
        assert [rows.tolist() for rows in found] == [tensor[ids].tolist() for tensor in tensors]
