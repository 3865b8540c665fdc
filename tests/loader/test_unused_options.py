"""Options without effect beside others are refused or warned of by name; those with an effect are not."""

import re
import warnings

import pytest
import torch
from helpers.data import make_data
from helpers.warn import recorded
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling

from torch_gnnscale import (
    FeatureStore,
    GraphStore,
    LayerSampler,
    LinkNeighborLoader,
    NeighborLoader,
    NeighborSampler,
)
from torch_gnnscale.sampler import KeyedSampler


def graph() -> Data:
    data = make_data()
    data.time, data.weight = torch.arange(200), torch.rand(data.num_edges, generator=torch.Generator().manual_seed(1))
    return data


DATA = graph()
LINKS = DATA.edge_index[:, ::50]
STORES = FeatureStore.from_data(make_data()), GraphStore.from_data(DATA)
TRIPLETS = NegativeSampling("triplet", src_weight=torch.ones(200), dst_weight=torch.ones(200))


def nodes(data=DATA, fanouts=(3, 2), **options):
    return NeighborLoader(data, list(fanouts), batch_size=50, **options)


def links(data=DATA, **options):
    return LinkNeighborLoader(data, [3, 2], edge_label_index=LINKS, batch_size=10, **options)


def sampler(data=DATA, fanouts=(3, 2), **options):
    return NeighborSampler(data, list(fanouts), **options)


def layer_sampler(data=DATA, **options):
    return LayerSampler(data, [9, 9], **options)


class Stateful(KeyedSampler):
    thread_safe = False

    def sample_from_nodes(self, inputs, key=None):
        return NeighborSampler(DATA, [2]).sample_from_nodes(inputs, key)


PROCESSES = {"num_workers": 1, "multiprocessing_context": "fork"}
LAST = {"time_attr": "time", "temporal_strategy": "last", "weight_attr": "weight"}
TABLE = [
    (
        nodes,
        {"prefetch": 2, **PROCESSES},
        "prefetch=2 has no effect beside worker processes (num_workers=1); use prefetch_factor=",
    ),
    (nodes, {"worker_init_fn": print}, "worker_init_fn has no effect without worker processes (num_workers=0)"),
    (
        nodes,
        {"custom_cls": Data},
        "custom_cls has no effect with a Data, as in PyG: it is the class of batches of stores",
    ),
    (
        nodes,
        {"seed": 1, "generator": torch.Generator()},
        "generator has no effect beside seed, which decides the order and every draw",
    ),
    (
        nodes,
        {"neighbor_sampler": sampler(fanouts=[4])},
        "num_neighbors=[3, 2] has no effect beside neighbor_sampler, which has [4]",
    ),
    (
        nodes,
        {"neighbor_sampler": layer_sampler()},
        "num_neighbors=[3, 2] has no effect beside neighbor_sampler, which has [9, 9]",
    ),
    (
        nodes,
        {"neighbor_sampler": sampler(), "replace": True},
        "replace has no effect beside neighbor_sampler, which has options of its own",
    ),
    (
        nodes,
        {"neighbor_sampler": sampler(exclude_seed_edges=True)},
        "exclude_seed_edges of neighbor_sampler has no effect: it is for links, and the seeds are nodes",
    ),
    (
        nodes,
        {"neighbor_sampler": sampler(strict_negatives=True)},
        "strict_negatives of neighbor_sampler has no effect: it is for links, and the seeds are nodes",
    ),
    (nodes, {"fanouts": [-1, -1], "replace": True}, "replace=True has no effect: num_neighbors takes all neighbors"),
    (
        nodes,
        {"fanouts": [-1, 0], "time_attr": "time", "temporal_strategy": "last"},
        "temporal_strategy='last' has no effect: num_neighbors takes all neighbors",
    ),
    (
        nodes,
        {"fanouts": [-1], "weight_attr": "weight"},
        "weight_attr='weight' has no effect on draws with num_neighbors=-1, which takes all neighbors whatever their "
        "weights; edges of weight 0 are still left out",
    ),
    (
        nodes,
        LAST,
        "weight_attr='weight' has no effect on draws with temporal_strategy='last', which takes the last "
        "neighbors whatever their weights; edges of weight 0 are still left out",
    ),
    (
        nodes,
        {"temporal_strategy": "last"},
        "temporal_strategy='last' has no effect: without time_attr there are no times",
    ),
    (
        nodes,
        {"data": STORES, "is_sorted": True},
        "is_sorted=True has no effect with stores: a GraphStore says itself how its edges are sorted",
    ),
    (
        layer_sampler,
        {"data": STORES, "is_sorted": True},
        "is_sorted=True has no effect with stores: a GraphStore says itself how its edges are sorted",
    ),
    (nodes, {"timeout": 3}, "timeout=3 has no effect without worker processes"),
    (
        nodes,
        {"collate_fn": list},
        "collate_fn has no effect, as in PyG: the loader makes its batches itself; use transform=",
    ),
    (links, {"strict_negatives": True}, "strict_negatives has no effect without neg_sampling: no negatives are drawn"),
    (
        links,
        {"neighbor_sampler": sampler(strict_negatives=True)},
        "strict_negatives has no effect without neg_sampling: no negatives are drawn",
    ),
    (
        links,
        {"neg_sampling": "triplet", "neg_sampling_ratio": 1.0},
        "neg_sampling has no effect beside neg_sampling_ratio=1.0, as in PyG",
    ),
    (
        links,
        {"neg_sampling": TRIPLETS},
        "neg_sampling: src_weight has no effect in triplets, whose negatives have the sources of links",
    ),
    (links, {"worker_init_fn": print}, "worker_init_fn has no effect without worker processes (num_workers=0)"),
]
"""(what is made, with these options, the warning)."""
REFUSED = [
    (
        nodes,
        {"directed": False, "subgraph_type": "bidirectional"},
        "directed=False: expected no other subgraph_type than 'induced', found 'bidirectional'",
    ),
    (nodes, {"input_time": torch.arange(200)}, "input_time: expected none without time_attr, found some"),
    (nodes, {"uneven": "drop"}, "seed_order, uneven: expected none with shard=None, which makes all batches"),
    (nodes, {"seed_order": "owned"}, "seed_order, uneven: expected none with shard=None, which makes all batches"),
    (
        nodes,
        {"neighbor_sampler": sampler(), "method": "ladies"},
        "method='ladies': expected none beside a neighbor_sampler",
    ),
    (
        nodes,
        {"neighbor_sampler": sampler(), "layers": True},
        "layers=True: expected a neighbor_sampler with layers=True, found one without",
    ),
    (
        nodes,
        {"neighbor_sampler": sampler(), "device": "cpu"},
        "device: expected none beside a neighbor_sampler; pass it to the sampler",
    ),
    (nodes, {"graph_on_gpu": 0.5}, "graph_on_gpu=0.5: expected a GPU as device, found cpu"),
    (
        links,
        {"neighbor_sampler": sampler(), "strict_negatives": True},
        "strict_negatives: expected none beside a neighbor_sampler; pass it to the sampler",
    ),
    (
        layer_sampler,
        {"method": "labor", "scores": "counts"},
        "scores='counts': expected method='ladies' or 'fastgcn', found 'labor'",
    ),
    (layer_sampler, {"batch_dependency": 2}, "batch_dependency=2: expected method='labor', found 'ladies'"),
    (layer_sampler, {"layer_dependency": True}, "layer_dependency=True: expected method='labor', found 'ladies'"),
    (layer_sampler, {"include_dst": False}, "include_dst=False: expected layers=True, found False"),
]
"""(what is made, with these options, the error)."""
SILENT = [
    (nodes, {"prefetch": 2}),
    (nodes, {**PROCESSES, "worker_init_fn": print}),
    (nodes, {"data": STORES, "custom_cls": Data}),
    (nodes, {"seed": 1}),
    (nodes, {"generator": torch.Generator()}),
    (nodes, {"neighbor_sampler": sampler()}),
    (nodes, {"fanouts": [], "neighbor_sampler": layer_sampler()}),
    (nodes, {"neighbor_sampler": Stateful(), "prefetch": 2}),
    (nodes, {"fanouts": [-1, 2], "replace": True}),
    (nodes, {**LAST, "replace": True}),
    (nodes, {"time_attr": "time", "weight_attr": "weight"}),
    (links, {"strict_negatives": True, "neg_sampling": "binary"}),
    (links, {"neighbor_sampler": sampler(exclude_seed_edges=True)}),
    (links, {"neg_sampling": NegativeSampling("binary", src_weight=torch.ones(200))}),
]


