"""The figures of benchmarks and notebooks: no legend covers a curve, and no curve hides another."""

import ast
import importlib
import json
import re
import sys
from pathlib import Path

import pytest
from helpers.figures import check_seen, kept

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not beside the tests", allow_module_level=True)
sys.path.append(str(BENCHMARKS))

from figures import RESULTS_OF, saved  # noqa: E402  # needs the benchmarks on the path


def figure_of(name, results, folder, monkeypatch, *arguments):
    benchmark = importlib.import_module(name)
    monkeypatch.setattr(benchmark, "FIGURE", folder / "figure.png", raising=False)
    figures = kept(monkeypatch)
    benchmark.plot(results, *arguments)
    return figures[-1]


def equal_accuracies(results):
    curves = next(entry["accuracy"]["split"] for entry in results.values() if "accuracy" in entry)
    for entry in results.values():
        if "accuracy" in entry:
            entry["accuracy"] = dict.fromkeys(entry["accuracy"], curves)


def equal_speedups(results):
    for entry in results:
        entry |= {"speedup": 4.0, "step_speedup": 2.0}


@pytest.mark.slow
def test_benchmarks_import_names_that_their_helpers_have():
    for path in BENCHMARKS.glob("*.py"):
        for found in ast.walk(ast.parse(path.read_text())):
            if isinstance(found, ast.ImportFrom) and found.module == "common":
                common = importlib.import_module("common")
                assert not [name.name for name in found.names if not hasattr(common, name.name)], path.name


def test_every_figure_is_here():
    drawing = {path.stem for path in BENCHMARKS.glob("*.py") if "def plot(" in path.read_text()}
    assert drawing == {*RESULTS_OF, "bench_gpu_tiers"}


@pytest.mark.slow
@pytest.mark.parametrize("name", RESULTS_OF)
def test_all_of_the_saved_results_is_seen(name, tmp_path, monkeypatch):
    check_seen(figure_of(name, saved(name), tmp_path, monkeypatch))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "make_equal"),
    [("bench_split", equal_accuracies), ("sweep", equal_speedups)],
)
def test_equal_results_are_all_seen(name, make_equal, tmp_path, monkeypatch):
    results = saved(name)
    make_equal(results)
    check_seen(figure_of(name, results, tmp_path, monkeypatch))


@pytest.mark.slow
@pytest.mark.parametrize("falls", [True, False])
def test_curves_of_tiers_on_a_gpu_are_seen(falls, tmp_path, monkeypatch):
    figures = kept(monkeypatch)
    left = {f"{percent:g} %": (1 - percent / 25 if falls else 1.0) for percent in (0, 2.5, 10, 25)}
    by_share = {
        name: {
            "traffic": {"found_bytes": 10 * share, "without_tiers_bytes": 10.0},
            "training": {name: {"seconds": 1 + share}},
            "loading": {name: {"seconds": 1 + share}},
        }
        for name, share in left.items()
    }
    predicted = {"counted accesses": left, "weighted reverse PageRank": left}
    importlib.import_module("bench_gpu_tiers").plot(
        {"predicted": predicted, "figure 10": by_share}, tmp_path / "figure.png"
    )
    check_seen(figures[-1])


@pytest.mark.parametrize("notebook", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_legends_of_notebooks_are_outside(notebook):
    cells = json.loads(notebook.read_text())["cells"]
    code = "".join("".join(cell["source"]) + "\n" for cell in cells if cell["cell_type"] == "code")
    for line in code.splitlines():
        if re.search(r"\.(fig)?legend\(", line):
            assert 'loc="outside ' in line
