"""What only a GPU can show: random calls equal the CPU's."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.gpu_cases import (
    check_random_aggregation,
    check_random_bulk,
    check_random_choice,
    check_random_cut,
    check_random_gather,
    check_random_layers,
    check_random_sample,
    check_random_shuffle,
    check_random_tables,
)

from torch_gnnscale import ops

pytestmark = pytest.mark.cuda


def put(tensor: torch.Tensor, place: str) -> torch.Tensor:
    return tensor.pin_memory() if place == "pinned" else tensor.cuda()


@pytest.mark.parametrize("seed", range(200))
def test_random_gathers(seed):
    check_random_gather(seed, put)


@pytest.mark.parametrize("seed", range(60))
def test_random_tables(seed):
    check_random_tables(seed, put)


@pytest.mark.parametrize("seed", range(60))
def test_random_samples(seed):
    check_random_sample(seed, put)


@pytest.mark.parametrize("seed", range(60))
def test_random_shuffles(seed):
    check_random_shuffle(seed, put)


@pytest.mark.parametrize("seed", range(60))
def test_random_aggregations(seed):
    check_random_aggregation(seed, put)


@pytest.mark.parametrize("seed", range(60))
def test_random_cuts(seed):
    check_random_cut(seed, put)


@pytest.mark.parametrize("seed", range(100))
def test_random_bulks_of_every_mode(seed):
    check_random_bulk(seed, put)


@pytest.mark.parametrize("seed", range(60))
def test_random_layers(seed):
    check_random_layers(seed, put)
    check_random_choice(seed, put)


def test_more_rows_than_a_grid_has_groups():
    table = torch.arange(1 << 10, device="cuda").to(torch.uint8).view(-1, 1)
    index = torch.randint(len(table), ((1 << 30) + 77,), dtype=torch.int32, device="cuda")
    assert torch.equal(ops.gather_tiers([table], index).view(-1), index.to(torch.uint8))


BROKEN = """
import torch
from torch_gnnscale import ops
parts, index = [torch.zeros(5, 3, device="cuda")], torch.arange(3, device="cuda")
ops.gather_tiers(parts, index, place=torch.tensor([0, 5, 1], device="cuda"))
torch.cuda.synchronize()
"""


def test_a_broken_map_stops_the_process_on_this_gpu():
    done = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode != 0
    assert "device-side assert" in done.stderr
    assert "place has an entry that is out of range" in done.stdout + done.stderr
