"""Times of nodes and edges in a sampler of one type: their types, and whose they are; all modes: test_sampler.py."""

import math
import re
import warnings

import numpy as np
import pytest
import torch
from helpers.data import make_data, our_stores
from helpers.hetero import make_hetero, with_times
from torch import Tensor
from torch_geometric.data import Data

from torch_gnnscale import FeatureStore, LinkNeighborLoader, NeighborLoader, NeighborSampler
from torch_gnnscale.random import batch_key

KEY = batch_key(3, 1, 4)


def test_the_latest_neighbors_without_times():
    with pytest.warns(UserWarning, match=r"^temporal_strategy='last' has no effect: without time_attr there are no "):
        NeighborSampler(make_data(), [2], temporal_strategy="last")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        NeighborSampler(with_times(make_hetero()), [2], temporal_strategy="last", time_attr="time")


@pytest.mark.parametrize(
    ("times", "seed_time", "allowed"),
    [
        (torch.tensor([1.5, -0.0, 0.0, 2.5]), torch.tensor([0]), [1, 2]),
        (torch.tensor([1.5, -0.0, 0.0, 2.5]), torch.tensor([-0.0]), [1, 2]),
        (torch.tensor([1.5, -3.0, -1.0, 2.5]), torch.tensor([-1.0]), [1, 2]),
        (torch.tensor([1, 2, 3, 4]), torch.tensor([2.5]), [0, 1]),
        (torch.tensor([1, 2, 3, 4]), torch.tensor([2.7]), [0, 1]),
        (torch.tensor([-1, 0, 1, 2]), torch.tensor([-0.0]), [0, 1]),
        (torch.tensor([-1, -2, -3, 4]), torch.tensor([-1.5]), [1, 2]),
        (torch.tensor([1, 2, 3, 1 << 62]), torch.tensor([float("inf")]), [0, 1, 2, 3]),
        (torch.tensor([1, 2, 3, 4]), torch.tensor([float("-inf")]), []),
        (torch.tensor([1, 2, 3, 4], dtype=torch.uint8), torch.tensor([3], dtype=torch.int32), [0, 1, 2]),
        (torch.tensor([1, 2, 3, torch.inf]).half(), torch.tensor([1e300], dtype=torch.float64), [0, 1, 2]),
    ],
    ids=str,
)  # fmt: skip
def test_times_of_any_type(times, seed_time, allowed):
    data = Data(edge_index=torch.tensor([[0, 1, 2, 3], [4, 4, 4, 4]]), num_nodes=5, edge_time=times)
    out = NeighborSampler(data, [-1], time_attr="edge_time").sample(torch.tensor([4]), seed_time, KEY)
    assert sorted(out.edge.tolist()) == allowed


def test_the_last_two_edges_are_sorted_by_time_after_a_node_without_edges():
    data = Data(edge_index=torch.tensor([[0, 1], [2, 2]]), num_nodes=3, edge_time=torch.tensor([5, 3]))
    out = NeighborSampler(data, [-1], time_attr="edge_time").sample(torch.tensor([2]), torch.tensor([4]), KEY)
    assert out.edge.tolist() == [1]


@pytest.mark.parametrize(("num_nodes", "num_edges"), [(5, 5), (5, 6)])
@pytest.mark.parametrize("source", ["Data", "our stores"])
@pytest.mark.parametrize("name", ["time", "when", "edge_time"])
def test_times_with_as_many_nodes_as_edges(name, source, num_nodes, num_edges):
    """Times are those of nodes, as PyG has it; in stores only if they are called "time"."""
    ends = torch.arange(num_edges) % num_nodes
    data = Data(x=torch.ones(num_nodes, 1), edge_index=torch.stack([ends, ends.roll(1)]))  # homogeneous
    of_nodes = name == "time" or (name == "when" and (source == "Data" or num_nodes != num_edges))
    data[name] = torch.arange(num_nodes if of_nodes else num_edges)
    sampler = NeighborSampler(our_stores(data) if source == "our stores" else data, [2], time_attr=name)
    assert ((sampler.node_time is None), (sampler.edge_time is None)) == (not of_nodes, of_nodes)
    if of_nodes:
        assert torch.equal(sampler.node_time, data[name])


def test_times_in_sorted_edges_are_sorted_again():
    data = Data(edge_index=torch.tensor([[0, 1, 2], [3, 3, 3]]), num_nodes=4, time=torch.tensor([5, 1, 3, 9]))
    for is_sorted in (False, True):
        sampler = NeighborSampler(data, [2], time_attr="time", temporal_strategy="last", is_sorted=is_sorted)
        assert sorted(sampler.sample(torch.tensor([3]), None, KEY).edge.tolist()) == [0, 2]
        assert sampler.sample(torch.tensor([3]), torch.tensor([3]), KEY).edge.tolist() == [1, 2]


