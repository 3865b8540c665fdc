"""Everything that needs a GPU, in calls of less than ten minutes: build, probe, tests, figures, memory checks.

    make gpu       # or: python benchmarks/run_gpu.py [CALL or STEP ...] [--out DIRECTORY] [--prebuilt]

It runs in a checkout, with the Python that is active, and needs no network: torch with CUDA, torch_geometric, numpy,
setuptools, ninja, pytest, hypothesis and scipy have to be there, and nvcc; pytest-xdist is used where it is there.
The library is built in place, for the GPU that is there; ``--prebuilt`` uses the libraries that lie in
torch_gnnscale/ if they load and gather right rows on this GPU. ``first`` to ``fifth`` name the steps of
a call, and each call builds, for it may run on a machine of its own; by default all steps run, one after the other.
What PYTHONPATH has is kept, so packages may lie elsewhere.

Each step has a limit of time, which includes its start-up. One that fails or runs out of time does not keep the next
ones from running, and makes the exit status 1. What a step prints goes to DIRECTORY/STEP.txt. After every step
DIRECTORY/results.json has how each step ended and what the benchmarks have saved in this run. The summary, with the end
of each step's output, is printed last, in less than 10,000 characters.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
GRACE = 5
"""Seconds for a step whose time is up to say what it has."""
SUMMARY = 9_500
"""Characters of the summary, at most."""
CHECKED = [
    *(f"tests/native/test_gpu.py::test_random_gathers[{seed}]" for seed in range(20)),
    *(f"tests/native/test_gpu.py::test_random_samples[{seed}]" for seed in range(8)),
    *(f"tests/native/test_gpu.py::test_random_layers[{seed}]" for seed in range(8)),
    *(f"tests/native/test_gpu.py::test_random_cuts[{seed}]" for seed in range(4)),
    *(f"tests/native/test_gpu.py::test_random_aggregations[{seed}]" for seed in range(8)),
    *(f"tests/native/test_gpu.py::test_random_shuffles[{seed}]" for seed in range(4)),
    *(f"tests/loader/test_random_loaders.py::test_random_loaders[cuda-{seed}]" for seed in range(4)),
    *(
        f"tests/test_gpu_stores.py::test_a_loader_over_tiers_on_a_gpu[{device}-8-{{'gpu': '30%'}}]"
        for device in ("cpu", "cuda")
    ),
]
"""Tests that compute-sanitizer's memcheck watches, which makes them many times slower."""
RACED = [
    *(f"tests/native/test_gpu.py::test_random_gathers[{seed}]" for seed in range(8)),
    *(f"tests/native/test_gpu.py::test_random_samples[{seed}]" for seed in range(4)),
    *(f"tests/native/test_gpu.py::test_random_layers[{seed}]" for seed in range(4)),
]
"""Tests that its racecheck watches, for threads that use shared memory without a barrier between them."""
CALLS = {
    "first": ["build", "probe", "tests", "gather"],
    "second": ["build", "sampling", "aggregate", "memcheck", "racecheck"],
    "third": ["build", "grow", "epoch", "tiers"],
    "fourth": ["build", "grow", "layers", "split", "papers"],
    "fifth": ["build", "grow", "scaling"],
}
"""The steps of each call; the limits of a call add up to less than ten minutes."""
GATHERS = """
import torch
from torch_gnnscale import ops
rows = torch.arange(4096, dtype=torch.float32, device="cuda").view(-1, 8)
index = torch.tensor([3, 0, 511], device="cuda")
assert torch.equal(ops.gather_tiers([rows], index), rows[index])
print("the libraries that were there are used")
"""
"""A program that ends without an error if the libraries load and have code for this GPU."""


class Step(NamedTuple):
    """A command and how many seconds it may take, its start included."""

    title: str
    command: list[str]
    seconds: int
    environment: Mapping[str, str] = MappingProxyType({})
    unless: list[str] | None = None
    """A command that makes the step unnecessary if it ends without an error."""


class Ended(NamedTuple):
    """How a step ended."""

    step: Step
    how: str
    seconds: float


