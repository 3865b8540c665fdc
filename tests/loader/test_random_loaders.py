"""Batches of loaders, every attribute bit for bit: on a GPU those of the CPU."""

import pytest
import torch
from helpers.loader_cases import TIERS, check_random_loader, check_same_batches
from helpers.mode_cases import check_random_modes
from helpers.slow import NIGHTLY, SLOW
from helpers.tiers import node_data

from torch_gnnscale import FeatureStore, GraphStore, LinkNeighborLoader, NeighborLoader
from torch_gnnscale import TieredFeatureStore as Tiered

ON_GPU = pytest.mark.cuda


@pytest.mark.parametrize("seed", [*range(10), *map(SLOW, range(10, 40)), *map(NIGHTLY, range(40, 150))])
@pytest.mark.parametrize("way", ["dealt", "phases", pytest.param("cuda", marks=ON_GPU)])
def test_random_loaders(seed, way, tmp_path):
    check_random_loader(seed, way, tmp_path)


@pytest.mark.parametrize("seed", [*range(20), *map(SLOW, range(20, 60)), *map(NIGHTLY, range(60, 300))])
@pytest.mark.parametrize("way", ["dealt", "phases", pytest.param("cuda", marks=ON_GPU)])
def test_random_modes(seed, way):
    check_random_modes(seed, way)


STORES = [
    pytest.param(device, budgets, marks=[ON_GPU] * (device == "cuda"), id=f"{device}-{budgets}")
    for device, several in TIERS.items()
    for budgets in several
]


def over_tiers(device, budgets, folder):
    """A pair of stores with rows in tiers, and one with the same rows in host memory."""
    data = node_data(torch.float32)
    given = {"hotness": "out_degree", **budgets, **({"disk": folder} if "host" in budgets else {})}
    graph = GraphStore.from_data(data)
    return (Tiered.from_data(data, **given), graph), (FeatureStore.from_data(data), graph)


@pytest.mark.parametrize(("device", "budgets"), STORES)
@pytest.mark.parametrize("prefetch", [0, 4])
@pytest.mark.parametrize("sampled_on", ["cpu", "device"])
def test_rows_in_tiers(device, budgets, sampled_on, prefetch, tmp_path):
    tiers, expected = over_tiers(device, budgets, tmp_path)
    where = {"device": device if sampled_on == "device" else "cpu"}
    options = {"num_neighbors": [4, 3], "batch_size": 20, "shuffle": True, "seed": 5}
    with tiers[0]:
        found = NeighborLoader(tiers, **options, **where, prefetch=prefetch)
        check_same_batches(found, NeighborLoader(expected, **options), device, where["device"])


@pytest.mark.parametrize(("device", "budgets"), STORES)
@pytest.mark.parametrize("prefetch", [0, 4])
def test_links_beside_rows_in_tiers(device, budgets, prefetch, tmp_path):
    """The CPU draws them, wherever their rows are."""
    tiers, expected = over_tiers(device, budgets, tmp_path)
    options = {"num_neighbors": [4, 3], "edge_label_index": node_data().edge_index[:, :300], "batch_size": 40,
               "shuffle": True, "seed": 5, "neg_sampling": {"mode": "binary", "amount": 2}}  # fmt: skip
    with tiers[0]:
        found = LinkNeighborLoader(tiers, **options, prefetch=prefetch)
        check_same_batches(found, LinkNeighborLoader(expected, **options), device, "cpu")
