"""All parts as the stores of one process: batches are those of the whole graph in the same stored order."""

import pytest
import torch
from helpers.boundary import boundary_graph, owners_of
from helpers.hetero import PAPER, make_hetero
from helpers.parts import as_plain, homogeneous, loader_over, orders_of
from helpers.refused import refuses

from torch_gnnscale import FeatureStore, GraphStore, partition
from torch_gnnscale.distributed import open_part


def batches_of(stores, seeds, kind, options):
    return [as_plain(batch) for batch in loader_over(stores, seeds, kind, options)]


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["replicated", "partitioned"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [("nodes", {}), ("nodes", {"weight_attr": "weight", "disjoint": True}), ("links", {"subgraph_type": "induced"})],
)
@pytest.mark.parametrize("count", [1, 3])
def test_batches_are_those_of_one_graph(tmp_path, topology, kind, options, count):
    data = boundary_graph()
    data.weight = 1.0 + torch.arange(data.num_edges) % 4
    links = {"train": data.edge_index[:, ::9]}
    partition.write(data, tmp_path / "parts", parts=count, owners=owners_of(count), topology=topology, links=links)
    with partition.open_parts(tmp_path / "parts") as parts:
        order = orders_of(parts) if count > 1 else None
        whole = FeatureStore.from_data(data, order=order), GraphStore.from_data(data, order=order)
        seeds = parts.links("train") if kind == "links" else parts.input_nodes("train")
        stores = parts.stores()
        assert batches_of(stores, seeds, kind, options) == batches_of(whole, seeds, kind, options)
        assert torch.equal(stores[0][None, "x", None], whole[0][None, "x", None])
        assert torch.equal(stores[0][(None, None), "kind", None], data.kind)


def test_a_graph_with_types(tmp_path):
    data = make_hetero()
    partition.write(data, tmp_path / "parts", parts=2, method="random")
    with partition.open_parts(tmp_path / "parts") as parts:
        order = orders_of(parts)
        whole = FeatureStore.from_data(data, order=order), GraphStore.from_data(data, order=order)
        seeds = (PAPER, torch.arange(12))
        assert batches_of(parts.stores(), seeds, "nodes", {}) == batches_of(whole, seeds, "nodes", {})


def test_what_is_no_row_is_refused(tmp_path):
    partition.write(homogeneous(), tmp_path / "parts", parts=2, method="random")
    with partition.open_parts(tmp_path / "parts") as parts:
        features, _ = parts.stores()
        with pytest.raises(IndexError, match="200 is out of range: expected rows in"):
            features[None, "x", torch.tensor([200])]
        with pytest.raises(NotImplementedError, match=r"^rows of a partitioned graph do not change"):
            features[None, "x", None] = torch.zeros(200, 1)
    with pytest.raises(ValueError, match="expected parts that are open, found closed ones"):
        parts.stores()


def test_one_process_that_opens_one_of_several_parts_is_told_of_it(tmp_path):
    partition.write(homogeneous(), tmp_path / "parts", parts=2, method="random")
    text = "ranks: expected a multiple of 2 parts, found 1 rank; partition.open_parts(path).stores() has all parts"
    with refuses(ValueError, text), open_part(tmp_path / "parts"):
        pass
