"""What tests of tiers share."""

from pathlib import Path

import torch
from helpers.data import DTYPES, make_data
from hypothesis import strategies as st
from torch_geometric.data import Data

from torch_gnnscale import FeatureStore, GraphStore, partition
from torch_gnnscale import TieredFeatureStore as Tiered
from torch_gnnscale.distributed.own_rows import OwnTiers
from torch_gnnscale.feature import hotness
from torch_gnnscale.topology.reorder import by_score, reorder_data

NODES = 200
WIDE = 24


def node_data(dtype: torch.dtype = torch.float64) -> Data:
    """Rows that tell which node's they are; narrow labels beside them."""
    data = make_data(NODES)
    del data.edge_attr
    data.x = torch.arange(NODES)[:, None].to(dtype) + torch.arange(WIDE) / 64
    data.train_mask = torch.arange(NODES) % 3 == 0
    return data


def score_of(data: Data) -> torch.Tensor:
    return hotness.out_degree(GraphStore.from_data(data).relation())


BUDGETS = {
    "memory": {},
    "memory and disk": {"host": "40%"},
    "a file": {"host": "2%"},
    "renumbered memory": {"renumbered": True},
    "renumbered memory and disk": {"host": "40%", "renumbered": True},
}


def make(way: str, name: str, folder: Path) -> Tiered:
    """A store of all of ``node_data()``'s attributes, made in one of two ways from one kind of budget."""
    data, budgets = node_data(), dict(BUDGETS[name])
    if way == "from_data":
        if "host" in budgets:
            budgets["disk"] = folder
        return Tiered.from_data(data, hotness="out_degree", **budgets)
    score = score_of(data)
    given = reorder_data(data, by_score(score)) if budgets.get("renumbered") else data
    FeatureStore.from_data(given).save(folder / "saved")
    return Tiered.open(folder / "saved", score, **budgets)


def own_ids(store: Tiered, index: torch.Tensor) -> torch.Tensor:
    return index if store.order is None else store.order.new[index]


def table_of(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows that tell which one they are."""
    return (torch.arange(rows)[:, None] * 7 + torch.arange(columns) * 3).remainder(251).to(dtype)


def cut(table: torch.Tensor, sizes: list[int], spread: list[int]) -> list[torch.Tensor]:
    """A table's rows as the segments of tiers of these sizes."""
    return [
        tier[segment::count].contiguous()
        for tier, count in zip(table.split(sizes), spread, strict=True)
        for segment in range(count)
    ]


@st.composite
def tables(draw):
    spread = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    sizes = [draw(st.integers(0, 30)) for _ in spread]
    table = table_of(sum(sizes), draw(st.integers(0, 9)), draw(st.sampled_from(DTYPES)))
    nodes = draw(st.integers(0, 40)) if sum(sizes) else 0
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    place = None
    if draw(st.booleans()):
        place = torch.randint(max(sum(sizes), 1), (nodes,), generator=generator)
        place = place.to(draw(st.sampled_from([torch.int32, torch.int64])))
    else:
        nodes = sum(sizes)
    count = draw(st.integers(0, 60)) if nodes else 0
    index = torch.randint(max(nodes, 1), (count,), generator=generator)
    return table, sizes, spread, place, index.to(draw(st.sampled_from([torch.int32, torch.int64])))


def scores_by_part(path, node_type=None, **given):
    """The scores of each part's nodes of a type; ``given``: as ``tiers`` of a part."""
    with partition.open_parts(path) as opened:
        tiers = OwnTiers.of(given, opened)
        return [tiers.scores(opened, opened.part(number))[node_type] for number in range(opened.book.num_parts)]