@pytest.mark.parametrize("unit", ["ns", "us", "s", "D"])
def test_dates_are_refused_because_their_unit_is_not_told(unit):
    data = make_data()
    days = np.arange(200).astype("datetime64[D]").astype(f"datetime64[{unit}]")
    rest = (
        f"found ndarray of datetime64[{unit}]; make all times integers of one unit, such as "
        f"torch.from_numpy(numpy.asarray(times).astype('datetime64[s]').astype('int64'))"
    )
    data.time = days
    with pytest.raises(TypeError, match=f"^{re.escape(f'time: expected a tensor, {rest}')}$"):
        NeighborLoader(data, [2], time_attr="time")
    data.time = torch.from_numpy(days.astype("datetime64[s]").astype("int64"))
    assert data.time.tolist() == [86400 * day for day in range(200)]
    with pytest.raises(TypeError, match=f"^{re.escape(f'input_time: expected a tensor, {rest}')}$"):
        NeighborLoader(data, [2], time_attr="time", input_time=days)
    with pytest.raises(TypeError, match=f"^{re.escape(f'edge_label_time: expected a tensor, {rest}')}$"):
        LinkNeighborLoader(data, [2], time_attr="time", edge_label_time=days)
    with pytest.raises(TypeError, match=f"{re.escape(f': expected a tensor or an array of numbers, {rest}')}$"):
        FeatureStore().put_tensor(days, group_name=None, attr_name="time", index=None)
    sampler = NeighborSampler(data, [2], time_attr="time")
    with pytest.raises(TypeError, match=f"^{re.escape(f'seed_time: expected a tensor of times, {rest}')}$"):
        sampler.sample(torch.arange(200), days, 1)


INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
TYPES = [*INTEGERS, *FLOATS]


def numbers_of(dtype: torch.dtype) -> list:
    """Small ones, and those at the limits of the type."""
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        found = [0.0, 1.0, 2.5, -1.0, info.tiny, info.min, info.max, math.inf, -math.inf]
        return found + ([2.0**53 + 2, 2.0**63, -(2.0**63)] if dtype == torch.float64 else [])
    limits = torch.iinfo(dtype)
    found = [0, 1, 2, limits.min, limits.min + 1, limits.max - 1, limits.max]
    return found + ([1 << 53, (1 << 53) + 1, limits.max - 1024] if dtype == torch.int64 else [])


def of_type(values: list, dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, dtype=torch.float64 if dtype.is_floating_point else torch.int64).to(dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_windows_of_all_types_compare_as_numbers(dtype):
    """Ends and starts of every type, at the limits of these, too: a tree has the edges whose times, as Python compares
    integers and floats, are in its window, and a window that ends before it begins is named."""
    times = of_type(numbers_of(dtype), dtype)
    values, count = times.tolist(), len(times)
    edge_index = torch.stack([torch.arange(1, count + 1), torch.zeros(count).long()])
    data = Data(edge_index=edge_index, edge_time=times, num_nodes=count + 1)
    sampler, checked = NeighborSampler(data, [-1], time_attr="edge_time"), 0
    for place, end_type in enumerate(TYPES):
        start_type = TYPES[(place + TYPES.index(dtype)) % len(TYPES)]
        bounds = [of_type(numbers_of(of), of) for of in (start_type, end_type)]
        if dtype.is_floating_point:  # larger integers beside floats are refused
            bounds = [
                b if b.is_floating_point() else b[(b.long() <= 1 << 53) & (b.long() >= -(1 << 53))] for b in bounds
            ]
        start, end = bounds[0].repeat_interleave(len(bounds[1])), bounds[1].repeat(len(bounds[0]))
        pairs = list(zip(start.tolist(), end.tolist(), strict=True))
        late = [first > last for first, last in pairs]
        if any(late):
            with pytest.raises(
                ValueError, match=rf"seed_start_time\[{late.index(True)}\] = .*: expected at most seed_t"
            ):
                sampler.sample(torch.zeros(len(end)).long(), end, 0, seed_start_time=start)
        right = [pair for pair, is_late in zip(pairs, late, strict=True) if not is_late]
        start, end = of_type([first for first, _ in right], start_type), of_type([last for _, last in right], end_type)
        out = sampler.sample(torch.zeros(len(end)).long(), end, 0, seed_start_time=start)
        found = torch.zeros(len(end), count, dtype=torch.bool)
        found[out.batch[out.col], out.edge] = True
        allowed = [[first <= time <= last for time in values] for first, last in right]
        assert found.tolist() == allowed, (start_type, end_type)
        checked += len(allowed)
    assert checked > 200
