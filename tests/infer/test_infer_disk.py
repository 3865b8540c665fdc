"""Inference into a folder: what it holds, and how it goes on after it was killed."""

import io
import os
import re
import signal
from collections import namedtuple
from pathlib import Path

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers import forked
from helpers.data import TESTS, make_data
from helpers.narrow import CLASSES, basic
from helpers.slow import SLOW, quick
from torch import nn
from tqdm import tqdm

from torch_gnnscale import files
from torch_gnnscale.infer import disk, infer, inference, open_results
from torch_gnnscale.infer.disk import check_folder


def model_of(seed: int = 0, **options) -> nn.Module:
    torch.manual_seed(seed)
    return basic(pyg_nn.GCN, jk="cat", **options)().double().eval()


@pytest.mark.slow
def test_a_folder_holds_the_results_alone(tmp_path):
    expected = infer(model_of(), make_data(), batch_size=30)
    found = infer(model_of(), make_data(), batch_size=30, out=tmp_path / "rows")
    assert torch.equal(found, expected)
    assert sorted(os.listdir(tmp_path / "rows")) == ["gnnscale.json", "nodes.npy"]
    arrays, meta = files.load(tmp_path / "rows", disk.KIND)
    assert torch.equal(arrays["nodes"], expected)
    assert meta["types"] == {"nodes": None}
    again = infer(model_of(), make_data(), batch_size=30, out=tmp_path / "rows")
    assert torch.equal(again, expected)


class MadeMeanwhile(type(Path())):
    """A directory that another rank makes when it is looked at."""

    def exists(self) -> bool:
        found = super().exists()
        os.makedirs(self, exist_ok=True)
        return found

    def is_dir(self) -> bool:
        found = super().is_dir()
        os.makedirs(self, exist_ok=True)
        return found


def test_ranks_may_make_their_directory_at_once(tmp_path):
    check_folder(MadeMeanwhile(tmp_path / "rows"), 2)
    assert (tmp_path / "rows").is_dir()


class Stopped(Exception):
    pass


@pytest.mark.parametrize("after", [*map(SLOW, (0, 1, 6, 7, 8, 15)), 20, *map(SLOW, (27, 28))])
def test_a_stopped_inference_goes_on(tmp_path, monkeypatch, after):
    monkeypatch.setattr(disk, "_SECONDS", 0)
    data, batches, real = make_data(), [], disk.DiskRows.done

    def done(self, number):
        if len(batches) == after:
            raise Stopped
        batches.append(number)
        self._took = 0
        real(self, number)

    class Bar(tqdm):
        def __init__(self, *given, disable, **options):
            super().__init__(*given, file=io.StringIO(), **options)
            bars.append(self)

    bars = []
    monkeypatch.setattr(inference, "tqdm", Bar)
    monkeypatch.setattr(disk.DiskRows, "done", done)
    if after < 28:
        with pytest.raises(Stopped):
            infer(model_of(), data, batch_size=30, out=tmp_path)
    else:
        infer(model_of(), data, batch_size=30, out=tmp_path)
    before, after = len(batches), 1000
    assert torch.equal(infer(model_of(), data, batch_size=30, out=tmp_path), infer(model_of(), data, batch_size=30))
    assert len(batches) == 28, f"4 stages of 7 batches, {before} of them before"
    assert [bar.n for bar in bars[-2:]] == [bar.total for bar in bars[-2:]] == [800] * 2, "nodes of all stages"


PROGRAM = """
import os, signal, sys
sys.path.insert(0, sys.argv[3])
from infer.test_infer_disk import model_of
from helpers import forked
from helpers.data import TESTS, make_data
from torch_gnnscale.infer import disk, infer
disk._SECONDS, left, real = 0, int(sys.argv[2]), disk.DiskRows._put

def put(to, ids, rows):
    global left
    left -= 1
    if left == 0:
        real(to, ids[:5], rows[:5])
        os.kill(os.getpid(), signal.SIGKILL)
    real(to, ids, rows)

disk.DiskRows._put = staticmethod(put)
infer(model_of(), make_data(), batch_size=30, out=sys.argv[1])
print("done")
"""
"""Kills itself in the midst of its n-th write."""


