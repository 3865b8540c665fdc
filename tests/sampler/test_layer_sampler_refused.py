"""What LayerSampler, its methods and the name of its weights refuse."""

import re

import pytest
import torch
from helpers.data import make_data
from helpers.hetero import make_hetero
from torch_geometric.data import Data

from torch_gnnscale import (
    LayerSampler,
    LinkNeighborLoader,
    NeighborLoader,
    NeighborSampler,
)
from torch_gnnscale.nn import weigh
from torch_gnnscale.ops.layer_drawing import AGGREGATIONS, METHODS, SCHEMES, SCORES, WEIGHTS
from torch_gnnscale.sampler import KeyedSampler

HOPS = [12, 9]


@pytest.fixture(scope="module")
def data():
    return make_data()


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("", ValueError, "weight_name: expected the name of a field, found ''"),
        (None, TypeError, "weight_name: expected a str, found NoneType"),
        (3, TypeError, "weight_name: expected a str, found int"),
    ],
)
def test_names_of_weights_that_are_none(name, error, message):
    class Named(KeyedSampler):
        weight_name = name

    message = f"^{re.escape(message)}$"
    with pytest.raises(error, match=message):
        LayerSampler(make_data(), HOPS, weight_name=name)
    with pytest.raises(error, match=message):
        NeighborLoader(make_data(), HOPS, neighbor_sampler=Named())
    with pytest.raises(error, match=message):
        weigh(torch.nn.Linear(1, 1), weight_name=name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "sage"}, "method: expected one of ('neighbor', 'ladies', 'fastgcn', 'labor'), found 'sage'"),
        ({"replace": True}, "replace=True: expected False with method='ladies'; use neighbor_sampler=LayerSampler(..., "
                            "scheme='replace')"),
        ({"disjoint": True}, "disjoint=True: expected False with method='ladies'"),
        ({"subgraph_type": "induced"}, "subgraph_type='induced': expected 'directional' with method='ladies'"),
        ({"temporal_strategy": "last"}, "temporal_strategy='last': expected 'uniform' with method='ladies'"),
        ({"time_attr": "y"}, "time_attr='y': expected None with method='ladies'"),
        ({"weight_attr": "w"}, "weight_attr='w': expected None with method='ladies'"),
        ({"directed": False}, "directed=False: expected True with method='ladies'"),
        ({"graph_on_gpu": 0.5}, "graph_on_gpu=0.5: expected a GPU as device, found cpu"),
        ({"device": "xpu"}, "device: expected 'cpu' or 'cuda', found 'xpu'"),
        ({"input_time": torch.arange(200)}, "input_time: expected none without time_attr, found some"),
    ],
)  # fmt: skip
def test_what_a_method_does_not_have(data, options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        NeighborLoader(data, HOPS, **{"method": "ladies", **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "neighbor"}, f"method: expected one of {METHODS}, found 'neighbor'"),
        ({"scheme": "uniform"}, f"scheme: expected one of {SCHEMES[:4]} of method='ladies', found 'uniform'"),
        ({"method": "fastgcn", "scores": "degrees"}, f"scores: expected one of {SCORES}, found 'degrees'"),
        ({"aggregation": "max"}, f"aggregation: expected one of {AGGREGATIONS}, found 'max'"),
        ({"weights": "biased"}, f"weights: expected one of {WEIGHTS}, found 'biased'"),
        ({"num_nodes": [3, -2]}, "num_nodes[1]: expected -1 <= num_nodes[1] <= 2147483647, found -2"),
        ({"num_nodes": [1] * 65}, "num_nodes: expected at most 64 hops, found 65"),
        ({"method": "labor", "keep_known": True},
         "keep_known=True: expected method='ladies' or 'fastgcn', found 'labor'"),
        ({"method": "labor", "scores": "counts"},
         "scores='counts': expected method='ladies' or 'fastgcn', found 'labor'"),
        ({"layers": True, "weight_name": "share"},
         "weight_name='share': expected layers=False, found True: layers have edge_weight"),
        ({"method": "fastgcn", "layer_dependency": True},
         "layer_dependency=True: expected method='labor', found 'fastgcn'"),
        ({"method": "labor", "batch_dependency": 0},
         f"batch_dependency: expected 1 <= batch_dependency <= {1 << 62}, found 0"),
    ],
    ids=lambda entry: entry if isinstance(entry, str) else "",
)  # fmt: skip
def test_options_that_are_unknown_or_do_not_fit(data, options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        LayerSampler(data, **{"num_nodes": HOPS, **options})


def test_what_a_sampler_does_not_have(data):
    with pytest.raises(NotImplementedError, match=r"^method='ladies' with edge types is not implemented"):
        NeighborLoader(make_hetero(), HOPS, "paper", method="ladies")
    with pytest.raises(ValueError, match=r"^method='labor': expected none beside a neighbor_sampler$"):
        NeighborLoader(data, HOPS, method="labor", neighbor_sampler=NeighborSampler(data, HOPS))
    with pytest.raises(ValueError, match=r"^method='labor': expected none beside a neighbor_sampler$"):
        LinkNeighborLoader(data, HOPS, method="labor", neighbor_sampler=NeighborSampler(data, HOPS))
    with pytest.raises(ValueError, match=r"^exclude_seed_edges=True: expected False with method='labor'$"):
        LinkNeighborLoader(data, HOPS, method="labor", exclude_seed_edges=True)
    with pytest.raises(NotImplementedError, match=r"^exclude with method='ladies' is not implemented; use method='nei"):
        LayerSampler(data, HOPS).sample(torch.tensor([1]), None, 1, exclude=torch.tensor([[0], [1]]))
    with pytest.raises(TypeError, match=r"^num_nodes: expected a list of ints, found dict$"):
        NeighborLoader(data, {("a", "to", "b"): [1]}, method="ladies")
    with pytest.raises(ValueError, match=r"^batch_dependency=2: expected method='labor', found 'ladies'$"):
        LayerSampler(data, HOPS, batch_dependency=2)
    with pytest.raises(ValueError, match=r"^include_dst=False: expected layers=True, found False$"):
        LayerSampler(data, HOPS, include_dst=False)
    with pytest.raises(ValueError, match=r"^include_dst=False: expected keep_known=False, found True$"):
        LayerSampler(data, HOPS, layers=True, include_dst=False, keep_known=True)
    with pytest.raises(ValueError, match=r"^scheme: expected one of .* of method='labor', found 'priority'$"):
        LayerSampler(data, HOPS, "labor", scheme="priority")
    for make, options in ((LayerSampler, {}), (NeighborLoader, {"method": "ladies"})):
        with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'sample_direction'$"):
            make(data, HOPS, sample_direction="backward", **options)
    with pytest.raises(ValueError, match=r"^seed_time: expected none from a sampler without time_attr, found some$"):
        LayerSampler(data, HOPS).sample(torch.arange(3), torch.arange(3), 1)
    empty = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=3)
    (batch,) = NeighborLoader(empty, HOPS, method="ladies", batch_size=3)
    assert batch.edge_weight.shape == (0,)
