"""The fast tests with several versions of Python, torch and PyG: one wheel serves all of them.

    python .ci/matrix.py WHEEL                        # all cells
    python .ci/matrix.py WHEEL 3.10/2.11/2.6 ...      # these: Python/torch/PyG
    python .ci/matrix.py WHEEL CELL --tests tests/loader tests/ops
    python .ci/matrix.py WHEEL --corners              # a few of the tests with the oldest and the newest of each
    python .ci/matrix.py WHEEL CELL ... --corners     # the few tests with these

Each pair of Python and torch gets an environment in build/matrix, in which one PyG after the other is installed, and
which is removed at the end. Pythons are looked for on PATH and below ~/.pyenv; packages come from wherever pip finds
them: PIP_EXTRA_INDEX_URL may name an index that has torch for CPUs, which is much smaller than what PyPI has for Linux.
What does not install is left out and listed. The exit status is 1 if a test failed or if no cell was tested; of
corners, all may be left out.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).absolute().parents[1]
WORK = ROOT / "build" / "matrix"
PYTHONS, TORCHES, PYGS = ("3.10", "3.11", "3.12", "3.13"), ("2.11", "2.12", "2.13"), ("2.6", "2.7", "2.8")
CELLS = ["/".join(cell) for cell in itertools.product(PYTHONS, TORCHES, PYGS)]
CORNERS = ["/".join(cell) for cell in zip(*((of[0], of[-1]) for of in (PYTHONS, TORCHES, PYGS)), strict=True)]
OF_CORNERS = [
    f"tests/{name}.py"
    for name in (
        "topology/test_topology", "sampler/test_sampler", "loader/test_loader", "loader/test_digests", "nn/test_narrow",
        "distributed/test_partitioned_loader", "split/test_parallelize",
    )
]  # fmt: skip
"""Tests that need :data:`FOR_CORNERS` alone."""
FOR_CORNERS = ["pytest", "pytest-xdist", "hypothesis"]
EXTRAS = re.compile(r"^test = \[(.*?)\]$", re.MULTILINE | re.DOTALL)


def find_python(version: str) -> str | None:
    """A Python of this version that starts."""
    candidates = [f"python{version}", *sorted(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")))]
    for candidate in candidates:
        if shutil.which(candidate) is None:
            continue
        said = subprocess.run([candidate, "-c", "import sys; print(sys.version)"], capture_output=True, text=True)
        if said.stdout.startswith(f"{version}."):
            return candidate
    return None


def install(python: Path, *packages: str) -> str:
    """Installs packages; returns pip's last line if that failed."""
    command = [python, "-m", "pip", "--disable-pip-version-check", "-q", "install", "--no-compile", *packages]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = done.stdout.strip().splitlines() or [f"pip ended with {done.returncode}"]
    return said[-1] if done.returncode else ""


def test_packages() -> list[str]:
    """What pyproject.toml's extra ``test`` names."""
    return re.findall(r'"([^"]+)"', EXTRAS.search((ROOT / "pyproject.toml").read_text()).group(1))


def run_tests(python: Path, tests: list[str]) -> tuple[bool, str]:
    """Whether the tests passed, and pytest's last line. They run in a copy, away from the sources of the package."""
    folder = WORK / "tests"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "tests", folder / "tests")
    shutil.copy(ROOT / "pyproject.toml", folder)
    options = ["-p", "no:cacheprovider", "--disable-warnings", "-n", "2", "-m", "not slow and not cuda"]
    command = [python, "-m", "pytest", *options, *tests]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)  # fmt: skip
    if done.returncode:
        print(done.stdout[-20_000:], flush=True)
    return done.returncode == 0, done.stdout.strip().splitlines()[-1].strip("= ")


def test_environment(
    python: str, torch: str, pygs: list[str], wheel: Path, tests: list[str], packages: list[str]
) -> dict[str, tuple]:
    """Of each PyG: whether its tests passed (None: they did not run), and what is to be said. ``packages``: what the
    tests need."""
    folder = WORK / f"{python}-{torch}"
    shutil.rmtree(folder, ignore_errors=True)
    if (base := find_python(python)) is None:
        return dict.fromkeys(pygs, (None, f"left out: no Python {python} is here"))
    results: dict[str, tuple] = {}
    try:
        made = subprocess.run([base, "-m", "venv", folder], capture_output=True, text=True)
        if made.returncode:
            return dict.fromkeys(
                pygs, (None, f"left out: no environment, {(made.stdout + made.stderr).strip()[-200:]}")
            )
        inside = folder / "bin" / "python"
        if said := install(inside, f"torch=={torch}.*", *packages):
            return dict.fromkeys(pygs, (None, f"left out: {said}"))
        for pyg in pygs:
            if said := install(inside, f"torch_geometric=={pyg}.*"):
                results[pyg] = None, f"left out: {said}"
            elif said := install(inside, wheel):
                results[pyg] = False, f"the wheel was not installed: {said}"
            else:
                results[pyg] = run_tests(inside, tests)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # several GB with what PyPI's torch brings along
    return results


def main() -> int:
    """The exit status."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("wheel", type=lambda text: Path(text).absolute())
    options.add_argument("cells", nargs="*", metavar="CELL", help="Python/torch/PyG; default: all")
    options.add_argument("--tests", nargs="+", default=["tests"], help="files and folders of tests; default: all")
    options.add_argument("--corners", action="store_true", help="a few tests with these, or the oldest and the newest")
    args = options.parse_args()
    if args.corners and args.tests != ["tests"]:
        options.error("--corners: expected no --tests beside it")
    if not args.wheel.is_file():
        options.error(f"expected a wheel, found no file {args.wheel}")
    cells = [tuple(cell.split("/")) for cell in args.cells or (CORNERS if args.corners else CELLS)]
    tests, packages = (OF_CORNERS, FOR_CORNERS) if args.corners else (args.tests, test_packages())
    if wrong := [cell for cell in args.cells if not re.fullmatch(r"3\.\d+/\d+\.\d+/\d+\.\d+", cell)]:
        options.error(f"expected cells such as 3.10/2.11/2.6, found {wrong[0]!r}")
    WORK.mkdir(parents=True, exist_ok=True)
    table = []
    for (python, torch), group in itertools.groupby(cells, lambda cell: cell[:2]):
        began = time.monotonic()
        found = test_environment(python, torch, [cell[2] for cell in group], args.wheel, tests, packages)
        for pyg, (passed, said) in found.items():
            word = {True: "passed", False: "FAILED", None: "-"}[passed]
            table.append((passed, f"Python {python}  torch {torch}  PyG {pyg}  {word:6s}  {said}"))
            print(table[-1][1], flush=True)
        print(f"  ({time.monotonic() - began:.0f} s)", flush=True)
    print("\nAll cells:", *(line for _, line in table), sep="\n")
    states = [passed for passed, _ in table]
    return int(False in states or (True not in states and not args.corners))


if __name__ == "__main__":
    sys.exit(main())
