"""What the benchmarks of a GPU do where there is none: judge figures, run steps within their limits, sum them up."""

import json
import os
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import forked
from helpers.slow import NIGHTLY

FOLDER = Path(__file__).parents[1] / "benchmarks"
if not FOLDER.is_dir():
    pytest.skip("the benchmarks are not beside the tests", allow_module_level=True)
sys.path.append(str(FOLDER))

import bench_gpu_tiers  # noqa: E402
import gpu_timing  # noqa: E402
import probe_gpu  # noqa: E402
import rows_over_bus  # noqa: E402
import run_gpu  # noqa: E402
from common import judged, ratio  # noqa: E402
from run_gpu import Ended, Step  # noqa: E402


def test_figures_are_judged_by_their_bound():
    assert judged(0.8, least=0.8) == {"found": 0.8, "least": 0.8, "met": True}
    assert judged(0.8, most=0.7)["met"] is False
    assert [judged(found, within=0.02)["met"] for found in (-0.03, -0.02, 0.0, 0.03)] == [False, True, True, False]
    assert judged(ratio(1, 0), most=0.7) == {"found": None, "most": 0.7, "met": None}


def test_candidates_that_are_short_have_many_rounds(monkeypatch):
    monkeypatch.setattr(gpu_timing, "keep_busy", lambda: None)
    calls = []
    gpu_timing.compare_waits({"short": calls.append}, 3)
    assert len(calls) == 2 + 2 + gpu_timing.MANY
    calls.clear()
    gpu_timing.compare_waits({"short": calls.append, "long": lambda _: time.sleep(0.003)}, 3)
    assert len(calls) == 2 + 2 + 3


def share(predicted: float, found: float) -> dict:
    """What bench_gpu_tiers.py saves of the traffic with one share of the rows."""
    return {"traffic": {"predicted_bytes": predicted, "off": ratio(found - predicted, predicted)}}


def test_the_share_whose_traffic_is_farthest_from_the_plan_is_judged():
    by_share = {"0 %": share(100.0, 101.0), "2.5 %": share(50.0, 48.0), "25 %": share(0.0, 0.0)}
    (aim,) = bench_gpu_tiers.aims_of(by_share).values()
    assert aim == {"found": -0.04, "within": 0.02, "met": False}
    (aim,) = bench_gpu_tiers.aims_of({"25 %": share(0.0, 0.0)}).values()
    assert aim["met"] is None


# Steps ###############################################################################################################


def shell(title: str, command: str, seconds: int = 60, unless: str | None = None) -> Step:
    return Step(title, ["sh", "-c", command], seconds, {}, None if unless is None else ["sh", "-c", unless])


@pytest.mark.parametrize("call", run_gpu.CALLS)
def test_a_call_ends_within_ten_minutes(call):
    todo = run_gpu.chosen([call], prebuilt=False)
    assert [step.title for step in todo] == run_gpu.CALLS[call]
    assert len(todo) + 1 <= 8  # files: an output of each step, and the results
    assert sum(step.seconds + run_gpu.GRACE for step in todo) <= 570  # the rest is torch's start, to ask for the GPU


def test_steps_by_name():
    assert [step.title for step in run_gpu.chosen([], False)] == [step.title for step in run_gpu.steps(False)]
    assert [step.title for step in run_gpu.chosen(["gather", "build"], False)] == ["build", "gather"]
    assert {step.title: step for step in run_gpu.chosen(["first"], True)}["build"].unless is not None
    expected = r"expected steps of \['build', .*\] or calls of \['first', .*\], found \['epochs'\]"
    with pytest.raises(ValueError, match=expected):
        run_gpu.chosen(["epochs", "gather"], False)


@pytest.mark.parametrize("step", run_gpu.steps(True), ids=lambda step: step.title)
def test_what_a_step_runs_is_there(step):
    files = [part.partition("::")[0] for part in step.command if part.endswith(".py") or "::" in part]
    assert all((run_gpu.ROOT / file).is_file() for file in files)
    tests = [part.partition("[")[0].split("::") for part in step.command if "::" in part]
    assert all(f"\ndef {name}(" in (run_gpu.ROOT / file).read_text() for file, name in tests)


@pytest.mark.slow
def test_a_step_ends_in_one_of_four_ways(tmp_path):
    log, environment = tmp_path / "log", dict(os.environ)
    assert run_gpu.run(shell("a", "echo out; echo err >&2"), environment, log).how == "passed"
    assert log.read_text().splitlines()[1:] == ["out", "err"]
    assert run_gpu.run(shell("a", "exit 3"), environment, log).how == "FAILED: exit status 3"
    missing = Step("a", ["no-such-program"], 60)
    assert run_gpu.run(missing, environment, log).how == "NOT RUN: no-such-program is not on PATH"
    ended = run_gpu.run(
        shell("a", "trap 'echo stopped; exit 0' INT; echo begun; sleep 600 & wait", 3), environment, log
    )
    assert ended.how == "FAILED: stopped after 3 s"
    assert ended.seconds < 3 + run_gpu.GRACE + 5
    assert log.read_text().splitlines()[1:] == ["begun", "stopped"]


