"""What ranks exchange for a batch: two rounds in every mode, and as many bytes as its ids need."""

import pytest
import torch
from helpers.cluster import cluster
from helpers.hetero import PAPER, WRITES, make_hetero, with_times
from helpers.parts import homogeneous, loader_over
from helpers.slow import SLOW, quick

from torch_gnnscale import partition
from torch_gnnscale.distributed import open_part

MODES = {
    "nodes": ("nodes", {}),
    "global": ("nodes", {"seed_order": "global"}),
    "replace": ("nodes", {"replace": True}),
    "disjoint": ("nodes", {"disjoint": True}),
    "layers": ("nodes", {"layers": True}),
    "induced": ("nodes", {"subgraph_type": "induced"}),
    "times": ("nodes", {"time_attr": "time"}),
    "bulk": ("nodes", {"bulk": 2}),
    "links": ("links", {}),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """written(typed): (data, directory of two parts)."""
    made = {}
    for typed in (False, True):
        path = tmp_path_factory.mktemp("parts") / "parts"
        if typed:
            data = with_times(make_hetero())
            splits = {"train": (PAPER, torch.arange(0, 40, 2))}
            links = {"train": (WRITES, data[WRITES].edge_index[:, ::5])}
        else:
            data = homogeneous()
            splits, links = None, {"train": data.edge_index[:, ::7]}
        partition.write(data, path, parts=2, method="random", splits=splits, links=links, graph_attrs=["time"])
        made[typed] = data, str(path)
    return made.get


def epoch_of(path, kind, options):
    """(The ids of each batch by type, the bytes of a type's rows, what this rank exchanged in an epoch)."""
    with open_part(path) as part:
        of = "all" if options.get("seed_order") == "global" else "part"
        seeds = part.links("train", of) if kind == "links" else part.input_nodes("train", of)
        loader = loader_over((part.features, part.graph), seeds, kind, {"num_neighbors": [3, 2], **options})
        size = dict.fromkeys((attr.group_name for attr in part.features.all_attrs()), 0)
        for meta in part.parts.attrs:
            size[meta.group_name] += meta.row_bytes
        size = {group: each + 8 * (not isinstance(group, tuple)) for group, each in size.items()}  # nodes have ids
        found = []
        for batch in loader:
            stores = {group: batch if group in (None, (None, None)) else batch[group] for group in size}
            found.append({g: (store.e_id if isinstance(g, tuple) else store.n_id) for g, store in stores.items()})
        return found, size, part.stats()


def owners_of(data, path):
    """owners(group): the part of each node or edge of a type, by the user's ids."""
    with partition.open_parts(path) as opened:
        nodes = {t: opened.book.part_of(opened.stored_ids(t), t) for t in opened.book.bounds}

    def owners(group):
        if not isinstance(group, tuple):
            return nodes[group]
        if group == (None, None):
            return nodes[None][data.edge_index[1]]
        return nodes[group[2]][data[group].edge_index[1]]

    return owners


@pytest.mark.filterwarnings("ignore:edge type")
@pytest.mark.parametrize(("kind", "options"), quick(MODES, "nodes"))
@pytest.mark.parametrize("typed", [False, SLOW(True)])
def test_a_batch_takes_two_rounds_and_the_bytes_of_its_ids(written, typed, kind, options):
    data, path = written(typed)
    owners = owners_of(data, path)
    for rank, (batches, size, traffic) in enumerate(cluster(2).run(epoch_of, path, kind, options)):
        remote = dict.fromkeys(size, 0)
        for batch in batches:
            for group, ids in batch.items():
                remote[group] += int((owners(group)[ids.unique()] != rank).sum())
        assert len(size) > 1
        assert sum(count > 0 for count in remote.values()) > len(size) // 2
        assert {name: found["rounds"] for name, found in traffic.items()} == {
            "headers": 0, "ids": len(batches), "rows": len(batches)
        }  # fmt: skip
        status = 8 * len(batches)
        assert traffic["ids"]["bytes_sent"] == 8 * sum(remote.values())
        assert traffic["rows"]["bytes_received"] == status + sum(remote[group] * size[group] for group in size)
