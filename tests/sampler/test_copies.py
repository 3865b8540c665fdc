"""Samplers that are copied, pickled after their use, or moved to another GPU."""

import copy
import pickle

import pytest
import torch
from helpers.data import make_data

from torch_gnnscale import BidirectionalNeighborSampler, LayerSampler, NeighborSampler
from torch_gnnscale.sampler import neighbor
from torch_gnnscale.sampler.executor import GPUExecutor
from torch_gnnscale.sampler.layerwise import GPULayers
from torch_gnnscale.topology import segmented
from torch_gnnscale.topology.segmented import Given, SegmentedCSC

CPU = torch.device("cpu")
SEEDS = torch.arange(0, 60, 3)


def fields(out) -> list:
    return [getattr(out, name).tolist() for name in ("node", "row", "col", "edge")]


def cut_of(sampler) -> SegmentedCSC:
    """The graph as a GPU has it, with edges there, on two peers and in host memory."""
    csc = sampler.graph.relations[0].csc
    return SegmentedCSC.cut(csc, CPU, csc.colptr.nbytes + 4000, True, [CPU] * 2, 2000, Given(csc, 0.5, [1, 1]))


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda sampler: pickle.loads(pickle.dumps(sampler))])
@pytest.mark.parametrize(
    "make",
    [
        lambda data: NeighborSampler(data, [4, 3]),
        lambda data: NeighborSampler(data, [4, 3], layers=True),
        lambda data: BidirectionalNeighborSampler(data, [4, 3]),
        lambda data: LayerSampler(data, [9, 9], method="labor"),
        lambda data: LayerSampler(data, [9, 9], method="fastgcn"),
    ],
)
def test_a_copy_draws_the_same(make, again):
    sampler = make(make_data())
    before = fields(sampler.sample(SEEDS, None, 5))
    assert fields(again(sampler).sample(SEEDS, None, 5)) == before
    assert fields(sampler.sample(SEEDS, None, 5)) == before


@pytest.mark.parametrize("cls", [NeighborSampler, LayerSampler])
def test_another_gpu_draws_from_its_own_edges(cls, monkeypatch):
    sampler = cls(make_data(), [4, 3])
    cut = cut_of(sampler)
    if cls is NeighborSampler:
        sampler.executor = GPUExecutor(sampler.graph, cut.device, [cut])
    else:
        sampler.executor = GPULayers(sampler.graph, cut, sampler.layer_options)
    for module in (segmented, neighbor):
        monkeypatch.setattr(module, "checked_device", torch.device)
    monkeypatch.setattr(segmented, "unreadable_peer", lambda device, count: None)
    other = sampler.on("meta")
    assert (other.device.type, sampler.device.type) == ("meta", "cpu")
    assert other.executor is not sampler.executor
    cscs = [of.executor.cscs[0] if cls is NeighborSampler else of.executor.csc for of in (other, sampler)]
    assert [csc.device.type for csc in cscs] == ["meta", "cpu"]
    assert other.graph is sampler.graph


@pytest.mark.parametrize("method", ["ladies", "fastgcn", "labor"])
@pytest.mark.parametrize("layers", [False, True])
def test_layers_by_the_phases_of_a_gpu(method, layers):
    sampler = LayerSampler(make_data(), [9, 7], method=method, layers=layers)
    expected = fields(sampler.sample(SEEDS, None, 5))
    sampler.executor = GPULayers(sampler.graph, cut_of(sampler), sampler.layer_options)
    assert fields(sampler.sample(SEEDS, None, 5)) == expected
    assert fields(pickle.loads(pickle.dumps(sampler)).sample(SEEDS, None, 5)) == expected
