"""Inference over ranks that are killed, fail, or do not go together."""

import functools
import os
import re
import shutil
import signal
from collections import namedtuple
from pathlib import Path
from unittest import mock

import pytest
import torch
from helpers.cluster import Cluster, cluster
from helpers.inference import inferred, killed, model_and_call, sorted_data
from helpers.slow import NIGHTLY, quick
from torch import distributed as dist

from torch_gnnscale import files, partition
from torch_gnnscale.distributed import open_part
from torch_gnnscale.distributed.own_rows import MappedRows
from torch_gnnscale.infer import disk, infer, inference, open_results


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Of the number of parts: a directory."""

    @functools.cache
    def of(count):
        path = tmp_path_factory.mktemp("parts") / "parts"
        partition.write(sorted_data(), path, parts=count, method="random", topology="partitioned")
        return str(path)

    return of


@pytest.fixture
def finished(parts, tmp_path):
    """The folder of an inference of two parts that is done."""
    cluster(2).run(inferred, parts(2), ["gcn"], {"out": tmp_path / "rows"})
    return tmp_path / "rows"


def bits(out: Path) -> list[dict[str, bytes]]:
    """The files of each part's folder."""
    return [{file.name: file.read_bytes() for file in sorted(part.iterdir())} for part in sorted(out.iterdir())]


KILLED = {
    "one rank, at first": [{1: 1}],
    "one rank, again and again": [{1: 2}, {0: 5}, {1: 7}, {0: 3}],
    "all ranks": [{0: 3, 1: 3}, {0: 9, 1: 9}],
}


@pytest.mark.slow
@pytest.mark.parametrize("which", quick(KILLED.keys(), slow=("one rank, at first", "all ranks")))
def test_killed_ranks_go_on_with_the_same_bits(parts, finished, tmp_path, which):
    out = str(tmp_path / "again")
    for of_ranks in KILLED[which]:
        ranks = Cluster(2)
        try:
            answers = ranks.results(killed, parts(2), "gcn", out, of_ranks)
        finally:
            ranks.kill()
        ended = [rank for rank, (_, said) in enumerate(answers) if said == f"ended with {-signal.SIGKILL}"]
        assert ended
        assert set(ended) <= set(of_ranks)
        for rank, (returned, said) in enumerate(answers):  # a rank may notice the other's end before its own comes
            assert not returned
            assert rank in ended or re.match(rf"RuntimeError: rank {1 - rank}\b", said), said
    cluster(2).run(inferred, parts(2), ["gcn"], {"out": out})
    assert bits(Path(out)) == bits(finished)


@pytest.mark.slow
@pytest.mark.parametrize("consecutive", ["copies", "parts"])
def test_killed_ranks_of_one_part_go_on_with_the_same_bits(parts, tmp_path, consecutive):
    opening = {"consecutive": consecutive}
    outs = [tmp_path / name for name in ("killed", "not")]
    ranks = Cluster(4)
    try:
        answers = ranks.results(killed, parts(2), "gcn", str(outs[0]), {1: 4}, opening)
    finally:
        ranks.kill()
    assert not any(returned for returned, _ in answers)
    assert answers[1][1] == f"ended with {-signal.SIGKILL}"
    for out in outs:
        cluster(4).run(inferred, parts(2), ["gcn"], {"out": out}, opening)
    assert len(bits(outs[0])) == 4
    assert bits(outs[0]) == bits(outs[1])


@pytest.mark.slow
@pytest.mark.parametrize("left", ["part-0", "part-1"])
def test_a_rank_whose_folder_is_gone(parts, finished, left):
    """The rows between the stages are gone, so the other part cannot be computed alone."""
    expected = bits(finished)
    shutil.rmtree(finished / left)
    answers = cluster(2).results(inferred, parts(2), ["gcn"], {"out": finished})
    text = "ValueError: out: expected folders of parts that are equally far, or one stage apart, found stages "
    assert all(not returned and said.startswith(text) for returned, said in answers), answers
    assert all(said.endswith("delete the folders of all parts to begin anew") for _, said in answers)
    shutil.rmtree(finished)
    cluster(2).run(inferred, parts(2), ["gcn"], {"out": finished})
    assert bits(finished) == expected


def stopped_in_finish(path: str, out: str) -> None:
    """Rank 1 fails where the results are there but for their manifest."""
    real = disk.DiskRows.finish
    if dist.get_rank() == 1:
        disk.DiskRows.finish = lambda self: 1 / 0  # type: ignore[method-assign]
    try:
        inferred(path, ["gcn"], {"out": out})
    finally:
        disk.DiskRows.finish = real  # type: ignore[method-assign]


