"""Everything that needs a GPU, one after the other, in less than ten minutes: build, tests, figures, memory checks.

    make gpu            # or: python benchmarks/run_gpu.py [STEP ...] [--out DIRECTORY]

It runs in a checkout, with the Python that is active, and needs no network: torch with CUDA, torch_geometric, numpy,
setuptools, ninja, pytest, hypothesis and scipy have to be there, and nvcc. The library is built in place, for the GPU
that is there. Each step has a limit of time; one that fails or runs out of it does not keep the next ones from running,
and makes the exit status 1. Results are written to benchmarks/results/ as soon as there are any, and copied to the
directory that is given; steps may be named, to run some of them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
GRACE = 5
"""Seconds for a step whose time is up to say what it has."""
CHECKED = [
    *(f"tests/native/test_gpu.py::test_random_gathers[{seed}]" for seed in range(20)),
    *(f"tests/native/test_gpu.py::test_random_samples[{seed}]" for seed in range(8)),
    *(
        f"tests/native/test_gpu.py::test_a_loader_over_tiers_on_a_gpu[{device}-8-{{'gpu': '30%'}}]"
        for device in ("cpu", "cuda")
    ),
]
"""Tests that compute-sanitizer watches, which makes them many times slower."""


class Step(NamedTuple):
    """A command and how many seconds it may take."""

    title: str
    command: list[str]
    seconds: int
    environment: Mapping[str, str] = MappingProxyType({})


def architecture() -> str:
    """The compute capability of the GPU, as TORCH_CUDA_ARCH_LIST has it."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit(f"run_gpu: torch {torch.__version__} sees no CUDA device, so there is nothing to run")
    return "{}.{}".format(*torch.cuda.get_device_capability())


def steps() -> list[Step]:
    """What is run; the limits, and the grace of those that run out of theirs, add up to less than ten minutes."""
    python = sys.executable
    bench = [python, "-u"]
    sanitizer = ["compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9"]
    tests = [python, "-m", "pytest", "-p", "no:cacheprovider"]
    return [
        Step("machine", ["sh", "-c", "nvidia-smi; free -g; ulimit -l; nvcc --version"], 10),
        Step("build", [python, "setup.py", "-q", "build_ext", "--inplace"], 80),
        Step("info", [python, "-m", "torch_gnnscale", "info"], 15),
        Step("tests", [*tests, "-m", "cuda", "--durations=8"], 150),
        Step("gather", [*bench, "benchmarks/bench_gather_gpu.py", "--rounds", "7"], 45),
        Step("epoch", [*bench, "benchmarks/bench_gpu_epoch.py"], 140),
        Step("sampling", [*bench, "benchmarks/bench_gpu.py", "--rounds", "5"], 55),
        # Each tensor in memory of its own, so that what is read or written beside it is seen.
        Step("memcheck", [*sanitizer, *tests, *CHECKED], 60, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
    ]


def run(step: Step, environment: dict[str, str]) -> str:
    """Runs a step and everything that it starts; says how it ended."""
    if shutil.which(step.command[0]) is None:
        return f"NOT RUN: {step.command[0]} is not on PATH"
    process = subprocess.Popen(step.command, cwd=ROOT, env={**environment, **step.environment}, start_new_session=True)
    try:
        status = process.wait(step.seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)  # so that pytest says what has failed so far
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"FAILED: stopped after {step.seconds} s"
    return "passed" if status == 0 else f"FAILED: exit status {status}"


def main() -> int:
    """The exit status: 1 if a step failed, or could not run."""
    chosen = steps()
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("steps", nargs="*", metavar="STEP", help=f"of {[step.title for step in chosen]}; default: all")
    options.add_argument("--out", type=Path, help="where results are copied to, for they are kept beside the code")
    args = options.parse_args()
    if unknown := set(args.steps) - {step.title for step in chosen}:
        options.error(f"expected steps of {[step.title for step in chosen]}, found {sorted(unknown)}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "FORCE_CUDA": "1"}
    environment["TORCH_CUDA_ARCH_LIST"] = architecture()
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"  # where ninja is
    found: list[tuple[Step, str, float]] = []
    for step in (step for step in chosen if step.title in (args.steps or [step.title])):
        print(f"\n===== {step.title}: {' '.join(step.command[:8])}", flush=True)
        begin = time.perf_counter()
        how = run(step, environment)
        found.append((step, how, time.perf_counter() - begin))
        print(f"===== {step.title}: {how}, {found[-1][2]:.1f} s", flush=True)
        if args.out is not None:
            args.out.mkdir(parents=True, exist_ok=True)
            for results in (ROOT / "benchmarks/results").glob("*gpu*.json"):
                shutil.copy(results, args.out)
    print("\nAll steps:")
    for step, how, seconds in found:
        print(f"  {step.title:10s} {seconds:6.1f} s of {step.seconds:3d} s  {how}")
    return int(any(how != "passed" for _, how, _ in found))


if __name__ == "__main__":
    sys.exit(main())
