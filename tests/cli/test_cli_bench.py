"""``gnnscale bench``, and the timing that it shares with the benchmarks."""

import json
import math

import pytest
import torch
from torch_geometric.data import HeteroData

from torch_gnnscale.bench import FIGURES, Case, compare, measure, table_of
from torch_gnnscale.cli import main
from torch_gnnscale.cli import options as cli_options
from torch_gnnscale.datasets import NodeTask, planted


def ticking(steps):
    """A clock by which each call of a candidate takes the seconds that it put into ``steps``."""
    now = [0.0]

    def clock():
        now[0] += steps.pop() if steps else 0.0
        return now[0]

    return clock


@pytest.mark.parametrize(("seconds", "rounds"), [(math.inf, 7), (0.0, 3)])
def test_candidates_are_timed_in_turn(seconds, rounds):
    calls, steps = [], []

    def candidate(name, takes):
        def run(number):
            calls.append((name, number))
            steps.append(takes[number % len(takes)])

        return run

    found = compare(
        {"a": candidate("a", [0.001, 0.002, 0.003]), "b": candidate("b", [0.004])}, 7, batches=2, clock=ticking(steps),
        seconds=seconds,
    )  # fmt: skip
    assert len(calls) == 2 * (2 + rounds)  # two that are not counted
    for place in range(0, len(calls), 2):
        assert {calls[place][0], calls[place + 1][0]} == {"a", "b"}
    assert [number for name, number in calls if name == "a"] == [5, 6, *range(rounds)]
    assert found["b"] == {"median_ms": pytest.approx(2), "low_ms": pytest.approx(2), "high_ms": pytest.approx(2)}
    assert found["a"]["median_ms"] == pytest.approx(1)
    assert found["a"]["high_ms"] == pytest.approx(1.5)


def test_a_table_has_ratios_to_ours():
    times = {"median_ms": 2.0, "low_ms": 1.9, "high_ms": 2.1}
    assert table_of({"a batch": {"ours": times, "PyG": {"median_ms": 5.0, "low_ms": 4.0, "high_ms": 6.0}}}) == [
        "               ms   quartiles         ours is",
        "a batch  ours   2  1.9 to 2.1                ",
        "          PyG   5      4 to 6  2.50 x as fast",
    ]


def test_data_sets_that_are_not_measured(monkeypatch):
    data = HeteroData()
    monkeypatch.setattr(cli_options, "load", lambda *_: NodeTask("typed", data, None, {}, 0, 0, 0))
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--dataset", "typed"])
    assert ended.value.code == 2


def test_what_is_refused_before_the_work(tmp_path, capsys):
    for arguments, message in (
        (["--out", str(tmp_path)], f"--out: expected a file, found the folder {tmp_path}"),
        (["--graphs", "tiny", "--dataset", "planted"], "--graphs: expected no --dataset beside it, found one"),
        (["--seconds", "-1"], "--seconds: expected at least 0, found -1.0"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["bench", *arguments])
        assert (ended.value.code, capsys.readouterr().err) == (2, f"gnnscale: {message}\n")


def test_figures_of_a_small_graph():
    data = planted(150, num_features=6, seed=0)
    case = Case("small", lambda: data, lambda _: torch.arange(40), 16, (4, 3))
    figures = dict(measure(case, data, 0.0))
    assert list(figures) == list(FIGURES)
    assert all(next(iter(times)) == "ours" for times in figures.values())
    assert list(figures["a training step"]) == ["ours", "PyG, trim_to_layer", "PyG, whole batch"]
    of_ours, of_torch = (
        entry["gigabytes_per_second"] * 1e6 * entry["median_ms"] / (6 * 4) for entry in figures[FIGURES[3]].values()
    )
    assert of_ours == pytest.approx(of_torch) == pytest.approx(round(of_ours))  # the rows of three batches
    assert 40 < of_ours < 3 * 150
    assert case.title(data) == f"small: 150 nodes, {data.num_edges:,} edges, 6 features; batches of 16 x (4, 3)"


@pytest.mark.slow
def test_figures_of_a_data_set(tmp_path, capsys):
    NodeTask.from_data("small", planted(2000, seed=0)).save(tmp_path / "saved")
    with pytest.raises(SystemExit):
        main(["bench", "--dataset", str(tmp_path / "saved")])
    assert "found" in capsys.readouterr().err
    file = tmp_path / "bench.json"
    main(["bench", "--graphs", "tiny", "--seconds", "0", "--out", str(file)])
    said, saved = capsys.readouterr().out, json.loads(file.read_text())
    assert said.endswith(f"written: {file}\n")
    title = saved["results"]["tiny"]["title"]
    assert title == "tiny: 2,708 nodes, 10,556 edges, 1433 features; batches of 64 x (10, 5)"
    assert title in said
    figures = saved["results"]["tiny"]["figures"]
    assert list(figures) == list(FIGURES)
    for figure, times in figures.items():
        assert figure in said
        assert next(iter(times)) == "ours"
        assert all(entry["low_ms"] <= entry["median_ms"] <= entry["high_ms"] for entry in times.values())
    assert list(figures["a training step"]) == ["ours", "PyG, trim_to_layer", "PyG, whole batch"]
    assert figures[FIGURES[3]]["ours"]["gigabytes_per_second"] > 0
    assert saved["machine"]["cores"] > 0
