"""Some benchmarks that need no peer run: on small graphs, where their figures mean nothing, and nothing is saved."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="the benchmarks are not beside the tests"),
]


@pytest.mark.parametrize(
    "command",
    [
        "bench_gather.py --rounds 1",
        "bench_gpu_epoch.py --rounds 1 --nodes 50000 --edges 400000 --batches 40 --batch-size 128 --hidden 8",
        "bench_hotness.py --rounds 1 --graphs tiny",
        "bench_tiers.py --rounds 1 --graphs tiny --folder .",
    ],
)
def test_a_benchmark_runs(command, tmp_path):
    name, *arguments = command.split()
    done = subprocess.run(
        [sys.executable, FOLDER / name, *arguments, "--no-save"],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(FOLDER.parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "written" not in done.stdout
