"""Loaders over parts whose seeds have time windows: every batch is the one that a single process makes."""

import pytest
import torch
from helpers.cluster import cluster
from helpers.parts import as_plain, homogeneous, stores_of
from torch import distributed as dist

from torch_gnnscale import LinkNeighborLoader, NeighborLoader, partition
from torch_gnnscale.distributed import open_part


def times_of(count):
    return torch.arange(count) * 7 % 50


def of_nodes(stores, seeds, time_attr, order, **options):
    """Windows of lengths 0 to 24, which end at a time of each seed."""
    ends = times_of(len(seeds))
    return NeighborLoader(
        stores, [4, 3], seeds, input_time=ends, input_start_time=ends - torch.arange(len(seeds)) % 25, seed=3,
        time_attr=time_attr, batch_size=10, shuffle=True, seed_order=order, **options,
    )  # fmt: skip


def of_links(stores, links, time_attr, order, **options):
    return LinkNeighborLoader(
        stores, [4, 3], links, edge_label_time=times_of(links.size(1)), time_window=20, time_attr=time_attr, seed=3,
        batch_size=10, shuffle=True, seed_order=order, neg_sampling="binary", **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """By topology: (data, directory of two parts)."""
    found = {}
    for topology in ("replicated", "partitioned"):
        data, path = homogeneous(), tmp_path_factory.mktemp(topology) / "parts"
        data.since = torch.randint(50, (data.num_edges,), generator=torch.Generator().manual_seed(8))
        partition.write(
            data, path, parts=2, method="random", topology=topology, links={"train": data.edge_index[:, ::7]},
            graph_attrs=["time"] if topology == "partitioned" else ["time", "since"],
        )  # fmt: skip
        found[topology] = data, str(path)
    return found


def batches_of_rank(path, kind, time_attr, order):
    with open_part(path) as part:
        of = "all" if order == "global" else "part"
        inputs = part.links("train", of) if kind == "links" else part.input_nodes("train", of)
        make = of_links if kind == "links" else of_nodes
        return [as_plain(batch) for batch in make((part.features, part.graph), inputs, time_attr, order)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "kind", "time_attr"),
    [("replicated", "nodes", "time"), ("replicated", "links", "since"), ("partitioned", "nodes", "time"),
     ("partitioned", "nodes", "since")],
)  # fmt: skip
def test_batches_are_those_of_one_process(parts, topology, kind, time_attr):
    data, path = parts[topology]
    with partition.open_parts(path) as opened:
        inputs = opened.links("train", None) if kind == "links" else opened.input_nodes("train")
    make = of_links if kind == "links" else of_nodes
    expected = [as_plain(batch) for batch in make(stores_of(data, path), inputs, time_attr, None, shard=False)]
    found = cluster(2).run(batches_of_rank, path, kind, time_attr, "global")
    assert [found[number % 2][number // 2] for number in range(len(expected))] == expected


@pytest.mark.slow
def test_the_parts_own_seeds(parts):
    """The seeds of a part have the same trees for any topology, in one process, too."""
    found = {
        topology: cluster(2).run(batches_of_rank, path, "nodes", "time", "owned")
        for topology, (_, path) in parts.items()
    }
    assert found["replicated"] == found["partitioned"]
    for batches in found["replicated"]:
        assert sum(len(dict(batch)["e_id"][2]) for batch in batches) > 50


def without_windows(path):
    """The first rank's loader has windows, the other's has not."""
    with open_part(path) as part:
        seeds = part.input_nodes("train", "part")
        more = {"time_window": 5} if dist.get_rank() == 0 else {}
        NeighborLoader(
            (part.features, part.graph), [2], seeds, input_time=times_of(len(seeds)), time_attr="time", seed=3, **more
        )


@pytest.mark.slow
def test_ranks_that_disagree(parts):
    with pytest.raises(Exception, match=r"time_windows: expected the same on all ranks, found \[True, None\]"):
        cluster(2).run(without_windows, parts["partitioned"][1])