def steps(prebuilt: bool) -> list[Step]:
    """All that can be run."""
    python = sys.executable
    bench = [python, "-u"]
    sanitizer = ["compute-sanitizer", "--error-exitcode", "9", "--tool"]
    tests = [python, "-m", "pytest", "-p", "no:cacheprovider"]
    # Two tests at a time, or one process is given all the slow ones, which come first.
    parallel = ["-n", "6", "--maxschedchunk", "2"] if importlib.util.find_spec("xdist") is not None else []
    build = [python, "setup.py", "-q", "build_ext", "--inplace"]
    return [
        Step("build", build, 120, unless=[python, "-c", GATHERS] if prebuilt else None),
        Step("probe", [*bench, "benchmarks/probe_gpu.py"], 90),
        # Some machines have less memory than they give to a process that takes more and more.
        Step("grow", [*bench, "benchmarks/growth.py", "64"], 30),
        Step("tests", [*tests, *parallel, "-m", "cuda", "--continue-on-collection-errors", "--durations=8"], 240),
        Step("gather", [*bench, "benchmarks/bench_gather_gpu.py", "--rounds", "7"], 75),
        Step("sampling", [*bench, "benchmarks/bench_gpu.py", "--rounds", "5"], 90),
        Step("layers", [*bench, "benchmarks/bench_gpu_layers.py", "--rounds", "5"], 60),
        Step("split", [*bench, "benchmarks/bench_gpu_split.py", "--rounds", "9"], 135),
        Step("aggregate", [*bench, "benchmarks/bench_gpu_aggregate.py", "--rounds", "9"], 75),
        Step("epoch", [*bench, "benchmarks/bench_gpu_epoch.py"], 270),
        Step("tiers", [*bench, "benchmarks/bench_gpu_tiers.py"], 130),
        Step("papers", [*bench, "benchmarks/bench_gpu_papers.py"], 180),
        Step("scaling", [*bench, "benchmarks/bench_scaling.py"], 285),
        Step(
            "memcheck",
            [*sanitizer, "memcheck", "--report-api-errors", "no", *tests, *CHECKED],
            180,
            # Each tensor in memory of its own, so that what is read or written beside it is seen.
            {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        ),
        Step("racecheck", [*sanitizer, "racecheck", *tests, *RACED], 75),
    ]


def chosen(names: list[str], prebuilt: bool) -> list[Step]:
    """The steps of these names, which are those of steps and of calls, in their order; all of them without a name.

    Raises:
        ValueError: an unknown name.
    """
    known = steps(prebuilt)
    titles = [step.title for step in known]
    if unknown := set(names) - {*titles, *CALLS}:
        raise ValueError(f"expected steps of {titles} or calls of {list(CALLS)}, found {sorted(unknown)}")
    wanted = {title for name in names or CALLS for title in CALLS.get(name, [name])}
    return [step for step in known if step.title in wanted]


def architecture() -> str:
    """The compute capability of the GPU, as TORCH_CUDA_ARCH_LIST has it; the process that asks leaves the GPU again."""
    program = "import torch; print(*torch.cuda.get_device_capability(), sep='.')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"run_gpu: torch sees no CUDA device, so there is nothing to run\n{done.stderr[-500:]}")
    return done.stdout.strip()


def search_path(environment: Mapping[str, str], toolkits: Iterable[Path]) -> str:
    """PATH with the folder of this Python, where ninja is, before it, and those of CUDA's tools after it."""
    homes = [Path(environment[name]) for name in ("CUDA_HOME", "CUDA_PATH") if environment.get(name)]
    tools = [home / folder for home in (*homes, *toolkits) for folder in ("bin", "compute-sanitizer")]
    folders = [str(Path(sys.executable).parent), environment.get("PATH", ""), *(str(p) for p in tools if p.is_dir())]
    return os.pathsep.join(folder for folder in folders if folder)


def run(step: Step, environment: Mapping[str, str], log: Path) -> Ended:
    """Runs a step and everything that it starts; what they print goes to ``log``."""
    begin = time.perf_counter()
    environment = {**environment, **step.environment}
    how = ""
    with log.open("w") as output:
        for command in filter(None, (step.unless, step.command)):
            output.write(f"$ {' '.join(command)}\n")
            output.flush()
            left = step.seconds - (time.perf_counter() - begin)
            how = _run(command, environment, output, left, step.seconds)
            if how == "passed":
                break
    return Ended(step, how, time.perf_counter() - begin)


def _run(command: list[str], environment: Mapping[str, str], output, left: float, limit: int) -> str:
    """How a command ended for which so many seconds are left."""
    if (program := shutil.which(command[0], path=environment.get("PATH"))) is None:
        return f"NOT RUN: {command[0]} is not on PATH"
    process = subprocess.Popen(
        [program, *command[1:]], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output,
        stderr=subprocess.STDOUT, start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # ignored in a shell's background
    )  # fmt: skip
    try:
        status = process.wait(max(left, 0))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)  # so that pytest says what has failed so far
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        status = None
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # with what it left behind
    process.wait()
    if status is None:
        return f"FAILED: stopped after {limit} s"
    return "passed" if status == 0 else f"FAILED: exit status {status}"