def test_what_a_step_leaves_behind_is_ended(tmp_path):
    log = tmp_path / "log"
    run_gpu.run(shell("a", "sleep 600 & echo $!"), dict(os.environ), log)
    left = Path("/proc", log.read_text().splitlines()[-1], "stat")
    deadline = time.monotonic() + 30
    while left.exists() and left.read_text().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left.exists() or left.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.slow
def test_a_step_is_left_out_if_what_it_makes_is_there(tmp_path):
    log, environment = tmp_path / "log", dict(os.environ)
    assert run_gpu.run(shell("a", "echo made; exit 1", unless="echo found"), environment, log).how == "passed"
    assert "made" not in log.read_text()
    assert run_gpu.run(shell("a", "echo made", unless="echo none; exit 1"), environment, log).how == "passed"
    assert [line for line in log.read_text().splitlines() if line[0] != "$"] == ["none", "made"]


def test_programs_are_found_beside_this_python_and_then_in_the_toolkit(tmp_path):
    for folder in ("home/bin", "toolkit/bin", "toolkit/compute-sanitizer"):
        (tmp_path / folder).mkdir(parents=True)
    environment = {"PATH": "/bin", "CUDA_HOME": str(tmp_path / "home")}
    found = run_gpu.search_path(environment, [tmp_path / "toolkit", tmp_path / "none"]).split(os.pathsep)
    tools = [str(tmp_path / folder) for folder in ("home/bin", "toolkit/bin", "toolkit/compute-sanitizer")]
    assert found == [str(Path(sys.executable).parent), "/bin", *tools]


# Summary #############################################################################################################


def test_a_summary_has_the_end_of_every_output(tmp_path):
    ended = []
    for title, lines in (("short", 3), ("long", 4000), ("longer", 5000)):
        (tmp_path / f"{title}.txt").write_text("".join(f"{title} line {n}\n" for n in range(lines)))
        ended.append(Ended(shell(title, "true"), "FAILED: exit status 1" if title == "long" else "passed", 1.5))
    said = run_gpu.summary(ended, tmp_path)
    assert 9_000 < len(said) < 10_000
    for line in ("short line 0", "long line 3999", "longer line 4999"):
        assert line in said.splitlines()
    assert said.splitlines()[-3:] == [
        "  short         1.5 s of  60 s  passed",
        "  long          1.5 s of  60 s  FAILED: exit status 1",
        "  longer        1.5 s of  60 s  passed",
    ]


@pytest.mark.parametrize(
    ("text", "room", "kept"), [("a\nbc\nd", 9, "a\nbc\nd"), ("a\nbc\nd", 4, "d"), ("abcdef", 3, "def")]
)
def test_the_end_of_a_text(text, room, kept):
    assert run_gpu.tail(text, room) == kept


@pytest.mark.slow
def test_a_run_from_its_first_step_to_its_summary(tmp_path, monkeypatch, capsys):
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "old.json").write_text("{}")
    os.utime(saved / "old.json", (0, 0))
    todo = [
        shell("one", f"echo first; echo '[1]' > {saved}/new.json"),
        shell("two", "echo $TORCH_CUDA_ARCH_LIST; exit 1"),
    ]
    monkeypatch.setattr(run_gpu, "RESULTS", saved)
    monkeypatch.setattr(run_gpu, "steps", lambda prebuilt: todo)
    monkeypatch.setattr(run_gpu, "architecture", lambda: "9.0")
    monkeypatch.setattr(run_gpu, "CALLS", {"first": ["one", "two"]})
    monkeypatch.setattr(sys, "argv", ["run_gpu.py", "--out", str(tmp_path / "out")])
    assert run_gpu.main() == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["one.txt", "results.json", "two.txt"]
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert results["results"] == {"new": [1]}
    assert [entry["how"] for entry in results["steps"]] == ["passed", "FAILED: exit status 1"]
    said = capsys.readouterr().out.splitlines()
    assert "9.0" in said
    assert said[-1].split()[0] == "two"
    assert said[-1].endswith("FAILED: exit status 1")