@pytest.mark.slow
def test_a_killed_process_goes_on_with_the_same_bits(tmp_path):
    killed = 0
    for writes in ("1", "4", "11", "3", "9", "100"):
        run = forked.run(PROGRAM, str(tmp_path / "rows"), writes, str(TESTS))
        if run.returncode == 0:
            break
        assert run.returncode == -signal.SIGKILL, run.stderr
        killed += 1
    assert killed >= 4
    assert run.stdout == "done\n"
    expected = infer(model_of(), make_data(), batch_size=30)
    assert torch.equal(files.load(tmp_path / "rows", disk.KIND)[0]["nodes"], expected)


def softmax(model, batch):
    return model(batch.x, batch.edge_index).softmax(1)


OTHERS = {
    "model": lambda data, options: options.update(model=model_of(1)),
    "graph": lambda data, options: data.edge_index[0].add_(1).remainder_(200),
    "rows": lambda data, options: data.x[0].add_(1),
    "nodes": lambda data, options: options.update(nodes=torch.arange(9)),
    "batch_size": lambda data, options: options.update(batch_size=31),
    "output on a part of the graph": lambda data, options: options.update(call=softmax),
    "memory": lambda data, options: options.update(memory="2GiB"),
}


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("what", quick(OTHERS.keys(), "model", "rows", "output on a part of the graph"))
def test_another_inference_is_refused(tmp_path, monkeypatch, what, finished):
    data, options = make_data(), {"model": model_of(), "batch_size": 30, "out": tmp_path / "rows"}
    if finished:
        infer(data=data, **options)
    else:
        monkeypatch.setattr(disk.DiskRows, "finish", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            infer(data=data, **options)
        monkeypatch.undo()
    before = {file.name: file.read_bytes() for file in options["out"].iterdir()}
    text = (
        f"out: expected a new folder, or one in which the same inference was begun, found another {what} in "
        f"{tmp_path / 'rows'}"
    )
    right = {"data": data.clone(), **options}
    OTHERS[what](data, options)
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$") as kept:
        infer(data=data, **options)
    assert before == {file.name: file.read_bytes() for file in options["out"].iterdir()}
    infer(**right)
    assert kept.tb is not None, "as notebooks keep it"


@pytest.mark.slow
def test_rows_of_all_parts_of_the_graph_are_compared(tmp_path):
    data = make_data(num_nodes=1500, num_edges=10)
    infer(model_of(), data, out=tmp_path)
    data.x[1400:] += 1
    with pytest.raises(ValueError, match="found another rows in"):
        infer(model_of(), data, out=tmp_path)


def test_a_folder_of_something_else(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"expected a new or an empty directory, found notes.txt in it$"):
        infer(model_of(), make_data(), out=tmp_path)
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_damaged_progress(tmp_path):
    (tmp_path / "progress.json").write_text('{"stage": 1}')
    text = r"progress.json: expected the progress of an inference, found no entry 'of'$"
    with pytest.raises(ValueError, match=text):
        infer(model_of(), make_data(), out=tmp_path)


@pytest.mark.slow
def test_who_keeps_the_error_may_call_again(tmp_path, monkeypatch):
    """As notebooks do, which keep the last error, and with it what its frames hold."""
    monkeypatch.setattr(disk.DiskRows, "done", lambda self, number: 1 / 0)
    with pytest.raises(ZeroDivisionError) as kept:
        infer(model_of(), make_data(), out=tmp_path)
    monkeypatch.undo()
    assert infer(model_of(), make_data(), out=tmp_path).shape == (200, CLASSES)
    assert kept.tb is not None


def test_one_stage_that_is_stopped_early_goes_on(tmp_path, monkeypatch):
    model = pyg_nn.GraphSAGE(3, 4, 1).double().eval()
    monkeypatch.setattr(disk.DiskRows, "done", lambda self, number: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        infer(model, make_data(), out=tmp_path)
    monkeypatch.undo()
    assert sorted(os.listdir(tmp_path)) == [".partial-lock", "nodes.npy", "progress.json"]
    assert torch.equal(infer(model, make_data(), out=tmp_path), infer(model, make_data()))


def test_files_take_their_space_when_they_are_made(tmp_path, monkeypatch):
    """A full disk is then found before rows are written to mapped files."""
    monkeypatch.setattr(disk.DiskRows, "_put", staticmethod(lambda to, ids, rows: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        infer(model_of(), make_data(num_nodes=100_000, num_edges=0), out=tmp_path)
    made = [file.stat() for file in tmp_path.glob("*.npy")]
    assert made
    assert all(file.st_blocks * 512 >= file.st_size > 400_000 for file in made)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda file: os.truncate(file, 300), "expected {size} bytes, found 300: the file is truncated or corrupt"),
        (lambda file: file.unlink(), "not found"),
    ],
)
def test_damaged_rows_of_a_stopped_inference(tmp_path, monkeypatch, damage, text):
    end = disk.DiskRows.end
    monkeypatch.setattr(disk.DiskRows, "end", lambda self, stage: 1 / 0 if stage == 2 else end(self, stage))
    with pytest.raises(ZeroDivisionError):
        infer(model_of(), make_data(), out=tmp_path)
    monkeypatch.undo()
    file = min(tmp_path.glob(".partial-*.npy"))
    text = (
        f"{file}: {text.format(size=file.stat().st_size)}; the inference cannot go on, delete {tmp_path} to begin anew"
    )
    damage(file)
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        infer(model_of(), make_data(), out=tmp_path)


def test_two_processes_at_once(tmp_path, monkeypatch):
    def again(self, number):
        infer(model_of(), make_data(), out=tmp_path)

    monkeypatch.setattr(disk.DiskRows, "done", again)
    with pytest.raises(BlockingIOError, match=f"another process writes into it: '{tmp_path}'$"):
        infer(model_of(), make_data(), out=tmp_path)


def test_too_little_space(tmp_path, monkeypatch):
    usage = namedtuple("usage", "free")(4096)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: usage)
    # Of 200 nodes: the degree and two layers' outputs, of which the first is also an input; and the results.
    text = r"expected [\d.]+ KiB for rows of nodes, found 4.0 KiB free: "
    for out in (tmp_path, tmp_path / "new" / "rows"):
        with pytest.raises(OSError, match=text) as caught:
            infer(model_of(), make_data(), out=out)
        assert caught.value.errno == 28
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_is_done_needs_no_space_again(tmp_path, monkeypatch):
    """All stages are, but the folder is not finished."""
    monkeypatch.setattr(disk.DiskRows, "finish", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        infer(model_of(), make_data(), out=tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: namedtuple("usage", "free")(0))
    assert torch.equal(infer(model_of(), make_data(), out=tmp_path), infer(model_of(), make_data()))


@pytest.mark.slow
def test_a_graph_without_edges_or_nodes(tmp_path):
    data = make_data(num_nodes=5, num_edges=0)
    expected = model_of()(data.x, data.edge_index)
    torch.testing.assert_close(infer(model_of(), data, out=tmp_path / "a"), expected, rtol=0, atol=1e-12)
    none = infer(model_of(), make_data(num_nodes=5), out=tmp_path / "b", nodes=torch.empty(0, dtype=torch.int64))
    assert none.shape == (0, CLASSES)


def save_results(folder, number, ids, book=0, name="nodes"):
    """The results of one of two parts, in which the row of node i is 10 i."""
    ids = torch.tensor(ids)
    arrays, meta = {name: 10 * ids[:, None], f"{name}@id": ids}, {"partition": [number, 2, book], "model": 1}
    files.save(folder / f"part-{number}", disk.KIND, arrays, {"types": {name: None}, "of": meta})


def test_results_of_parts_are_put_together(tmp_path):
    save_results(tmp_path, 0, [1, 4])
    save_results(tmp_path, 1, [0, 2, 5])
    results = open_results(tmp_path)
    assert results.ids.tolist() == [0, 1, 2, 4, 5]
    assert results[[5, 0, 4, 1, 2, 5]].view(-1).tolist() == [50, 0, 40, 10, 20, 50]
    for missing in (3, 6):
        with pytest.raises(IndexError, match=rf"^ids\[1\] = {missing}: expected a node with a result, found none$"):
            results[[4, missing]]


@pytest.mark.parametrize("other", [{"book": 1}, {"name": "others"}], ids=["division into parts", "types"])
def test_results_of_parts_of_another_graph_are_refused(tmp_path, other):
    save_results(tmp_path, 0, [1, 4])
    save_results(tmp_path, 1, [0, 2], **other)
    with pytest.raises(ValueError, match=r"/part-1/gnnscale.json: .*expected \[1, 2\] and types \['nodes'\]$"):
        open_results(tmp_path)