def write_results(out: Path, ended: list[Ended], since: float) -> None:
    """Writes how the steps ended, and all results that benchmarks have saved since then."""
    found = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json") if path.stat().st_mtime > since}
    entries = [
        {"step": step.title, "command": step.command, "limit": step.seconds, "how": how, "seconds": seconds}
        for step, how, seconds in ended
    ]
    partial = out / "results.json.part"
    partial.write_text(json.dumps({"steps": entries, "results": found}, indent=1) + "\n")
    partial.replace(out / "results.json")


def tail(text: str, room: int) -> str:
    """The last whole lines of a text that fit into so many characters; a line that is too long is cut at its front."""
    if len(text) <= room:
        return text
    kept = text[-room:] if room > 0 else ""
    return kept.partition("\n")[2] or kept


def summary(ended: list[Ended], out: Path, most: int = SUMMARY) -> str:
    """The end of each step's output, and how all steps ended; at most ``most`` characters.

    What short outputs leave is the longer ones' room.
    """
    table = [f"  {step.title:10s} {seconds:6.1f} s of {step.seconds:3d} s  {how[:60]}" for step, how, seconds in ended]
    last = "\n".join(["", f"All steps, whose outputs are in {out}:", *table])
    room, parts = most - len(last), {}
    texts = {e.step.title: (out / f"{e.step.title}.txt").read_text(errors="replace").rstrip() for e in ended}
    for left, title in zip(range(len(texts), 0, -1), sorted(texts, key=lambda title: len(texts[title])), strict=True):
        head = f"===== {title}\n"
        parts[title] = head + tail(texts[title], room // left - len(head) - 1) + "\n"
        room -= len(parts[title])
    return "".join(parts[title] for title in texts) + last


def main() -> int:
    """The exit status: 1 if a step failed, or could not run."""
    begin, since = time.perf_counter(), time.time()
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    titles = [step.title for step in steps(False)]
    options.add_argument("steps", nargs="*", metavar="STEP", help=f"of {titles}, or {' or '.join(CALLS)}; default: all")
    options.add_argument(
        "--out", type=Path, default=Path("runs/gpu"), help="for outputs and results; default: %(default)s"
    )
    options.add_argument("--prebuilt", action="store_true", help="use the libraries in torch_gnnscale/ if they load")
    args = options.parse_args()
    try:
        todo = chosen(args.steps, args.prebuilt)
    except ValueError as error:
        options.error(str(error))
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "FORCE_CUDA": "1"}
    environment["TORCH_CUDA_ARCH_LIST"] = architecture()
    environment["PATH"] = search_path(environment, sorted(Path("/usr/local").glob("cuda*")))
    args.out.mkdir(parents=True, exist_ok=True)
    ended: list[Ended] = []
    for step in todo:
        print(f"{time.perf_counter() - begin:5.0f} s: {step.title}, at most {step.seconds} s", flush=True)
        ended.append(run(step, environment, args.out / f"{step.title}.txt"))
        write_results(args.out, ended, since)
    print(summary(ended, args.out))
    return int(any(how != "passed" for _, how, _ in ended))


if __name__ == "__main__":
    sys.exit(main())
