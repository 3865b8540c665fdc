"""Narrowed models on real graphs give the outputs and gradients of the model on the whole batch."""

import functools

import pytest
import torch
from helpers.data import REAL
from helpers.narrow_types import ATTRIBUTES, FEATURES, call, check, made
from helpers.slow import NIGHTLY
from torch_geometric.data import HeteroData

from torch_gnnscale import NeighborLoader
from torch_gnnscale.datasets.archives import hetero_graph, read
from torch_gnnscale.nn import narrow

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("every_batch_is_narrowed")]
NAMES = ["to_hetero SAGE", "mixed, skipping", "attributes", "HGT", "bases"]
CASES = [(name, model) for name in ("dblp_hetero", "lastfm_hetero") for model in NAMES]
CASES += [("fb15k237", model) if model in ("HGT", "bases") else NIGHTLY("fb15k237", model) for model in NAMES]


@functools.cache
def graph(name: str) -> HeteroData:
    """The edges of a data set, both ways, with random rows of nodes and edges."""
    if not (REAL / name).is_dir():
        pytest.skip(f"no {name} in {REAL}")
    data, generator = HeteroData(), torch.Generator().manual_seed(0)
    if name == "fb15k237":
        arrays = read(name, REAL, "train_edge_index")
        edges, kind = (torch.from_numpy(arrays[f"train_edge_{what}"]).long() for what in ("index", "type"))
        data["entity"].num_nodes = int(arrays["num_nodes"])
        for number in kind.unique().tolist():
            data["entity", f"r{number}", "entity"].edge_index = edges[:, kind == number]
    else:
        given = hetero_graph(read(name, REAL, "edge_index"))
        for node_type in given.node_types:
            data[node_type].num_nodes = given[node_type].num_nodes
        for (src, relation, dst), store in given.edge_items():
            data[src, relation, dst].edge_index = store.edge_index
            data[dst, f"rev_{relation}", src].edge_index = store.edge_index.flip(0)
    for store in data.node_stores:
        store.x = torch.randn(store.num_nodes, FEATURES, dtype=torch.float64, generator=generator)
    for store in data.edge_stores:
        shape = store.edge_index.size(1), ATTRIBUTES
        store.edge_attr = torch.rand(shape, dtype=torch.float64, generator=generator)
    return data


@pytest.mark.parametrize(("name", "model"), CASES)
def test_real_graphs(name, model):
    data = graph(name)
    model = made(model, data)
    narrowed = narrow(model, call)
    for node_type in data.node_types[:2]:
        ids = torch.arange(0, data[node_type].num_nodes, max(1, data[node_type].num_nodes // 4))[:4]
        fanouts = [1, 1] if name == "fb15k237" else [4, 3]
        check(model, narrowed, next(iter(NeighborLoader(data, fanouts, (node_type, ids), batch_size=4))))