@pytest.mark.slow
def test_a_rank_that_is_finished_and_one_that_is_not(parts, finished, tmp_path):
    out = tmp_path / "again"
    answers = cluster(2).results(stopped_in_finish, parts(2), str(out))
    said = "ZeroDivisionError: division by zero"
    assert answers == [(False, f"RuntimeError: rank 1: {said}"), (False, said)]
    assert [(part / "gnnscale.json").exists() for part in sorted(out.iterdir())] == [True, False]
    cluster(2).run(without_space, parts(2), str(out), 4096)  # ids take 800 bytes; the rest is there
    assert bits(out) == bits(finished)


class Fails(torch.nn.Module):
    """Fails on one rank in its n-th call."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.model, self.at, self.calls = model_and_call("gcn", False)[0], at, 0

    def forward(self, x, edge_index):
        self.calls += 1
        if self.calls == self.at and dist.get_rank() == 1:
            raise KeyError("no luck")
        return self.model(x, edge_index)

    def __repr__(self) -> str:
        return "Fails()"


def fails(path: str, at: int, out: str | None) -> None:
    """A model fails on rank 1 in its call number ``at``."""
    with open_part(path) as part:
        infer(Fails(at).eval(), (part.features, part.graph), out=out, batch_size=24)


@pytest.mark.slow
@pytest.mark.parametrize("at", [NIGHTLY(1), 3, NIGHTLY(9), 11, NIGHTLY(14), 20, NIGHTLY(24), 29])
def test_the_failure_of_one_rank_is_raised_on_all(parts, at, finished, tmp_path):
    """While the model is looked at (up to call 9), in a stage without exchange (up to call 14), in others, and in the
    last batch of all."""
    out = tmp_path / "again"
    answers = cluster(2).results(fails, parts(2), at, str(out))
    assert answers[1] == (False, "KeyError: 'no luck'")
    assert answers[0][1].startswith("RuntimeError: rank 1")
    assert answers[0][1].endswith("KeyError: 'no luck'")


def unreadable(path: str) -> None:
    """The rows of rank 3 cannot be read by it for others."""
    with open_part(path) as part:
        rows = inference._Run._own
        wrong = (lambda run, table: MappedRows(None)) if dist.get_rank() == 3 else rows
        with mock.patch.object(inference._Run, "_own", wrong):
            infer(model_and_call("gcn", False)[0], (part.features, part.graph), batch_size=24)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_the_rank_that_cannot_read_its_rows_is_named(parts, count):
    """With two ranks per part, too: rank 3 has a share of part 1."""
    *others, own = cluster(4).results(unreadable, parts(count))
    assert own[1].startswith("TypeError: ")
    told = f"RuntimeError: rows: expected those of rank 3, found that it could not read them: {own[1]}"
    assert others == [(False, told)] * 3


def interrupted(path: str) -> None:
    """Rank 1 is interrupted where the others wait for it."""

    def stop(*_):
        raise KeyboardInterrupt("by the user")

    real = inference.sets_of_stages
    inference.sets_of_stages = stop if dist.get_rank() == 1 else real
    try:
        inferred(path, ["gcn"], {})
    finally:
        inference.sets_of_stages = real


@pytest.mark.slow
def test_an_interrupted_rank_is_named(parts):
    answers = cluster(2).results(interrupted, parts(2))
    assert answers[1] == (False, "KeyboardInterrupt: by the user")
    assert answers[0][1].startswith("RuntimeError: rank 1: KeyboardInterrupt: by the user")


def differing(path: str, options: list[dict]) -> None:
    """Ranks that are given other arguments."""
    own = dict(options[dist.get_rank()])
    name = own.pop("model", "gcn")
    inferred(path, [name], own)


DIFFERING = {
    "batch_size": ([{"batch_size": 24}, {"batch_size": 25}], "[24, 25]"),
    "out": ([{"out": None}, {}], "[False, True]"),
    "nodes": ([{"nodes": [1]}, {"nodes": [2]}], "[[['None', 1, "),
    "model": ([{}, {"model": "sage"}], "["),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("which", DIFFERING)
def test_ranks_that_do_not_go_together(parts, tmp_path, which):
    options, found = DIFFERING[which]
    given = [{"out": tmp_path / "rows", **of_rank} for of_rank in options]
    answers = cluster(2).results(differing, parts(2), given)
    assert answers[0] == answers[1]
    assert answers[0][1].startswith(f"ValueError: {which}: expected the same on all ranks, found {found}")
    assert not (tmp_path / "rows").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"batch_size": 0}, "ValueError: batch_size: expected "),
        ({"memory": "much"}, "ValueError: memory: expected bytes or a string such as '1GiB', found 'much'"),
        ({"nodes": [200]}, "IndexError: nodes[0] = 200 is out of range: expected nodes in [0, 200)"),
        ({"progress": 3}, "TypeError: progress: expected a bool, found 3"),
    ],
)
def test_arguments_of_one_rank(parts, wrong, text):
    """Are checked before the ranks meet; the others do not wait."""
    answers = cluster(2).results(differing, parts(2), [{}, wrong])
    assert not any(returned for returned, _ in answers)
    assert answers[1][1].startswith(text)
    assert answers[0][1].startswith(f"ValueError: rank 1: {text}")


@pytest.mark.slow
def test_folders_of_others_are_refused(parts, finished, tmp_path):
    before = bits(finished)

    def refused(world: int, options: dict, name: str = "gcn", out: Path = finished) -> list[str]:
        answers = cluster(world).results(inferred, parts(world), [name], {"out": out, **options})
        assert not any(returned for returned, _ in answers)
        assert bits(finished) == before
        return [said for _, said in answers]

    text = (
        "ValueError: out: expected a new folder, or one in which the same inference was begun, found another {} in {}"
    )
    others = [({}, "sage", "model"), ({"batch_size": 3}, "gcn", "batch_size")]
    for options, name, what in [*others, ({}, "gcn bare", "output on a part of the graph")]:
        said = refused(2, options, name)
        assert said == [text.format(what, finished / f"part-{rank}") for rank in range(2)]
    said = refused(3, {})
    assert said[0] == text.format("graph", finished / "part-0")
    assert said[2] == f"RuntimeError: rank 0: {said[0]}"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    text = (
        f"FileExistsError: {tmp_path / 'mine'}: expected a new or an empty directory, or one of an inference over 2 "
        f"parts, found notes.txt in it"
    )
    assert refused(2, {}, out=tmp_path / "mine") == [text] * 2
    with pytest.raises(FileExistsError, match="found part-0 in it"):
        infer(model_and_call("gcn", False)[0], sorted_data(), out=finished)


def without_space(path: str, out: str, free: int) -> None:
    """The disk of both ranks has little space."""
    real = disk.shutil.disk_usage
    disk.shutil.disk_usage = lambda folder: namedtuple("usage", "free")(free)
    try:
        inferred(path, ["gcn"], {"out": out})
    finally:
        disk.shutil.disk_usage = real


@pytest.mark.slow
def test_ranks_that_share_a_disk_need_space_for_all(parts, tmp_path):
    """A part's 100 nodes take 100 (8 + 2 * 8 * 8 + 4 * 8 + 8) bytes at most: 17,600."""
    answers = cluster(2).results(without_space, parts(2), str(tmp_path / "new" / "a"), 20_000)
    text = r"OSError: \[Errno 28\] expected [\d.]+ KiB for rows of nodes, found 19.5 KiB free: '.*part-{}'"
    assert all(re.match(text.format(rank), said) for rank, (_, said) in enumerate(answers)), answers
    assert list(tmp_path.iterdir()) == []
    cluster(2).run(without_space, parts(2), str(tmp_path / "b"), 50_000)


