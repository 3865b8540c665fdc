"""How long ranks of an inference wait for each other."""

import time
import warnings
from pathlib import Path

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.cluster import cluster
from helpers.data import wait_for
from helpers.inference import model_and_call, sorted_data
from helpers.narrow import FEATURES
from torch import distributed as dist

from torch_gnnscale import partition
from torch_gnnscale.distributed import open_part
from torch_gnnscale.infer import infer


def waits_for_the_others(path: str, said: str) -> tuple[str, list[str]]:
    """Rank 1 refuses an argument; rank 0 calls infer once rank 1 has warned. What each raised, and its warnings."""
    heard = []

    def hear(message, *_):
        heard.append(str(message))
        Path(said).touch()

    wrong = dist.get_rank() == 1
    with open_part(path) as part, warnings.catch_warnings():
        warnings.showwarning = hear
        if not wrong:
            wait_for(Path(said).exists)
        try:
            infer(model_and_call("gcn", False)[0], (part.features, part.graph), batch_size=0 if wrong else 24)
        except Exception as error:
            return f"{type(error).__name__}: {error}", heard
    raise AssertionError


@pytest.mark.slow
def test_a_rank_that_waits_to_tell_the_others_of_its_error_says_so(tmp_path):
    partition.write(sorted_data(), tmp_path / "parts", parts=2, method="random", topology="partitioned")
    first, (why, heard) = cluster(2).run(waits_for_the_others, str(tmp_path / "parts"), str(tmp_path / "said"))
    assert why.startswith("ValueError: batch_size: expected ")
    assert first == (f"ValueError: rank 1: {why}", [])
    assert heard == [
        f"this rank computes no rows, and waits for the other ranks, which come to compute theirs, to tell them: {why}"
    ]


class SlowEncoder(torch.nn.Module):
    """Computes for half a second before the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.conv = torch.nn.Linear(FEATURES, 8), pyg_nn.SAGEConv(8, 4)

    def forward(self, x, edge_index):
        time.sleep(0.5)
        return self.conv(self.encode(x).relu(), edge_index)


def infer_slowly(path: str) -> int:
    """The encoder is computed in a stage that reads no rows of others."""
    with open_part(path, timeout=3) as part:
        model = SlowEncoder().double().eval()
        return len(infer(model, (part.features, part.graph), batch_size=20))


@pytest.mark.slow
def test_a_rank_waits_no_longer_than_a_batch_takes(tmp_path):
    """One rank has 10 batches of half a second each, the other has one."""
    owners = (torch.arange(200) >= 195).long()
    partition.write(sorted_data(), tmp_path / "parts", parts=2, owners=owners)
    assert cluster(2).run(infer_slowly, str(tmp_path / "parts")) == [195, 5]