# Programs ############################################################################################################


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        NIGHTLY(
            "probe_gpu.py --rounds 1 --graph tiny --table 16 --grow 2",
            [
                "== growth",
                "== costs",
                "== profile",
                "== zero-copy, registered, huge pages",
                "16 MiB made in",
                "== zero-copy, cudaHostAlloc",
                "sorting ids ",
            ],
        ),
        (
            "bench_gather_gpu.py --rounds 1 --table 16 --sizes 128 512",
            ["Rows of 512 bytes", "pinned  copy, store's", "WholeGraph is left out"],
        ),
        NIGHTLY(
            "bench_gpu_layers.py --rounds 1 --graphs tiny --batches 2",
            ["tiny: labor", "one by one / ", "bulk / claims and adds"],
        ),
        NIGHTLY(
            "bench_gpu_split.py --rounds 1 --graphs tiny --rows 4000",
            [
                "512 bytes, packed",
                "512 bytes, read",
                "ms by pinned memory",
                "bytes of a peer over a copy",
                "cut over 8",
            ],
        ),
        NIGHTLY(
            "bench_gpu_aggregate.py --rounds 1 --graphs tiny",
            ["max of rows of 1024 bytes, forward and backward", "both passes over the faster peer's"],
        ),
        ("bench_gpu.py --rounds 1 --graphs tiny", ["32 at a time, half on the GPU", "torch_gnnscale, device"]),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_a_program_of_a_gpu_runs_on_a_cpu_that_stands_for_one(command, expected, tmp_path):
    name, *arguments = command.split()
    stand_in = Path(__file__).parent / "helpers/cpu_as_gpu.py"
    done = forked.run_file(stand_in, str(FOLDER / name), *arguments, "--no-save", folder=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert [text for text in expected if text not in done.stdout] == []
    assert "written" not in done.stdout


# Probe ###############################################################################################################


READ = {"random": 20.0, "sorted": 20.0, "sequential": 45.0, "within 256 MiB": 20.0, "two at once": 20.0}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"random": 40.0}, "met: 80 % of the copy"),
        (
            {"within 256 MiB": 44.0, "two at once": 30.0, "sorted": 40.0},
            "page tables: 40 % of the copy; rows within 256 MiB are 2.20 x as fast; sorted ids are 2.00 x as fast",
        ),
        (
            {"two at once": 30.0},
            "kernel: 40 % of the copy; two gathers at once are 1.50 x as fast; sorted ids are 1.00 x as fast",
        ),
        (
            {"two at once": 21.0},
            "bus: 40 % of the copy; neither near rows nor a second gather help; rows in sequence are 2.25 x as fast",
        ),
    ],
)
def test_why_a_gather_misses_its_aim(changed, expected):
    assert rows_over_bus.reason({**READ, **changed}, copy=50.0) == expected


@pytest.mark.parametrize(
    ("alone", "whole", "expected"),
    [
        (30.0, 22.0, "pays: 1.10 x as fast with the sort and a copy, 1.50 x with ids that are sorted"),
        (30.0, 21.0, "may pay without the copy: 1.05 x"),
        (21.0, 15.0, "does not pay: 0.75 x as fast with the sort and a copy, 1.05 x with ids that are sorted"),
    ],
)
def test_whether_sorting_pays(alone, whole, expected):
    speeds = {"random": 20.0, "sorted": alone, "sorted for the gather": whole}
    assert rows_over_bus.sorting(speeds).startswith(f"sorting ids {expected}")


def test_rows_that_are_read_in_the_order_of_their_ids_come_in_that_of_the_index(monkeypatch):
    read = []

    def gather(parts, index):
        read.append(index)
        return lambda: parts[0][index]

    monkeypatch.setattr(rows_over_bus, "gather", gather)
    rows, index = torch.arange(200).view(100, 2), torch.tensor([70, 3, 70, 99, 0])
    for _ in range(2):
        assert torch.equal(rows_over_bus.sorted_for_the_gather(rows, index)(), rows[index])
    assert read[0].tolist() == [0, 3, 70, 70, 99]


def test_the_ids_of_a_probe():
    ids = rows_over_bus.indices(1000, 300, 50, torch.device("cpu"))
    assert {len(index) for index in ids.values()} == {300}
    assert torch.equal(ids["sorted"], ids["random"].sort()[0])
    assert ids["random"].max() > 500
    assert ids["within 256 MiB"].max() < 50
    assert ids["sequential"].tolist() == list(range(300))


SMAPS = """\
7f0000000000-7f0000400000 rw-s 00000000 00:01 1024 /memfd:gnnscale-tiers (deleted)
Rss:                4096 kB
AnonHugePages:         0 kB
ShmemPmdMapped:     2048 kB
FilePmdMapped:         0 kB
7f0000400000-7f0000800000 rw-p 00000000 00:00 0
AnonHugePages:      4096 kB
"""


def test_the_huge_pages_of_a_mapping():
    assert rows_over_bus.huge_bytes(SMAPS, 0x7F0000001000) == 2 << 20
    assert rows_over_bus.huge_bytes(SMAPS, 0x7F0000400000) == 4 << 20
    assert rows_over_bus.huge_bytes(SMAPS, 0x7F0000800000) == 0


def test_a_profile_names_what_ran():
    x = torch.rand(64, 64)
    found = probe_gpu.profiled(lambda: x @ x, torch.device("cpu"), 1)
    assert {entry["name"] for entry in found["entries"]} >= {"aten::mm"}
    assert (found["launches"], found["device_us"]) == (0, 0)
    assert found["wall_us"] > 0
