"""Loaders made, and iterated, where torch's default device is not the CPU give the batches that they give without."""

import threading

import pytest
import torch
from helpers.data import make_data, our_stores, plain
from helpers.hetero import PAPER, make_hetero
from helpers.parts import homogeneous, loader_of_part

from torch_gnnscale import GraphStore, LinkNeighborLoader, NeighborLoader, TieredFeatureStore, partition
from torch_gnnscale.distributed import open_part
from torch_gnnscale.sampler import BidirectionalNeighborSampler


def renumbered():
    data = make_data()
    del data.edge_attr
    tiers = TieredFeatureStore.from_data(data, labelled=data.y == 0, renumbered=True)
    return tiers, GraphStore.from_data(data, order=tiers.order)


def nodes(data, **options):
    return NeighborLoader(data, [3, 2], batch_size=50, seed=1, **options)


def both_ways(data, **options):
    return nodes(data, neighbor_sampler=BidirectionalNeighborSampler(data, [3, 2]), **options)


def links(data, **options):
    return LinkNeighborLoader(data, [3, 2], batch_size=400, seed=1, **options)


CASES = {
    "shuffled": (make_data, nodes, {"shuffle": True}),
    "times": (make_data, nodes, {"time_attr": "y"}),
    "layers": (make_data, nodes, {"layers": True}),
    "induced": (make_data, nodes, {"subgraph_type": "induced"}),
    "EdgeIndex": (make_data, nodes, {"edge_layout": "EdgeIndex"}),
    "sparse": (make_data, nodes, {"edge_layout": "sparse_csr"}),
    "LADIES": (make_data, nodes, {"method": "ladies"}),
    "bulk": (make_data, nodes, {"bulk": 2}),
    "both ways": (make_data, both_ways, {}),
    "stores": (lambda: our_stores(make_data()), nodes, {}),
    "types": (make_hetero, nodes, {"input_nodes": PAPER}),
    "tiers": (renumbered, nodes, {}),
    "negatives": (make_data, links, {"neg_sampling": "binary"}),
    "triplets": (make_data, links, {"neg_sampling": "triplet", "strict_negatives": True}),
}


@pytest.fixture
def on_meta():
    """Makes meta the default device from now to the end of the test."""
    yield lambda: torch.set_default_device("meta")
    torch.set_default_device(None)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_batches_do_not_depend_on_the_default_device(case, prefetch, on_meta):
    data_of, make, options = CASES[case]
    data, seeds = data_of(), {"input_nodes": torch.arange(90)} if make is nodes and case != "types" else {}
    options = {**options, **seeds, "prefetch": prefetch}
    expected = [plain(batch) for batch in make(data, **options)]
    before = make(data, **options)
    on_meta()
    found = [list(before), list(make(data, **options))]
    torch.set_default_device(None)
    assert [[plain(batch) for batch in batches] for batches in found] == [expected] * 2


def test_stores_and_single_batches_do_not_depend_on_the_default_device(on_meta):
    data = make_data()
    loader = nodes(our_stores(data))
    expected = plain(loader([3, 4]))
    on_meta()
    found = loader([3, 4]), nodes(our_stores(data))([3, 4])
    torch.set_default_device(None)
    assert [plain(batch) for batch in found] == [expected] * 2


def test_transforms_see_the_users_default_device(on_meta):
    seen = []

    def of_outputs(out):
        seen.append(torch.zeros(1).device.type)
        return out

    loader = nodes(
        make_data(), transform=lambda batch: torch.zeros(1).device.type, transform_sampler_output=of_outputs, prefetch=2
    )
    on_meta()
    assert set(loader) == {"meta"}
    torch.set_default_device(None)
    assert set(seen) == {"meta"}
    seen.clear()
    assert set(loader) == {"cpu"}
    assert set(seen) == {"cpu"}


@pytest.mark.slow
@pytest.mark.parametrize("prefetch", [0, 2])
def test_transforms_in_threads_see_the_users_default_device(prefetch, on_meta, tmp_path):
    """Where ranks read together, another thread than that which iterates calls them."""
    seen = set()

    def of_outputs(out):
        seen.add((torch.zeros(1).device.type, threading.current_thread() is threading.main_thread()))
        return out

    partition.write(homogeneous(), tmp_path / "parts", parts=1, topology="partitioned")
    with open_part(tmp_path / "parts") as part:
        loader = loader_of_part(part, transform_sampler_output=of_outputs, prefetch=prefetch)
        on_meta()
        assert sum(1 for _ in loader) > 1
        torch.set_default_device(None)
        assert seen == {("meta", False)}
        seen.clear()
        with torch.device("meta"):
            assert sum(1 for _ in loader) > 1
        assert sum(1 for _ in loader) > 1
        assert seen == {("meta", False), ("cpu", False)}
