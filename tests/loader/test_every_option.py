"""Each option of a loader reaches what it configures: batches are those of the sampler's own option, and not others."""

import inspect

import pytest
import torch
from helpers.data import make_data, plain
from torch_geometric.data import Data

from torch_gnnscale import LayerSampler, LinkNeighborLoader, NeighborLoader, NeighborSampler


def graph() -> Data:
    """With times of nodes, weights of edges, and edges sorted by destination."""
    data = make_data()
    generator = torch.Generator().manual_seed(3)
    order = torch.argsort(data.edge_index[1], stable=True)
    data.edge_index, data.edge_attr = data.edge_index[:, order], data.edge_attr[order]
    data.time = torch.randint(9, (data.num_nodes,), generator=generator)
    data.weight = torch.rand(data.num_edges, generator=generator)
    return data


DATA = graph()
LINKS = DATA.edge_index[:, ::40]
SEEDS = torch.arange(0, 200, 5)
SIZES = {"batch_size": 20, "seed": 3, "prefetch": 0}
OPTIONS = {
    "replace": {"replace": True},
    "subgraph_type": {"subgraph_type": "induced"},
    "disjoint": {"disjoint": True},
    "temporal_strategy": {"time_attr": "time", "temporal_strategy": "last"},
    "time_attr": {"time_attr": "time"},
    "weight_attr": {"weight_attr": "weight"},
    "layers": {"layers": True},
}
"""Of a sampler, by the parameter that a loader has for it; ``directed`` and ``is_sorted`` are below."""


def batches(loader) -> list:
    return [plain(batch) for batch in loader]


def node_loader(**options):
    return NeighborLoader(DATA, [4, 3], SEEDS, **SIZES, **options)


def link_loader(**options):
    options = {"neg_sampling": "binary", "edge_label_index": LINKS, **options}
    return LinkNeighborLoader(DATA, [4, 3], **SIZES, **options)


def without(name: str) -> dict:
    """The other options of a row."""
    return {key: value for key, value in OPTIONS[name].items() if key != name}


@pytest.mark.parametrize(
    ("make", "name"),
    [*((node_loader, name) for name in OPTIONS), *((link_loader, name) for name in OPTIONS if name != "layers")],
)
def test_options_of_samplers(make, name):
    more = {"edge_label_time": DATA.time[LINKS[1]]} if make is link_loader and "time_attr" in OPTIONS[name] else {}
    found = batches(make(**OPTIONS[name], **more))
    beside = {"time_attr": "time"} if more else {}
    assert found == batches(make(neighbor_sampler=NeighborSampler(DATA, [4, 3], **OPTIONS[name]), **beside, **more))
    if name == "time_attr":
        more = {}
    assert found != batches(make(**without(name), **more))


@pytest.mark.parametrize("make", [node_loader, link_loader])
def test_directed_means_the_type_of_the_subgraph(make):
    with pytest.warns(UserWarning, match=r"^directed=False is deprecated: use subgraph_type='induced'$"):
        found = batches(make(directed=False))
    assert found == batches(make(subgraph_type="induced"))


@pytest.mark.parametrize("make", [node_loader, link_loader])
def test_sorted_edges_are_not_sorted_again(make):
    loader = make(is_sorted=True)
    assert loader._sampler.graph.relations[0].csc.edge_id is None
    assert make()._sampler.graph.relations[0].csc.edge_id is not None
    assert batches(loader) == batches(make())


@pytest.mark.parametrize("method", ["ladies", "fastgcn", "labor"])
@pytest.mark.parametrize("layers", [False, True])
def test_methods(method, layers):
    found = NeighborLoader(DATA, [30, 20], SEEDS, **SIZES, method=method, layers=layers)
    sampler = LayerSampler(DATA, [30, 20], method=method, layers=layers)
    expected = NeighborLoader(DATA, [30, 20], SEEDS, **SIZES, neighbor_sampler=sampler)
    other = NeighborLoader(DATA, [30, 20], SEEDS, **SIZES, layers=layers)
    assert batches(found) == batches(expected) != batches(other)


@pytest.mark.parametrize(
    "options",
    [
        {"exclude_seed_edges": True, "neg_sampling": None},
        {"strict_negatives": True, "neg_sampling": "triplet"},
        {"strict_negatives": torch.cartesian_prod(torch.arange(200), torch.arange(150)).t(), "neg_sampling": "triplet"},
    ],
)
def test_options_of_samplers_of_links(options):
    of_sampler = {name: value for name, value in options.items() if name != "neg_sampling"}
    found = batches(link_loader(**options))
    sampler = NeighborSampler(DATA, [4, 3], **of_sampler)
    if options.get("strict_negatives") is not True:  # which, of a loader, means its own links as well
        assert found == batches(link_loader(neighbor_sampler=sampler, neg_sampling=options["neg_sampling"]))
    assert found != batches(link_loader(neg_sampling=options["neg_sampling"]))


def test_ratios_of_negatives():
    found = batches(link_loader(neg_sampling=None, neg_sampling_ratio=2.0))
    assert found == batches(link_loader(neg_sampling={"mode": "binary", "amount": 2.0}))
    assert found != batches(link_loader(neg_sampling=None))


@pytest.mark.parametrize("cls", [NeighborLoader, LinkNeighborLoader])
def test_every_option_of_a_sampler_is_a_loaders(cls):
    """Of the same name and with the same default."""
    ours, theirs = inspect.signature(cls).parameters, inspect.signature(NeighborSampler).parameters
    of_links, on_gpus = {"exclude_seed_edges", "strict_negatives"}, {"device", "graph_on_gpu", "graph_on_peers"}
    others = {"data", "share_memory", "sample_direction"}
    others |= of_links if cls is NeighborLoader else {*on_gpus, "layers"}
    assert others <= theirs.keys()
    for name in theirs.keys() - others:
        assert ours[name].default == theirs[name].default, name
