"""What links can be that is refused, by its exact error."""

import re

import pytest
import torch
from helpers.data import our_stores, processes, stop_workers
from helpers.links import (
    RATES,
    edges,
    graph_of,
    heterogeneous,
    homogeneous,
    inputs_of,
    loader_of,
    times_of,
)
from torch_geometric.data import HeteroData
from torch_geometric.sampler import NegativeSampling

from torch_gnnscale import LinkNeighborLoader, NeighborSampler


def sample(options=None, links=None, edge_type=None, negatives=("binary", 1), data=None, **fields):
    data = graph_of(edge_type) if data is None else data
    links = edges(data, edge_type)[:, :3] if links is None else links
    sampler = NeighborSampler(data, [2], **(options or {}))
    sampler.sample_from_edges(inputs_of(links, edge_type, **fields), NegativeSampling(*negatives), key=1)


def complete(num_nodes):
    data = homogeneous(num_nodes, 0)
    data.edge_index, data.edge_attr = torch.ones(num_nodes, num_nodes).nonzero().t(), None
    return data


def without_reverses():
    data = HeteroData({"user": {"num_nodes": 3}, "item": {"num_nodes": 3}})
    data[RATES].edge_index = torch.arange(3).expand(2, 3)
    return data


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"options": {"exclude_seed_edges": "both"}},
            ValueError, "exclude_seed_edges: expected False, True or 'reverse', found 'both'",
        ),
        (
            {"options": {"strict_negatives": "yes"}},
            TypeError, "strict_negatives: expected a tensor of links, found str",
        ),
        (
            {"options": {"strict_negatives": {}}},
            TypeError, "strict_negatives: expected a bool or a tensor, found dict",
        ),
        (
            {"options": {"strict_negatives": torch.ones(2, 3)}, "edge_type": RATES},
            TypeError, "strict_negatives: expected a bool or a dictionary by edge type, found Tensor",
        ),
        (
            {"options": {"strict_negatives": torch.ones(3, 3)}},
            ValueError, "strict_negatives: expected shape (2, num_links), found (3, 3)",
        ),
        (
            {"options": {"strict_negatives": {RATES: torch.tensor([[3], [50]])}}, "edge_type": RATES},
            IndexError, "strict_negatives[1, 0] = 50 is out of range: expected nodes of 'item' in [0, 50)",
        ),
        (
            {"options": {"strict_negatives": {("a", "b", "c"): torch.ones(2, 3).long()}}, "edge_type": RATES},
            ValueError, "node type 'a': expected one of ['user', 'item']",
        ),
        (
            {"options": {"exclude_seed_edges": "reverse"}, "edge_type": RATES, "data": without_reverses()},
            ValueError, "exclude_seed_edges='reverse': expected an edge type of the reverse edges of ('user', 'rates'",
        ),
        ({"links": torch.tensor([[60], [0]])}, IndexError, "60"),
        ({"links": torch.tensor([[0.5], [0]])}, TypeError, "row: expected integers, found torch.float32"),
        (
            {"negatives": ("triplet", 1), "label": torch.ones(3)},
            ValueError, "edge_label: expected none with negatives in triplets, found some",
        ),
        (
            {"options": {"time_attr": "time"}},
            ValueError, "edge_label_time: expected times of the links, which limit the times of negatives, found none",
        ),
        (
            {"options": {"time_attr": "time"}, "time": torch.tensor([0, 3, -1])},
            ValueError, "negative 2: expected a link of nodes not later than -1, found none",
        ),
        (
            {"options": {"time_attr": "time"}, "time": torch.zeros(4).long()},
            ValueError, "edge_label_time: expected 3 times, found shape (4,)",
        ),
        ({"time": torch.zeros(3).long()}, ValueError, "seed_time: expected none from a sampler without time_attr"),
        (
            {"negatives": ("binary", 1, torch.ones(59))},
            ValueError, "neg_sampling: src_weight: weight: expected shape (60,), found (59,)",
        ),
        (
            {"negatives": ("triplet", 1, None, -torch.ones(50)), "edge_type": RATES},
            ValueError, "neg_sampling: dst_weight: weight[0] = -1.0: expected a finite number that is not negative",
        ),
        (
            {"data": complete(5), "options": {"strict_negatives": True}},
            ValueError, "negative 0: expected a link that is not an edge, found none",
        ),
        (
            {"data": complete(5), "options": {"strict_negatives": True}, "negatives": ("triplet", 1)},
            ValueError, "negative 0: expected a destination for source 0 that is not an edge, found none",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_bad_input_of_the_sampler(arguments, error, message):
    with pytest.raises(error) as caught:
        sample(**arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"edge_label_index": torch.tensor([[0, 1], [2, 60]])},
            IndexError, "edge_label_index[1, 1] = 60 is out of range: expected nodes in [0, 60)",
        ),
        (
            {"data": heterogeneous(), "edge_label_index": (RATES, torch.tensor([[0, 40], [2, 6]]))},
            IndexError, "edge_label_index[0, 1] = 40 is out of range: expected nodes of 'user' in [0, 40)",
        ),
        (
            {"edge_label_index": torch.zeros(4).long()},
            ValueError, "edge_label_index: expected shape (2, num_links), found (4,)",
        ),
        (
            {"edge_label_index": torch.zeros(2, 2).long(), "edge_label": [0, 1]},
            TypeError, "edge_label: expected a tensor, found list",
        ),
        (
            {"edge_label_index": torch.zeros(3, 4).long()},
            ValueError, "edge_label_index: expected shape (2, num_links), found (3, 4)",
        ),
        (
            {"edge_label_index": torch.zeros(2, 4)},
            TypeError, "edge_label_index: expected integers, found torch.float32",
        ),
        (
            {"edge_label_index": [[0, 1], [2, 3]]},
            TypeError, "edge_label_index: expected links, an edge type, or a pair of an edge type and links, found",
        ),
        (
            {"edge_label_index": RATES},
            ValueError, f"edge_label_index: expected links of a graph without edge types, found type {RATES}",
        ),
        (
            {"data": heterogeneous()},
            ValueError, "edge_label_index: expected an edge type, or a pair of an edge type and links, found neither",
        ),
        (
            {"data": heterogeneous(), "edge_label_index": ("user", "buys", "item")},
            ValueError, "edge_label_index: expected an edge type of [",
        ),
        ({"edge_label": torch.ones(4)}, ValueError, "edge_label: expected one for each of 300 links, found 4"),
        (
            {"edge_label": torch.tensor(1.0), "neg_sampling": "binary"},
            ValueError, "edge_label: expected one for each of 300 links, found a number",
        ),
        (
            {"edge_label": torch.empty(0), "neg_sampling": "binary"},
            ValueError, "edge_label: expected one for each of 300 links, found 0",
        ),
        (
            {"edge_label_time": torch.tensor(1), "time_attr": "time"},
            ValueError, "edge_label_time: expected one for each of 300 links, found a number",
        ),
        (
            {"edge_label_index": torch.empty(2, 0).long(), "edge_label": torch.empty(0), "neg_sampling": "triplet"},
            ValueError, "edge_label: expected none with negatives in triplets, found some",
        ),
        (
            {"edge_label_time": torch.ones(4).long(), "time_attr": "time"},
            ValueError, "edge_label_time: expected one for each of 300 links, found 4",
        ),
        (
            {"time_attr": "time"},
            ValueError, "'edge_label_time' is not set while 'time_attr' is set: expected both for temporal sampling",
        ),
        (
            {"edge_label_time": torch.ones(300).long()},
            ValueError, "'edge_label_time' is set while 'time_attr' is not set",
        ),
        (
            {"neighbor_sampler": NeighborSampler(homogeneous(), [2]), "strict_negatives": True},
            ValueError, "strict_negatives: expected none beside a neighbor_sampler; pass it to the sampler",
        ),
        (
            {"neg_sampling": NegativeSampling("binary", 1, torch.ones(7))},
            ValueError, "neg_sampling: src_weight: weight: expected shape (60,), found (7,)",
        ),
        (
            {"neg_sampling": NegativeSampling("triplet"), "edge_label": torch.ones(300)},
            ValueError, "edge_label: expected none with negatives in triplets, found some",
        ),
        ({"exclude_seed_edges": 1}, ValueError, "exclude_seed_edges: expected False, True or 'reverse', found 1"),
        ({"prefetch": -1}, ValueError, "prefetch: expected at least 0, found -1"),
        ({"batch_size": None}, ValueError, "batch_size: expected a number of seeds, found None"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_bad_arguments_of_the_loader(arguments, error, message):
    with pytest.raises(error) as caught:
        LinkNeighborLoader(**{"data": homogeneous(), "num_neighbors": [2], "batch_size": 8, **arguments})
    assert message in str(caught.value)


LINKS = torch.tensor([[0, 1], [2, 3]])


@pytest.mark.parametrize("source", [lambda data: data, our_stores], ids=["data", "stores"])
@pytest.mark.parametrize(
    ("data", "given", "message"),
    [
        (homogeneous(), RATES, f"links of a graph without edge types, found type {RATES}"),
        (homogeneous(), (RATES, LINKS), f"links of a graph without edge types, found type {RATES}"),
        (heterogeneous(), None, "an edge type, or a pair of an edge type and links, found neither"),
        (heterogeneous(), LINKS, "an edge type, or a pair of an edge type and links, found neither"),
        (heterogeneous(), ("user", "buys", "item"),
         f"an edge type of {heterogeneous().edge_types}, found ('user', 'buys', 'item')"),
    ],
    ids=["a type", "typed links", "no type", "links of no type", "an unknown type"],
)  # fmt: skip
def test_edge_types_that_the_graph_does_not_have(source, data, given, message):
    """Stores refuse them as a Data and a HeteroData do."""
    with pytest.raises(ValueError, match=f"^edge_label_index: expected {re.escape(message)}$"):
        LinkNeighborLoader(source(data), [2], given)


def test_links_of_what_is_no_graph():
    message = "data: expected a Data, a HeteroData or a (FeatureStore, GraphStore) pair, found int"
    for given in (None, LINKS):
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            LinkNeighborLoader(3, [2], given)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_link_without_a_negative_is_named(workers):
    data = homogeneous()
    time = times_of(300, 1).index_fill(0, torch.tensor([7]), -1)
    loader = loader_of(data, None, edge_label_time=time, time_attr="time", neg_sampling="binary", **processes(workers))
    iterator = iter(loader)
    with pytest.raises(ValueError, match="negative 7: expected a link of nodes not later than -1, found none"):
        list(iterator)
    stop_workers(iterator)


def test_reverses_that_are_not_there():
    data = HeteroData({"a": {"num_nodes": 3}, "b": {"num_nodes": 3}})
    data["a", "to", "b"].edge_index = torch.arange(3).expand(2, 3)
    with pytest.raises(
        ValueError, match=r"^exclude_seed_edges='reverse': expected an edge type of the reverse edges of"
    ):
        LinkNeighborLoader(data, [2], ("a", "to", "b"), exclude_seed_edges="reverse")
