import json

import numpy as np
import pytest
import torch
from helpers import forked

from torch_gnnscale import FeatureStore, GraphStore, files


def edit_manifest(folder, edit):
    """As a writer with a fault would have written it: with the checksum of what it says."""
    file = folder / files.MANIFEST
    manifest = json.loads(file.read_text())
    edit(manifest)
    manifest["crc32"] = files._checksum(manifest)
    file.write_text(json.dumps(manifest))


def overwrite(file, at, value):
    content = bytearray(file.read_bytes())
    content[at : (at + len(value)) or None] = value
    file.write_bytes(content)


def resave(file, array):
    np.save(file, array)


def nest_header(file):
    """A header of more brackets than Python parses."""
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': " + b"[" * 4000 + b"]" * 4000 + b"}\n"
    file.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


def move_data(file):
    """A header that is a byte longer."""
    content = file.read_bytes()
    size = int.from_bytes(content[8:10], "little")
    file.write_bytes(
        content[:8] + (size + 1).to_bytes(2, "little") + content[10 : 9 + size] + b" \n" + content[10 + size :]
    )


# Name: (what is done to the directory, the error, the file that its message names, part of the message).
DAMAGES = {
    "no manifest": (lambda f: (f / files.MANIFEST).unlink(), FileNotFoundError, files.MANIFEST, "not found"),
    "no array": (lambda f: (f / "0.npy").unlink(), FileNotFoundError, "0.npy", "not found"),
    "truncated": (
        lambda f: (f / "0.npy").write_bytes((f / "0.npy").read_bytes()[:-1]), ValueError, "0.npy", "truncated",
    ),
    "extended": (
        lambda f: (f / "0.npy").write_bytes((f / "0.npy").read_bytes() + b"!"), ValueError, "0.npy", "bytes, found",
    ),
    "empty file": (lambda f: (f / "0.npy").write_bytes(b""), ValueError, "0.npy", "expected a .npy file"),
    "cut in the header": (
        lambda f: (f / "0.npy").write_bytes((f / "0.npy").read_bytes()[:40]), ValueError, "0.npy", "expected a .npy",
    ),
    "magic": (lambda f: overwrite(f / "0.npy", 0, b"XX"), ValueError, "0.npy", "expected a .npy file"),
    "npy version": (lambda f: overwrite(f / "0.npy", 6, b"\x09"), ValueError, "0.npy", "expected a .npy file"),
    "header length": (lambda f: overwrite(f / "0.npy", 8, b"\xff\xff"), ValueError, "0.npy", "expected a .npy file"),
    "header text": (lambda f: overwrite(f / "0.npy", 12, b"\x00{[(\xff"), ValueError, "0.npy", "expected a .npy file"),
    "open bracket": (lambda f: overwrite(f / "0.npy", 10, b"((((("), ValueError, "0.npy", "expected a .npy file"),
    "header shape": (lambda f: resave(f / "0.npy", np.zeros((99, 3))), ValueError, "0.npy", "expected float64"),
    "header dtype": (
        lambda f: resave(f / "0.npy", np.zeros((100, 3), np.float32)), ValueError, "0.npy", "found float32",
    ),
    "other dtype of that size": (
        lambda f: resave(f / "0.npy", np.zeros((100, 3), np.int64)), ValueError, "0.npy", "",
    ),
    "big endian": (lambda f: resave(f / "0.npy", np.zeros((100, 3), ">f8")), ValueError, "0.npy", ""),
    "data at an odd place": (
        lambda f: move_data(f / "0.npy"), ValueError, "0.npy", "expected the data at a multiple of 8 bytes, found",
    ),
    "fortran order": (
        lambda f: resave(f / "0.npy", np.asfortranarray(np.zeros((100, 3)))), ValueError, "0.npy", "expected float64",
    ),
    "no JSON": (lambda f: (f / files.MANIFEST).write_text("{"), ValueError, files.MANIFEST, "expected the manifest"),
    "bytes": (lambda f: (f / files.MANIFEST).write_bytes(b"\xff\xfe\x00"), ValueError, files.MANIFEST, "expected the"),
    "nested too deep": (
        lambda f: (f / files.MANIFEST).write_text("[" * 100_000), ValueError, files.MANIFEST, "expected the manifest",
    ),
    "header nested too deep": (
        lambda f: nest_header(f / "0.npy"), ValueError, "0.npy", "expected a .npy file",
    ),
    "a list": (lambda f: (f / files.MANIFEST).write_text("[1]"), ValueError, files.MANIFEST, "expected the manifest"),
    "a number": (lambda f: (f / files.MANIFEST).write_text("3"), ValueError, files.MANIFEST, "expected the manifest"),
    "other JSON": (lambda f: (f / files.MANIFEST).write_text('{"a": 1}'), ValueError, files.MANIFEST, "expected the"),
    "other format": (lambda f: edit_manifest(f, lambda m: m.update(format=1)), ValueError, files.MANIFEST,
                     "expected format 2, found 1"),
    "edited": (
        lambda f: overwrite(f / files.MANIFEST, (f / files.MANIFEST).read_bytes().index(b"paper"), b"taper"),
        ValueError, files.MANIFEST, "the checksum of its content differs",
    ),
    "other kind": (lambda f: edit_manifest(f, lambda m: m.update(kind="graph")), ValueError, files.MANIFEST,
                   "expected a directory of kind 'features', found 'graph'"),
    "arrays a list": (lambda f: edit_manifest(f, lambda m: m.update(arrays=[])), ValueError, files.MANIFEST, ""),
    "entry a list": (lambda f: edit_manifest(f, lambda m: m["arrays"].update({"0": []})), ValueError, "0.npy", ""),
    "meta": (
        lambda f: edit_manifest(f, lambda m: m.update(meta=[])), ValueError, files.MANIFEST, "expected the manifest of",
    ),
    "meta entry": (
        lambda f: edit_manifest(f, lambda m: m["meta"].update(tensors=[{"group": None}])), ValueError, files.MANIFEST,
        "expected saved features",
    ),
    "too many tensors": (
        lambda f: edit_manifest(f, lambda m: m["meta"]["tensors"].append({"group": None, "name": "z"})),
        ValueError, files.MANIFEST, "expected saved features",
    ),
    "dtype": (lambda f: edit_manifest(f, lambda m: m["arrays"]["0"].update(dtype="int32")), ValueError, "0.npy", ""),
    "dtype of that size": (
        lambda f: edit_manifest(f, lambda m: m["arrays"]["0"].update(dtype="int64")), ValueError, "0.npy", "",
    ),
    "no dtype": (lambda f: edit_manifest(f, lambda m: m["arrays"]["0"].update(dtype="nn")), ValueError, "0.npy", ""),
    "absent dtype": (lambda f: edit_manifest(f, lambda m: m["arrays"]["0"].pop("dtype")), ValueError, "0.npy", ""),
    "shape": (lambda f: edit_manifest(f, lambda m: m["arrays"]["0"].update(shape=[3, 100])), ValueError, "0.npy", ""),
    "negative shape": (
        lambda f: edit_manifest(f, lambda m: m["arrays"]["0"].update(shape=[-100, -3])), ValueError, "0.npy", "",
    ),
    "shape a word": (
        lambda f: edit_manifest(f, lambda m: m["arrays"]["0"].update(shape="ab")), ValueError, "0.npy", "",
    ),
}  # fmt: skip
VERIFIED_ONLY = {
    "first byte": (lambda f: overwrite(f / "0.npy", 128, b"\x55"), ValueError, "0.npy", "checksum of block 0"),
    "last byte": (lambda f: overwrite(f / "0.npy", -1, b"\x55"), ValueError, "0.npy", "checksum of block 0"),
    "a checksum more": (
        lambda f: edit_manifest(f, lambda m: m["arrays"]["0"]["crc32"].append(0)), ValueError, files.MANIFEST,
        "expected 1 checksums of 0.npy, found [",
    ),
    "no checksums": (lambda f: edit_manifest(f, lambda m: m["arrays"]["0"].pop("crc32")), ValueError, "0.npy", ""),
    "fewer checksums": (
        lambda f: edit_manifest(f, lambda m: m["arrays"]["0"].update(crc32=[])), ValueError, "0.npy", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", DAMAGES)
def test_damage(features, name, verify):
    damage, error, file, message = DAMAGES[name]
    damage(features)
    with pytest.raises(error) as caught:
        FeatureStore.open(features, verify)
    assert file in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", VERIFIED_ONLY)
def test_damage_that_only_verifying_finds(features, name):
    damage, error, file, message = VERIFIED_ONLY[name]
    damage(features)
    with pytest.raises(error) as caught:
        FeatureStore.open(features)
    assert file in str(caught.value)
    assert message in str(caught.value)
    assert FeatureStore.open(features, verify=False).get_tensor_size(group_name="paper", attr_name="x") == (100, 3)


def test_every_block_is_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_BLOCK", 1000)
    files.save(tmp_path / "a", "test", {"x": torch.arange(1000)}, {})
    overwrite(tmp_path / "a" / "x.npy", 128 + 5500, b"\x77")
    with pytest.raises(ValueError, match=r"x\.npy: checksum of block 5 "):
        files.load(tmp_path / "a", "test")


def test_opening_the_other_kind(features, graph):
    with pytest.raises(ValueError, match="expected a directory of kind 'graph', found 'features'"):
        GraphStore.open(features)
    with pytest.raises(ValueError, match="expected a directory of kind 'features', found 'graph'"):
        FeatureStore.open(graph)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        GraphStore.open(graph / "nowhere")


# Malformed graphs ####################################################################################################


def save_relation(folder, colptr, edges, **meta):
    colptr, edges = torch.as_tensor(colptr), torch.as_tensor(edges, dtype=torch.int32)
    entry = {"edge_type": None, "num_src": 3, "num_dst": 3, "num_edges": 4, **meta}
    files.save(folder, "graph", {"0_colptr": colptr, "0_edges": edges}, {"relations": [entry]})


GOOD = [0, 2, 3, 4], [[1, 0], [2, 1], [0, 2], [1, 3]]
MALFORMED = {
    "colptr starts late": ([1, 2, 3, 4], GOOD[1]),
    "colptr starts below 0": ([-5, 2, 3, 4], GOOD[1]),
    "colptr falls": ([0, 3, 2, 4], GOOD[1]),
    "colptr ends late": ([0, 2, 3, 9], GOOD[1]),
    "colptr far away": ([0, 2, 1 << 60, 4], GOOD[1]),
    "colptr leads to overflow": ([0, -(1 << 62), 1 << 62, 4], GOOD[1]),
    "edge id too large": (GOOD[0], [[1, 0], [2, 1], [0, 4], [1, 3]]),
    "negative edge id": (GOOD[0], [[1, 0], [2, 1], [0, -1], [1, 3]]),
    "source too large": (GOOD[0], [[1, 0], [2, 1], [3, 2], [1, 3]]),
    "source far away": (GOOD[0], [[1, 0], [2, 1], [0, 2], [2**31 - 1, 3]]),
    "negative source": (GOOD[0], [[1, 0], [-1, 1], [0, 2], [1, 3]]),
}
SAMPLE = """
import sys, torch
from torch_gnnscale import GraphStore, NeighborSampler, ops
from torch_geometric.sampler import NodeSamplerInput

for folder in sys.argv[1:]:
    csc = GraphStore.open(folder, verify=False).relation()
    for fanouts in ([-1, -1], [1, 1, 1, 1], [2, 5]):
        for replace in (False, True):
            try:
                ops.sample_neighbors(csc.relations(), [torch.arange(3)], fanouts, 1, replace=replace)
            except RuntimeError as error:
                print("refused", flush=True)
            else:
                print("sampled", flush=True)
"""


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_graph_is_found_when_it_is_opened(tmp_path, name):
    save_relation(tmp_path / "graph", *MALFORMED[name])
    with pytest.raises(ValueError, match=r"0_\*\.npy: expected a saved graph, found (colptr|row|edge_id)\[") as caught:
        GraphStore.open(tmp_path / "graph")
    assert str(tmp_path) in str(caught.value)


@pytest.mark.slow
def test_a_malformed_graph_opened_unverified_is_found_when_it_is_sampled(tmp_path):
    folders = [str(tmp_path / str(i)) for i in range(len(MALFORMED))]
    for folder, relation in zip(folders, MALFORMED.values(), strict=True):
        save_relation(folder, *relation)
    done = forked.run(SAMPLE, *folders)
    assert done.returncode == 0, done.stderr
    answers = done.stdout.split()
    assert len(answers) == 6 * len(folders)
    for i, name in enumerate(MALFORMED):
        # Taking all neighbors of all nodes meets any damage but an edge that belongs to no node.
        unseen = name == "colptr starts late" or "edge id" in name  # the sampler hands ids of edges on unread
        assert answers[6 * i] == ("sampled" if unseen else "refused"), name


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_dst": 4}, "its counts say"),
        ({"num_edges": 5}, "its counts say"),
        ({"num_src": "many"}, "many"),
        ({"num_src": None}, "expected a saved graph"),
        ({"edge_type": 3}, "expected a saved graph"),
        ({"num_src": -1}, "expected a saved graph"),
    ],
    ids=str,
)
def test_wrong_counts(tmp_path, change, message, verify):
    save_relation(tmp_path / "graph", *GOOD, **change)
    with pytest.raises(ValueError, match=message) as caught:
        GraphStore.open(tmp_path / "graph", verify)
    assert str(caught.value).startswith(f"{tmp_path / 'graph' / files.MANIFEST}: ")


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    "arrays",
    [
        {"0_colptr": torch.tensor(GOOD[0], dtype=torch.int32), "0_edges": torch.tensor(GOOD[1])},
        {"0_colptr": torch.tensor(GOOD[0]), "0_edges": torch.tensor(GOOD[1]).double()},
        {"0_colptr": torch.tensor(GOOD[0]), "0_edges": torch.tensor(GOOD[1])[:, :1].contiguous()},
        {"0_colptr": torch.tensor(GOOD[0]), "0_row": torch.zeros(4, dtype=torch.int32), "0_edge_id": torch.zeros(3)},
        {"0_colptr": torch.tensor(GOOD[0])},
        {"0_edges": torch.tensor(GOOD[1])},
    ],
    ids=["int32 colptr", "float edges", "one column", "short edge ids", "no edges", "no colptr"],
)
def test_arrays_that_are_no_graph(tmp_path, arrays, verify):
    entry = {"edge_type": None, "num_src": 3, "num_dst": 3, "num_edges": 4}
    files.save(tmp_path / "graph", "graph", arrays, {"relations": [entry]})
    with pytest.raises(ValueError, match=r"gnnscale\.json: expected a saved graph"):
        GraphStore.open(tmp_path / "graph", verify)
