"""Two processes that torchrun starts on one machine, on a GPU that both use."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import torchrun_rank
from helpers.data import environment
from helpers.split_training import check_weights, saved_plan, trained


@pytest.mark.nightly
def test_ranks_of_torchrun_train_what_one_process_does(device, tmp_path):
    plan = saved_plan(tmp_path, 2)
    expected = trained(plan, torchrun_rank.EPOCHS)
    program = Path(torchrun_rank.__file__).resolve()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    done = subprocess.run(
        [*launcher, "--nproc-per-node=2", str(program), plan, device, str(tmp_path)],
        env={**environment(), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    check_weights([weights for weights, _, _ in found], expected)
    for _, read, edges in found:
        assert read.keys() == ({"gpu", "host"} if device == "cuda" else {"host"})
        assert min(read.values()) > 0
        assert edges == ({"gpu": 1, "peers": 1, "host": 1} if device == "cuda" else {})
