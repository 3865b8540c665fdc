"""Parts that several ranks hold are divided as a directory of more parts would be."""

import torch
from helpers.data import make_data

from torch_gnnscale import partition
from torch_gnnscale.infer.part_graph import share, share_bounds


def test_bounds_of_shares():
    found = share_bounds(torch.tensor([0, 5, 5, 12]), 3)
    assert found.tolist() == [0, 2, 4, 5, 5, 5, 5, 8, 10, 12]
    assert found.diff()[:3].tolist() == [len(of) for of in torch.arange(5).tensor_split(3)]


def test_shares_are_parts(tmp_path):
    """The shares of two parts have the edges, rows and ids of the parts, each once and in their order."""
    partition.write(make_data(), tmp_path / "parts", parts=2, method="random", topology="partitioned")
    with partition.open_parts(tmp_path / "parts") as parts:
        whole, begins = [parts.part(number) for number in range(2)], []
        for part in whole:
            for copy in range(3):
                share(parts, part, copy, 3, lambda of: begins.append(of) or [of] * 6)
        each = [share(parts, part, copy, 3, lambda _: begins) for part in whole for copy in range(3)]
    assert [of.number for _, of in each] == list(range(6))
    for number, part in enumerate(whole):
        book, of_part = each[0][0].book, [of for _, of in each[3 * number : 3 * number + 3]]
        csc, cscs = part.relations[None], [of.relations[None] for of in of_part]
        assert torch.equal(csc.row, torch.cat([of.row for of in cscs]))
        assert torch.equal(csc.edge_id, torch.cat([of.edge_id for of in cscs]))
        assert torch.equal(csc.colptr.diff(), torch.cat([of.colptr.diff() for of in cscs]))
        for key, rows in part.rows.items():
            assert torch.equal(rows, torch.cat([of.rows[key] for of in of_part]))
        assert torch.equal(part.user_ids[None], torch.cat([of.user_ids[None] for of in of_part]))
        assert [len(book.nodes(3 * number + copy)) for copy in range(3)] == [of.num_dst for of in cscs]
        assert [len(book.edges(3 * number + copy)) for copy in range(3)] == [of.num_edges for of in cscs]
