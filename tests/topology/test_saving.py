"""Saving that fails, and edits of what was saved."""

import errno
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import forked
from helpers.data import edges_of, node_rows
from torch_geometric.data import HeteroData

from torch_gnnscale import CSC, FeatureStore, GraphStore, files
from torch_gnnscale.topology.reorder import TypedOrder, by_score

DENSE = "expected a dense tensor in host memory"
NAME = "expected a str, or a tuple of them, as the name that is saved"


@pytest.mark.parametrize("make", [lambda f: (f / "note").write_text("mine"), lambda f: (f / "inner").mkdir()])
def test_saving_refuses_a_directory_in_use(tmp_path, make):
    make(tmp_path)
    before = sorted(tmp_path.iterdir())
    for store in (FeatureStore(), GraphStore()):
        with pytest.raises(FileExistsError, match="expected a new or an empty directory"):
            store.save(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_saving_refuses_a_file_and_takes_an_empty_directory(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="file: expected a new or an empty directory"):
        GraphStore().save(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    GraphStore().save(tmp_path / "empty")
    GraphStore().save(tmp_path / "new" / "deep")
    assert GraphStore.open(tmp_path / "new" / "deep").get_all_edge_attrs() == []


def test_the_manifest_is_the_last_file_of_an_empty_directory(tmp_path, monkeypatch):
    """Without it nothing is opened, so a process that is killed meanwhile leaves nothing that looks complete."""
    moved, rename = [], Path.rename
    monkeypatch.setattr(Path, "rename", lambda file, to: moved.append(to.name) or rename(file, to))
    data = HeteroData()
    data["paper"].x = torch.arange(3.0)
    order = TypedOrder({"paper": by_score(data["paper"].x)})
    FeatureStore.from_data(data, order=order).save(tmp_path)
    assert sorted(moved) == sorted(file.name for file in tmp_path.iterdir())
    assert moved[-1] == files.MANIFEST < max(moved)


def fail(folder, inner, error):
    """Raises the error, or what it returns, of the folder in which a save, or one within it, is under way."""
    with files.creating(folder) as saved:
        if inner:
            with files.creating(saved / inner) as below:
                raise error(below) if callable(error) else error
        raise error(saved) if callable(error) else error


@pytest.mark.parametrize("where", ["new", "empty"])
def test_errors_of_files_name_those_that_the_user_knows(tmp_path, where):
    folder = tmp_path / "saved"
    if where == "empty":
        folder.mkdir()
    for inner, error, message in (
        ("", OSError(28, "No space left on device"), f"[Errno 28] No space left on device: '{folder}'"),
        ("a", OSError(28, "No space left on device"), f"[Errno 28] No space left on device: '{folder}/a'"),
        ("a", lambda path: PermissionError(13, "denied", str(path)), f"[Errno 13] denied: '{folder}/a'"),
        ("a", lambda path: OSError(24, "many", str(path / "0.npy")), f"[Errno 24] many: '{folder}/a/0.npy'"),
        ("", lambda path: OSError(24, "many", str(path / "0.npy")), f"[Errno 24] many: '{folder}/0.npy'"),
        ("", OSError(2, "none", "/mine/x.npy"), "[Errno 2] none: '/mine/x.npy'"),
        ("", OSError("a sentence"), "a sentence"),
    ):
        with pytest.raises(OSError, match=f"^{re.escape(message)}$") as raised:
            fail(folder, inner, error)
        assert type(raised.value) is type(error(folder) if callable(error) else error)
        assert [*tmp_path.rglob("*")] == ([folder] if where == "empty" else [])


def test_a_folder_that_cannot_be_written_to(tmp_path, monkeypatch):
    def refuse(dir, **_):
        raise PermissionError(13, "Permission denied", f"{dir}/.partial-abc")

    for name in ("TemporaryFile", "TemporaryDirectory"):
        with monkeypatch.context() as patched:
            patched.setattr(files.tempfile, name, refuse)
            with pytest.raises(PermissionError, match=rf"^\[Errno 13\] Permission denied: '{tmp_path}/a/b'$"):
                GraphStore().save(tmp_path / "a" / "b")
        assert not list(tmp_path.iterdir())


SAVE_TWICE = """
import os, resource, sys, torch
from torch_gnnscale import FeatureStore

os.umask(0o027)
if os.path.isdir(sys.argv[1]):
    os.chmod(sys.argv[1], 0o750)
store = FeatureStore()
for name, count in (("x", 10), ("y", 9000)):
    store.put_tensor(torch.zeros(count), group_name="paper", attr_name=name, index=None)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
try:
    store.save(sys.argv[1])
except OSError as error:
    print(error)
assert not os.path.isdir(sys.argv[1]) or os.listdir(sys.argv[1]) == []
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.save(sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["new", "empty"])
def test_a_save_that_fails_leaves_nothing_and_does_not_hinder_the_next(tmp_path, where):
    if where == "empty":
        (tmp_path / "features").mkdir()
    done = forked.run(SAVE_TWICE, str(tmp_path / "features"))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        rf"\[Errno 27\] File too large, while \('paper', 'y'\) was written: '{tmp_path}/features'", done.stdout.strip()
    )
    assert [file.name for file in tmp_path.iterdir()] == ["features"]
    assert sorted(file.name for file in (tmp_path / "features").iterdir()) == ["0.npy", "1.npy", files.MANIFEST]
    assert FeatureStore.open(tmp_path / "features").get_tensor_size(group_name="paper", attr_name="y") == (9000,)
    assert (tmp_path / "features").stat().st_mode & 0o777 == 0o750


def test_parents_that_were_made_for_a_save_that_fails_are_deleted(tmp_path):
    (tmp_path / "runs").mkdir()
    path = tmp_path / "runs" / "new" / "deep" / "graph"

    def fail(note=None):
        with files.creating(path):
            if note is not None:
                note.write_text("written by another program")
            raise KeyError

    for note, left in (None, {"runs"}), (tmp_path / "runs/new/note", {"runs", "runs/new", "runs/new/note"}):
        with pytest.raises(KeyError):
            fail(note)
        assert {str(found.relative_to(tmp_path)) for found in tmp_path.rglob("*")} == left
    with files.creating(path):
        pass
    assert path.is_dir()


def test_an_error_of_what_is_read_meanwhile_stays_as_it_is(tmp_path):
    error = ConnectionResetError(104, "Connection reset by peer")
    with pytest.raises(ConnectionResetError) as raised, files.creating(tmp_path / "graph"):
        raise error
    assert raised.value is error
    with pytest.raises(OSError, match=f"'{tmp_path}/graph'$"), files.creating(tmp_path / "graph"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_what_a_killed_save_left_does_not_hinder_the_next(tmp_path):
    (tmp_path / "graph" / ".partial-1234").mkdir(parents=True)
    GraphStore().save(tmp_path / "graph")
    assert GraphStore.open(tmp_path / "graph").get_all_edge_attrs() == []


@pytest.mark.slow
def test_what_a_killed_save_of_this_machine_left_is_named_and_removed(tmp_path):
    path = str(tmp_path / "a")
    killed = forked.run(f"import os\nfrom torch_gnnscale import files\nwith files.creating({path!r}):\n    os._exit(9)")
    assert killed.returncode == 9
    (left,) = tmp_path.iterdir()
    with pytest.warns(UserWarning, match=f"^{left}: removed, because the process that was writing it has ended$"):
        GraphStore().save(tmp_path / "b")
    with files.creating(tmp_path / "c"):
        (ours,) = (entry for entry in tmp_path.iterdir() if entry.name.startswith(".partial-"))  # still written
        (ours / "lock").rename(ours / "kept")
        (ours / "lock").write_text("another machine")
        GraphStore().save(tmp_path / "d")
        assert ours.is_dir()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["b", "c", "d"]


def test_a_directory_that_is_filled_while_a_save_runs_is_left_alone(tmp_path):
    def save():
        with files.creating(tmp_path / "a") as folder:
            (folder / "0.npy").touch()
            (tmp_path / "a").mkdir()
            (tmp_path / "a" / "mine").touch()

    with pytest.raises(FileExistsError, match="expected a new or an empty directory, found mine in it"):
        save()
    assert [str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*")] == ["a", "a/mine"]


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        (("paper", "x"), lambda: torch.eye(3).to_sparse(), f"{DENSE}, found torch.sparse_coo, cpu"),
        (("paper", "x"), lambda: torch.zeros(3, device="meta"), f"{DENSE}, found torch.strided, meta"),
        (
            ("paper", "x"),
            lambda: torch._empty_affine_quantized([3], scale=1.0, zero_point=0, dtype=torch.qint8),
            f"{DENSE}, found quantized, torch.strided, cpu",
        ),
        (
            ("paper", "x"),
            lambda: torch.nested.nested_tensor([torch.zeros(3)]),
            f"{DENSE}, found nested, torch.strided, cpu",
        ),
        ((frozenset("p"), "x"), lambda: torch.zeros(3), NAME),
        ((("a", ("b",)), "x"), lambda: torch.zeros(3), NAME),
    ],
    ids=["sparse", "meta", "quantized", "nested", "a set", "tuple of tuples"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*(quantized|nested tensors)")
def test_an_attribute_that_cannot_be_saved_is_named(tmp_path, name, make, message):
    store = FeatureStore()
    store.put_tensor(torch.zeros(3), group_name="author", attr_name="x", index=None)
    store._tensors[name] = make()
    called = repr(name[0]) if message == NAME else str(name)
    with pytest.raises(ValueError, match=rf"^{re.escape(called)}: {message}$"):
        store.save(tmp_path / "features")
    assert list(tmp_path.iterdir()) == []


def test_a_relation_that_cannot_be_saved_is_named(tmp_path):
    store = GraphStore()
    good = CSC.from_edge_index(torch.tensor([[0], [1]]), 2)
    store._relations["a", "good", "a"] = good
    store._relations["a", "bad", "a"] = CSC(good.colptr, good.row + 2, good.edge_id, 2)
    with pytest.raises(ValueError, match=r"^relation \('a', 'bad', 'a'\): row\[0\] = 2, which is not in \[0, 2\)$"):
        store.save(tmp_path / "graph")
    assert list(tmp_path.iterdir()) == []


def test_conjugates_are_saved(tmp_path):
    store = FeatureStore()
    x = torch.tensor([[1 + 2j], [3 - 4j]])
    for name, tensor in (("conjugate", x.conj()), ("negative", x.conj().imag)):
        store.put_tensor(tensor, group_name=None, attr_name=name, index=None)
    store.save(tmp_path / "features")
    opened = FeatureStore.open(tmp_path / "features")
    assert torch.equal(opened[None, "conjugate", None], x.conj())
    assert torch.equal(opened[None, "negative", None], x.conj().imag)


# Edits of the manifest ###############################################################################################


def edits(text, count):
    """``count`` texts that differ from this one: in its values, its keys, its characters."""
    random = np.random.default_rng(0)
    other = [0, 1, -1, 2**31, 1.5, True, None, "", "x", "int32", "paper", [], [0], {}, ["a", "to", "b"]]
    for number in range(count):
        if number % 3 == 0:  # bytes: changed, inserted or left out
            at, by = random.integers(len(text)), chr(random.integers(32, 127))
            yield text[:at] + by * int(random.integers(2)) + text[at + int(random.integers(2)) :]
            continue
        manifest = place = json.loads(text)
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = keys[random.integers(len(keys))]
            if not isinstance(place[key], (dict, list)) or not place[key] or random.random() < 0.1:
                break
            place = place[key]
        if number % 3 == 1:
            value = other[random.integers(len(other))]
            place[key] = place[key] + 1 if type(place[key]) is int and random.random() < 0.5 else value
        elif isinstance(place, dict) and random.random() < 0.5:
            place[f"{key}2"] = place.pop(key)
        else:
            del place[key]
        yield json.dumps(manifest)


def content(store):
    """All that an opened store answers with."""
    order = {node_type: of_type.old.tolist() for node_type, of_type in (store.order or {}).items()}
    if isinstance(store, FeatureStore):
        return order, {key: (tensor.dtype, tensor.tolist()) for key, tensor in store._tensors.items()}
    return order, {
        edge_type: (csc.num_src, csc.colptr.tolist(), csc.row.dtype, csc.row.tolist(), csc.edge_id.tolist())
        for edge_type, csc in store._relations.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("renumbered", [False, True])
@pytest.mark.parametrize("kind", [FeatureStore, GraphStore])
def test_every_edit_of_a_manifest_is_found_or_changes_nothing(tmp_path, kind, renumbered):
    folder = tmp_path / "saved"
    data = HeteroData()
    data["paper"].x, data["author"].num_nodes = node_rows(torch.arange(6)), 5
    for edge_type in (("paper", "cites", "paper"), ("author", "writes", "paper")):
        data[edge_type].edge_index = edges_of(5, 8)
        data[edge_type].time = torch.arange(8)
    order = TypedOrder(paper=by_score(torch.arange(6)), author=by_score(torch.arange(5))) if renumbered else None
    kind.from_data(data, order=order).save(folder)
    manifest = folder / files.MANIFEST
    text, expected = manifest.read_text(), content(kind.open(folder))
    found = []
    for edited in edits(text, 700):
        manifest.write_text(edited)
        for verify in (True, False):
            try:
                opened = kind.open(folder, verify)
            except ValueError as error:
                found.append(str(error))
            else:
                assert content(opened) == expected, edited
    assert len(found) > 1200
    assert all(error.startswith(f"{manifest}: ") for error in found)
