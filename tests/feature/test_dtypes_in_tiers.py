"""Tiered stores, on the CPU and on a GPU: rows of every dtype, ids of both dtypes wherever they are, exact errors."""

import re
from itertools import product

import pytest
import torch
from helpers.data import DTYPES
from helpers.graphs import random_ids, random_rows
from helpers.loader_cases import TIERS, same_bits
from torch_geometric.data import Data

from torch_gnnscale import TieredFeatureStore as Tiered

ROWS = 200
SHAPES = {"x": (24,), "label": (), "table": (2, 3), "nothing": (0,)}
INDEX = [torch.int32, torch.int64]


def stores(device, data, folder, **options):
    """A store for each kind of budgets; each is closed when the next one is asked for."""
    for budgets in TIERS[device]:
        disk = {"disk": folder} if "host" in budgets else {}
        with Tiered.from_data(data, hotness=torch.arange(ROWS), **budgets, **disk, **options) as store:
            yield store


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(device, dtype, tmp_path):
    data, index = Data(num_nodes=ROWS), random_ids(ROWS, 300)
    for name, shape in SHAPES.items():
        data[name] = random_rows((ROWS, *shape), dtype)
    for store in stores(device, data, tmp_path):
        for name, id_dtype, place in product(SHAPES, INDEX, {"cpu", device}):
            found = store[None, name, index.to(place, id_dtype)]
            assert found.device.type == device
            assert same_bits(found, data[name][index])
            assert same_bits(store[None, name, index[:0].to(place, id_dtype)], data[name][:0])


@pytest.mark.parametrize("storage", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_storage_in_16_bits(device, storage, dtype, tmp_path):
    data, index = Data(x=random_rows((ROWS, 24), dtype), y=torch.arange(ROWS)), random_ids(ROWS, 300)
    for store in stores(device, data, tmp_path, storage=storage):
        assert same_bits(store[None, "x", index.to(device)], data.x[index].to(storage).to(dtype))
        assert same_bits(store[None, "y", index.to(device)], data.y[index])


@pytest.mark.parametrize("id_dtype", INDEX)
@pytest.mark.parametrize("place", ["cpu", "device"])
def test_ids_out_of_range(device, place, id_dtype, tmp_path):
    data = Data(x=random_rows((ROWS, 24), torch.float32), y=torch.arange(ROWS))
    for store in stores(device, data, tmp_path):
        for at, wrong in ((0, -1), (3, ROWS), (299, torch.iinfo(id_dtype).max), (7, torch.iinfo(id_dtype).min)):
            index = random_ids(ROWS, 300, dtype=id_dtype)
            index[at] = wrong
            there = index.to(device if place == "device" else "cpu")
            message = f"index[{at}] = {wrong} is out of range: expected rows in [0, {ROWS})"
            for name in ("x", "y"):
                with pytest.raises(IndexError, match=f"^{re.escape(message)}$"):
                    store[None, name, there]
        assert same_bits(store[None, "x", torch.arange(ROWS)], data.x)
