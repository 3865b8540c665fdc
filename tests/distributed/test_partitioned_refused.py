"""What is refused where edges are in parts, and fanouts that no degree reaches."""

import pytest
import torch
from helpers.cluster import cluster
from helpers.parts import (
    REPLICATED,
    batches_of_rank,
    expected_batches,
    loader_over,
    parts_of_edges,
)
from helpers.slow import quick
from torch_geometric.data import TensorAttr
from torch_geometric.sampler.base import SubgraphType

from torch_gnnscale import NeighborSampler, partition
from torch_gnnscale.distributed import open_part


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return parts_of_edges(lambda: tmp_path_factory.mktemp("parts"))


def refused(path, kind, options):
    with open_part(path) as part:
        stores = part.features, part.graph
        if kind == "edges":
            part.graph.get_edge_index(None, "csc")
        elif kind == "coo":
            part.graph.coo()
        elif kind == "put":
            part.graph.put_edge_index(torch.zeros(2, 0), edge_type=None, layout="coo")
        elif kind == "sampler":
            NeighborSampler(stores, [2]).sample(torch.arange(3), None, key=1)
        elif kind == "rows":
            part.features.get_tensor(TensorAttr(None, "x", torch.arange(200)))
        elif kind == "call":
            loader_over(stores, part.input_nodes("train"), "nodes", {}).collate_fn([0])
        elif kind == "samples":
            next(loader_over(stores, part.input_nodes("train"), "nodes", {}).samples(0))
        elif kind == "changed later":
            sampler = NeighborSampler(stores, [2])
            loader = loader_over(stores, part.input_nodes("train"), "nodes", {"neighbor_sampler": sampler})
            sampler.subgraph_type = SubgraphType.induced
            next(iter(loader))
        elif kind == "two loaders":
            sampler = NeighborSampler(stores, [2])
            for _ in range(2):
                list(loader_over(stores, part.input_nodes("train"), "nodes", {"neighbor_sampler": sampler}))
        else:
            loader_over(stores, part.input_nodes("train"), "nodes", options)


EDGES = (
    "edges: expected a graph that one process has, found part {} of a partitioned one; torch_gnnscale.NeighborLoader "
    "samples it, in steps that all ranks take together"
)
OUTSIDE = (
    "sample: expected an iteration of a torch_gnnscale.NeighborLoader over the stores of a part, in whose steps all "
    "ranks sample together, found a call outside of one"
)
REFUSED = {
    "induced": ("nodes", {"subgraph_type": "induced"}, f"NotImplementedError: subgraph_type='induced'{REPLICATED}"),
    "bidirectional": ("nodes", {"subgraph_type": "bidirectional"},
                      f"NotImplementedError: subgraph_type='bidirectional'{REPLICATED}"),
    "no weights": ("nodes", {"weight_attr": "x"},
                   "ValueError: weight_attr='x': expected an attribute of edges, found none of this name"),
    "no times": ("nodes", {"time_attr": "when"},
                 "ValueError: time_attr='when': expected an attribute of nodes or edges, found none of this name"),
    "times in parts": ("nodes", {"time_attr": "code"},
                       "ValueError: time_attr='code': expected times of all nodes, found them in parts; they are to be "
                       "named when the parts are written: graph_attrs=['code']"),
    "large fanouts": ("nodes", {"num_neighbors": [1 << 20], "replace": True},
                      "ValueError: num_neighbors: expected -1 (all) or 0..131072 each, found [1048576] with "
                      "replacement"),
    "edges": ("edges", {}, f"RuntimeError: {EDGES}"),
    "coo": ("coo", {}, f"RuntimeError: {EDGES}"),
    "put": ("put", {}, "NotImplementedError: edges of a partitioned graph do not change; write the parts again"),
    "sampler": ("sampler", {}, f"RuntimeError: {OUTSIDE}"),
    "call": ("call", {}, f"RuntimeError: {OUTSIDE}"),
    "samples": ("samples", {}, f"RuntimeError: {OUTSIDE}"),
    "changed later": ("changed later", {}, f"NotImplementedError: subgraph_type='induced'{REPLICATED}"),
    "two loaders": ("two loaders", {},
                    "ValueError: neighbor_sampler: expected one of this loader alone, found one that another loader "
                    "has"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "text"), quick(REFUSED, "induced", "times in parts", "samples"))
def test_what_is_refused_is_named_at_once(parts, kind, options, text):
    found = cluster(2).results(refused, parts(2)[1], kind, options)
    assert found == [(False, text.format(rank)) for rank in range(2)]


@pytest.mark.slow
def test_fanouts_above_every_degree_are_the_same_on_all_ranks(parts):
    """-1 stands for them only if no node of any part has more neighbors."""
    data, path = parts(2)
    with partition.open_parts(path) as opened:
        assert opened.largest_degree == {None: int(torch.bincount(data.edge_index[1]).max())}
    options = {"num_neighbors": [1 << 20, 1]}
    expected = expected_batches(data, path, "nodes", 1, options, 2)
    assert cluster(2).run(batches_of_rank, path, "nodes", 1, options) == expected