@pytest.mark.parametrize(("make", "options", "message"), TABLE, ids=lambda value: value if type(value) is str else "")
def test_options_without_effect_are_warned_of(make, options, message):
    with recorded() as caught:
        make(**options)
    assert [str(found.message) for found in caught] == [message]


@pytest.mark.parametrize(("make", "options", "message"), REFUSED, ids=lambda value: value if type(value) is str else "")
def test_options_without_effect_are_refused(make, options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make(**options)


@pytest.mark.parametrize(("make", "options"), SILENT, ids=lambda value: str([*value]) if type(value) is dict else "")
def test_options_with_an_effect_are_not_warned_of(make, options):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        make(**options)


class Noting(NeighborLoader):
    """A user's loader, with attributes of its own."""

    def __init__(self, data, note, **kwargs):
        super().__init__(data, [3, 2], batch_size=50, **kwargs)
        self.note, self.data, self.kwargs = note, data, kwargs


@pytest.mark.parametrize("make", [nodes, links, lambda: Noting(DATA, "first")])
def test_attributes_that_a_loader_has_read_are_not_set_again(make):
    loader = make()
    for _ in range(2):  # before the first batch, and after it
        for name in ("data", "bulk", "edge_layout", "input_data", "collate_fn"):
            with pytest.raises(
                ValueError, match=f"^{name}: expected what the loader was made with, found it set later"
            ):
                setattr(loader, name, [1])
        with pytest.warns(UserWarning, match="^num_neighbors is set after the loader was made, which does not read it"):
            loader.num_neighbors = [1]
        del loader.num_neighbors
        loader.note, loader.prefetch, loader.transform = "next", 2, lambda batch: batch.num_nodes
        assert isinstance(next(iter(loader)), int)
