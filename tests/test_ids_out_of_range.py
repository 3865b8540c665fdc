"""Ids that are no nodes, rows or ranks are found wherever they stand, the first and the last ones included, by whatever
takes ids; those at both ends of the range are taken."""

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from torch_gnnscale import CSC, FeatureStore, LinkNeighborLoader, NeighborLoader, ops
from torch_gnnscale.infer.staged_graph import WholeGraph
from torch_gnnscale.infer.work import wanted_nodes
from torch_gnnscale.tasks.metrics import ranking
from torch_gnnscale.topology.reorder import by_score, reorder_data

LIMIT = 5
"""Ids are in [0, LIMIT)."""
GOOD = [LIMIT - 1, 0, 2, LIMIT - 1]
POINTERS = torch.tensor([0, 1, 3, 3, 4, 4])
ROW = torch.tensor([4, 0, 4, 0])
GRAPH = ops.relations([POINTERS], [ROW])
ROWS = torch.rand(LIMIT, 2)
NONE = torch.empty(0, dtype=torch.int64)


def data(**changes) -> Data:
    csc = CSC.from_csc(POINTERS, ROW)
    return Data(**{"x": ROWS, "edge_index": torch.stack([csc.row.long(), csc.col()]), **changes})


def links(ids: Tensor, end: int) -> Tensor:
    """Links with these ids as one end."""
    both = torch.stack([ids, torch.zeros_like(ids)])
    return both.flip(0) if end else both


TAKES = {
    "seeds": lambda ids: ops.sample_neighbors(GRAPH, [ids], [2], 1),
    "seeds of a bulk": lambda ids: ops.sample_bulk(POINTERS, ROW, ids, [0, 1, 1, 4], [2], [1, 2, 3]),
    "seeds of layers": lambda ids: ops.sample_layers(GRAPH, ids.unique(), [2], 1, ops.LayerDrawing()),
    "rows": lambda ids: ops.gather_rows(ROWS, ids),
    "rows of tiers": lambda ids: ops.gather_tiers([ROWS[:3], ROWS[3:]], ids),
    "rows of tables": lambda ids: ops.gather_tables([ops.TieredTable([ROWS])] * 2, [ids * 0, ids]),
    "rows of a store": lambda ids: FeatureStore.from_data(data()).get_tensor(group_name=None, attr_name="x", index=ids),
    "sources of columns": lambda ids: CSC.from_csc(POINTERS, ids),
    "sources": lambda ids: CSC.from_edge_index(links(ids, 0), (LIMIT, 1)),
    "destinations": lambda ids: CSC.from_edge_index(links(ids, 1), (1, LIMIT)),
    "ranks": lambda ids: ops.cut_batch(torch.arange(4), [2, 2], torch.zeros(3).long(), NONE, ids, LIMIT, 0),
    "seeds of a loader": lambda ids: NeighborLoader(data(), [2], ids),
    "ends of a link's source": lambda ids: LinkNeighborLoader(data(), [2], links(ids, 0)),
    "ends of a link's destination": lambda ids: LinkNeighborLoader(data(), [2], links(ids, 1)),
    "nodes whose results are wanted": lambda ids: wanted_nodes(ids, WholeGraph(data())),
    "ranked sources": lambda ids: ranking(ROWS, ROWS[:1], links(ids, 0)),
    "ranked destinations": lambda ids: ranking(ROWS[:1], ROWS, links(ids, 1)),
    "ids of renumbered nodes": lambda ids: reorder_data(data(some_index=ids), by_score(torch.arange(LIMIT))),
}


@pytest.mark.parametrize("name", TAKES)
def test_ids_out_of_range(name):
    take = TAKES[name]
    for dtype in (torch.int64, torch.int32):
        take(torch.tensor(GOOD, dtype=dtype))
        for at in (0, len(GOOD) - 1):
            for wrong in (-1, LIMIT):
                ids = torch.tensor(GOOD, dtype=dtype)
                ids[at] = wrong
                with pytest.raises((IndexError, ValueError), match=rf"(?<![\d-]){wrong}(?!\d)"):
                    take(ids)
