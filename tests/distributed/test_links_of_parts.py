"""What a part says of its links and nodes: ids and attributes of the links' edges, all nodes, splits by pairs."""

import pytest
import torch
from helpers.cluster import cluster
from helpers.parts import homogeneous, stores_of
from helpers.refused import refuses
from torch_geometric.data import HeteroData

from torch_gnnscale import LinkNeighborLoader, NeighborLoader, partition
from torch_gnnscale.distributed import open_part
from torch_gnnscale.distributed.part import Part
from torch_gnnscale.partition import open_parts

BUYS = ("user", "buys", "item")


def shop() -> HeteroData:
    """Users and items, with times of edges."""
    data = HeteroData()
    data["user"].x, data["item"].x = torch.arange(40.0), torch.arange(30.0)
    data["user"].train_mask = torch.arange(40) % 3 == 0
    generator = torch.Generator().manual_seed(5)
    data[BUYS].edge_index = torch.stack([torch.randint(n, (200,), generator=generator) for n in (40, 30)])
    data[BUYS].time = torch.arange(200) * 3
    return data


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    """(data, directory of two parts), with times of edges; every third edge is a link, one is twice."""
    data, path = homogeneous(), tmp_path_factory.mktemp("parts") / "parts"
    data.since = torch.arange(data.num_edges) * 7 % 101
    ids = torch.cat([torch.arange(0, data.num_edges, 3), torch.tensor([6])])
    links = {"train": ids, "val": torch.arange(data.num_edges) % 50 == 0, "ends": data.edge_index[:, :9]}
    partition.write(data, path, parts=2, method="random", links=links, graph_attrs=["since"])
    return data, str(path), ids


def of_one_part(opened, number):
    part = Part.__new__(Part)
    part.parts, part.stored = opened, opened.part(number)
    return part


@pytest.mark.slow
def test_links_have_the_ids_and_attributes_of_their_edges(timed):
    data, path, ids = timed
    with open_parts(path) as opened:
        assert torch.equal(opened.link_ids("train"), ids)
        assert opened.link_ids("ends") is None
        found = []
        for number in range(2):
            links, attrs = of_one_part(opened, number).links("train", attrs=["e_id", "since", "kind"])
            assert torch.equal(links, data.edge_index[:, attrs["e_id"]])
            assert torch.equal(attrs["since"], data.since[attrs["e_id"]])
            assert torch.equal(attrs["kind"], data.kind[attrs["e_id"]])
            found.append(attrs["e_id"])
        assert torch.equal(torch.cat(found).sort().values, ids.sort().values)
        links, attrs = of_one_part(opened, 1).links((None, "val"), "all", attrs=["since"])
        assert torch.equal(links, data.edge_index[:, ::50])
        assert torch.equal(attrs["since"], data.since[::50])


def test_attributes_that_links_do_not_have(timed):
    with open_parts(timed[1]) as opened:
        part = of_one_part(opened, 0)
        text = "attrs: expected links that were written by ids of edges, found ends alone; use partition.write(..., "
        with refuses(ValueError, text + "links={'ends': ids})"):
            part.links("ends", attrs=["since"])
        text = "attrs: expected attributes of edges among ['e_id', 'edge_attr', 'kind', 'since'], found 'when'"
        with refuses(ValueError, text):
            part.links("train", attrs=["when"])
        text = "attrs: expected attributes of all edges (graph_attrs=) among ['e_id', 'since'], found 'kind'"
        with refuses(ValueError, text):
            part.links("train", "all", attrs=["kind"])
        with refuses(TypeError, "attrs: expected a list of names, found the str 'since'"):
            part.links("train", attrs="since")


WRITTEN = [
    ({"train": torch.tensor([1500])}, IndexError, "links['train']: expected edges in [0, 1500), found 1500"),
    ({"train": torch.ones(7, dtype=torch.bool)}, ValueError,
     "links['train']: expected a mask of 1500 edges, found one of 7"),
    ({"train": torch.zeros(3, 2, dtype=torch.int64)}, ValueError,
     "links['train']: expected ids of edges, or shape (2, links), found (3, 2)"),
]  # fmt: skip


@pytest.mark.parametrize(("links", "error", "message"), WRITTEN, ids=["ids", "mask", "shape"])
def test_links_that_are_not_written(tmp_path, links, error, message):
    with refuses(error, message):
        partition.write(homogeneous(), tmp_path / "parts", parts=2, method="random", links=links)


def shared_batches(path):
    with open_part(path) as part:
        links, attrs = part.links("val", "all", attrs=["since"])
        stores = part.features, part.graph
        loader = LinkNeighborLoader(
            stores, [3, 2], edge_label_index=links, edge_label_time=attrs["since"], time_attr="since", batch_size=6,
            seed=4, seed_order="global",
        )  # fmt: skip
        return [batch.n_id.tolist() for batch in loader]


@pytest.mark.slow
def test_batches_of_links_in_time_are_those_of_one_process(timed):
    data, path, _ = timed
    found = cluster(2).run(shared_batches, path)
    loader = LinkNeighborLoader(
        stores_of(data, path), [3, 2], edge_label_index=data.edge_index[:, ::50], edge_label_time=data.since[::50],
        time_attr="since", batch_size=6, seed=4,
    )  # fmt: skip
    expected = [batch.n_id.tolist() for batch in loader]
    dealt = [found[number % 2][number // 2] for number in range(len(expected))]
    assert dealt == expected


@pytest.mark.slow
def test_splits_of_types_are_named_by_pairs_and_all_nodes_by_none(tmp_path):
    data = shop()
    partition.write(data, tmp_path / "parts", 2, method="random", links={"train": (BUYS, torch.arange(0, 200, 2))})
    with open_parts(tmp_path / "parts") as opened:
        part = of_one_part(opened, 1)
        for of in ("part", "all"):
            of_type, ids = part.input_nodes(("user", "train"), of)
            assert of_type == "user"
            assert torch.equal(ids, part.input_nodes("train", of)[1])
            assert part.links((BUYS, "train"), of)[0] == BUYS
            assert torch.equal(part.links((BUYS, "train"), of)[1], part.links("train", of)[1])
        (_, links), attrs = part.links("train", attrs=["time"])
        assert torch.equal(attrs["time"], data[BUYS].time[part.stored.link_ids[BUYS, "train"]])
        assert torch.equal(links, data[BUYS].edge_index[:, part.stored.link_ids[BUYS, "train"]])
        assert part.input_nodes(None, node_type="item")[0] == "item"
        assert torch.equal(part.input_nodes(None, node_type="item")[1], part.stored.user_ids["item"])
        assert torch.equal(part.input_nodes(None, "all", "user")[1], torch.arange(40))
        with refuses(ValueError, "split: expected one of [('user', 'train')], found ('item', 'train')"):
            part.input_nodes(("item", "train"))
        with refuses(ValueError, "node_type: expected one of ['user', 'item'], found None"):
            part.input_nodes(None)


def embedded(path):
    """The nodes of this rank's batches, each once, and those of its part."""
    with open_part(path) as part:
        loader = NeighborLoader((part.features, part.graph), [2], part.input_nodes(None), batch_size=16, uneven="serve")
        return torch.cat([batch.n_id[: batch.batch_size] for batch in loader]), part.stored.user_ids[None]


def test_embeddings_of_all_nodes_of_a_part(timed):
    for rank, (nodes, own) in enumerate(cluster(2).run(embedded, timed[1])):
        assert torch.equal(nodes, own), rank
