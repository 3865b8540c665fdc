"""Some benchmarks that need no peer run: on small graphs, where their figures mean nothing, and nothing is saved."""

import shlex
from pathlib import Path

import pytest
from helpers import forked
from helpers.slow import NIGHTLY

FOLDER = Path(__file__).parents[1] / "benchmarks"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="the benchmarks are not beside the tests"),
]


def output(command: str, folder: Path) -> str:
    """What a benchmark prints that runs in this folder, where it finds no real graphs."""
    name, *arguments = shlex.split(command)
    where = {"PYTHONPATH": str(FOLDER.parent), "GNNSCALE_DATA": str(folder / "data")}
    done = forked.run_file(FOLDER / name, *arguments, "--no-save", folder=folder, **where)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    "command",
    [
        NIGHTLY("bench_distributed.py --rounds 1 --small --parts 2"),
        NIGHTLY(
            "bench_gpu_epoch.py --rounds 1 --nodes 50000 --edges 400000 --batches 40 --batch-size 128 --hidden 8 16"
        ),
        NIGHTLY("bench_gpu_papers.py --rounds 1 --nodes 100000 --edges 1400000 --batches 6 --hidden 8"),
        NIGHTLY("bench_gpu_tiers.py --rounds 1 --nodes 50000 --edges 400000 --batches 8 --batch-size 128 --hidden 8"),
        NIGHTLY("bench_infer.py --rounds 1 --graphs tiny --width 8 --limit 64 --limited-width 16"),
        NIGHTLY("bench_layerwise.py --rounds 1 --graphs tiny --no-schools --lists 1000"),
        NIGHTLY("bench_narrow_typed.py --rounds 1 --graphs uniform --models HGT --hidden 8 --most-seeds 1"),
        NIGHTLY("bench_relational.py --rounds 1 --customers 100 --fanouts 3 2"),
        NIGHTLY("bench_sample.py --rounds 1 --graphs tiny --modes 'heterogeneous, 237 relations'"),
        NIGHTLY("bench_scaling.py --rounds 1 --graph tiny --table 16 --epochs 0"),
        NIGHTLY("bench_split.py --rounds 1 --graphs small --ranks 2 --steps 1 --presampled 1 --settings usual"),
        NIGHTLY("bench_tables.py --rounds 1 --edges 4000"),
        NIGHTLY("bench_training.py --rounds 1 --graphs tiny --parts batches loops waits --batches 2"),
        "bench_tiers.py --rounds 1 --graphs tiny --folder .",
    ],
)
def test_a_benchmark_runs(command, tmp_path):
    assert "written: " not in output(command, tmp_path)


def test_an_epoch_whose_rows_are_all_hot_has_no_traffic_to_judge(tmp_path):
    sizes = "--nodes 50000 --edges 400000 --batches 2 --batch-size 128 --hidden 8"
    said = output(f"bench_gpu_epoch.py --rounds 1 {sizes} --share 60%", tmp_path)
    assert "'found_bytes': 0.0, 'off': None" in said
    assert "aim: traffic of the slow tier, off the plan's: within +- 0.02: NOT JUDGED" in said


def test_a_thread_that_a_limit_refuses_is_too_little_memory(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    from bench_infer import is_of_memory

    texts = "can't start new thread", "Resource temporarily unavailable", "not enough memory: you tried to allocate 8"
    assert all(is_of_memory(RuntimeError(text)) for text in texts)
    assert is_of_memory(MemoryError())
    assert not is_of_memory(RuntimeError("expected 3 rows, found 4"))