@pytest.mark.slow
def test_results_of_parts(finished, tmp_path):
    results = open_results(finished)
    assert repr(results) == "Results(200 rows of shape [4] in 2 parts)"
    assert torch.equal(results.ids, torch.arange(200))
    for number, (ids, rows) in enumerate(results.parts):
        arrays, _ = files.load(finished / f"part-{number}", disk.KIND)
        assert torch.equal(rows, arrays["nodes"])
        assert torch.equal(rows[5], results[ids[5:6]][0])
        assert sorted(os.listdir(finished / f"part-{number}")) == ["gnnscale.json", "nodes.npy", "nodes@id.npy"]
    assert results[[]].shape == (0, 4)
    with pytest.raises(IndexError, match=r"^ids\[1\] = 200: expected a node with a result, found none$"):
        results[[3, 200]]
    with pytest.raises(ValueError, match=r"^ids: expected a vector, found shape \(1, 1\)$"):
        results[[[3]]]
    with pytest.raises(FileNotFoundError, match=r"expected the folders part-0, part-1, \.\.\., found none$"):
        open_results(tmp_path / "none")
    shutil.copytree(finished, other := tmp_path / "other")
    shutil.rmtree(other / "part-1")
    with pytest.raises(FileNotFoundError, match=r"expected the folders of 2 parts, found none of part 1$"):
        open_results(other)


@pytest.mark.slow
def test_results_whose_folders_are_exchanged(finished):
    (finished / "part-0").rename(finished / "mine")
    (finished / "part-1").rename(finished / "part-0")
    (finished / "mine").rename(finished / "part-1")
    text = r"/part-0/gnnscale.json: .*part \[1, 2\], expected \[0, 2\] and types \['nodes'\]$"
    with pytest.raises(ValueError, match=text):
        open_results(finished)


@pytest.mark.slow
def test_results_of_several_inferences(parts, finished, tmp_path):
    cluster(2).run(inferred, parts(2), ["gcn bare"], {"out": tmp_path / "other"})
    shutil.rmtree(finished / "part-1")
    shutil.copytree(tmp_path / "other" / "part-1", finished / "part-1")
    with pytest.raises(
        ValueError, match=r"part-1/gnnscale.json: .*another output on a part of the graph than of part 0$"
    ):
        open_results(finished)
