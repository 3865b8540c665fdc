"""Directories of parts whose checksums are right, and in which something else is wrong."""

import copy
import json
import re
import shutil
from functools import partial

import pytest
import torch
from helpers import crafted
from helpers.cluster import cluster
from helpers.parts import homogeneous
from torch_geometric.data import HeteroData

from torch_gnnscale import NeighborLoader, files, partition
from torch_gnnscale.distributed import open_part
from torch_gnnscale.distributed.buffer import check_halo
from torch_gnnscale.split import Plan


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A directory of one part, and one of two parts of edges."""
    path, data = tmp_path_factory.mktemp("whole"), homogeneous(60)
    links = {"train": torch.arange(0, data.num_edges, 40)}
    arguments = {"method": "random", "links": links, "graph_attrs": ["time", "kind"]}
    partition.write(data, path / "replicated", 1, **arguments)
    partition.write(data, path / "partitioned", 2, topology="partitioned", **arguments)
    return path


def change(path, name, how):
    """Changes an array of a directory of parts, whose checksums are right afterwards."""
    folder, _, array = name.rpartition("/")
    arrays, _ = files.load(path / folder, json.loads((path / folder / files.MANIFEST).read_text())["kind"])
    crafted.put(path / folder, array, how(arrays[array].clone()))
    crafted.seal_all(path)


def set_to(at, value, array):
    array.view(-1)[at] = value
    return array


# The array that is changed: (how, what the error says was expected).
SHAPES = {
    "book/bounds_0": (partial(set_to, 0, 1), "bounds that rise from 0 to 60, found others"),
    "book/edge_bounds_0": (lambda a: a[:-1], "torch.int64 of shape (3), found torch.int64 of (2,)"),
    "ids/stored_0": (lambda a: a[:-1], "torch.int64 of shape (60), found torch.int64 of (59,)"),
    "ids/edges_0": (lambda a: a.int(), "torch.int64 of shape (1500), found torch.int32 of (1500,)"),
    "ids/seeds_0": (lambda a: a[1:], "torch.int64 of shape ("),
    "ids/links_0": (lambda a: a[:1], "torch.int64 of shape (2, 38), found torch.int64 of (1, 38)"),
    "attrs/rows_3": (lambda a: a[:9], "torch.int64 of shape (60), found torch.int64 of (9,)"),
    "part-00000/rows_0": (lambda a: a[:-1], "torch.float64 of shape (30, 3), found torch.float64 of (29, 3)"),
    "part-00000/user_ids_0": (lambda a: a[:-1], "torch.int64 of shape (30), found torch.int64 of (29,)"),
    "part-00000/degree_0": (lambda a: torch.cat([a, a[:1]]), "torch.int64 of shape ("),
    "part-00000/links_0": (lambda a: a.view(-1), "torch.int64 of shape (2, any), found torch.int64 of ("),
    "part-00000/0_colptr": (lambda a: a[:-1], "torch.int64 of shape (31), found torch.int64 of (30,)"),
    "part-00000/0_edges": (lambda a: a[:-1], "torch.int32 or torch.int64 of shape ("),
}  # fmt: skip


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_arrays_are_as_the_book_says(whole, tmp_path, name, verify):
    how, message = SHAPES[name]
    path = shutil.copytree(whole / "partitioned", tmp_path / "parts")
    change(path, name, how)
    with pytest.raises(ValueError, match="^" + re.escape(f"{path}/{name}.npy: expected {message}")):
        partition.open_parts(path, verify).part(0)


def rows_of(path, **options):
    """The rows of all batches of a loader over the only part."""
    with open_part(path, verify=False) as part:
        loader = NeighborLoader((part.features, part.graph), [4], part.input_nodes("train"), batch_size=60, **options)
        return [batch.edge_attr for batch in loader]


@pytest.mark.parametrize("value", [-1, 1500, 1 << 40, -(1 << 62)])
def test_edges_that_lead_outside(whole, tmp_path, value):
    """Rows of edges are not read where a file says."""
    path = shutil.copytree(whole / "replicated", tmp_path / "parts")
    assert len(rows_of(path)) == 1
    change(path, "ids/edges_0", lambda positions: torch.full_like(positions, value))
    message = rf"^{path}/ids/edges_0.npy: expected numbers in \[0, 1500\), found {value}$"
    with pytest.raises(ValueError, match=message):
        rows_of(path, prefetch=0)


# The array that is changed, by the directory: (entry, value, what the error says was expected).
OUTSIDE = {
    "partitioned/part-00000/0_colptr": (3, 1 << 40, "column pointers, found colptr[4] = "),
    "replicated/graph/0_colptr": (3, 1 << 40, "column pointers, found colptr[4] = "),
    "partitioned/part-00000/seeds_0": (0, -1, "numbers in [0, 60), found -1"),
    "partitioned/part-00000/links_0": (1, 60, "numbers in [0, 60), found 60"),
    "partitioned/part-00000/link_ids_0": (0, 1500, "numbers in [0, 1500), found 1500"),
    "partitioned/part-00000/user_ids_0": (2, 1 << 40, "numbers in [0, 60), found 1099511627776"),
    "replicated/ids/seeds_0": (0, 60, "numbers in [0, 60), found 60"),
    "replicated/ids/links_0": (-1, -1, "numbers in [0, 60), found -1"),
    "replicated/ids/link_ids_0": (0, -1, "numbers in [0, 1500), found -1"),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_arrays_that_lead_outside(whole, tmp_path, name):
    """They are read where nobody verifies the files, too."""
    (at, value, message), (kind, _, array) = OUTSIDE[name], name.partition("/")
    path = shutil.copytree(whole / kind, tmp_path / "parts")
    change(path, array, partial(set_to, at, value))
    parts = partition.open_parts(path, verify=False)
    with pytest.raises(ValueError, match="^" + re.escape(f"{path}/{array}.npy: expected {message}")):
        _ = parts.part(0), parts.input_nodes("train"), parts.links("train"), parts.link_ids("train")


@pytest.mark.parametrize(("column", "limit"), [(0, 60), (1, 1500)])
def test_edges_of_a_part_are_verified(whole, tmp_path, column, limit):
    """Their sources and ids."""
    path = shutil.copytree(whole / "partitioned", tmp_path / "parts")
    change(path, "part-00000/0_edges", lambda edges: edges.index_fill_(1, torch.tensor([column]), limit))
    message = rf"^{path}/part-00000/0_edges.npy: expected numbers in \[0, {limit}\), found {limit}$"
    with pytest.raises(ValueError, match=message):
        partition.open_parts(path).part(0)
    partition.open_parts(path).part(0, verify=False)


@pytest.mark.parametrize(("name", "value"), [("weight", -1.0), ("time", float("nan"))])
def test_weights_and_times_of_a_part(tmp_path, name, value):
    data = homogeneous(60)
    data[name] = torch.ones(data.num_edges)
    partition.write(data, tmp_path, 1, topology="partitioned")
    rows = [
        attr["name"] for attr in json.loads((tmp_path / "book" / files.MANIFEST).read_text())["meta"]["given"]["rows"]
    ]
    array = f"part-00000/rows_{rows.index(name)}"
    change(tmp_path, array, partial(set_to, 7, value))
    with open_part(tmp_path, verify=False) as part:
        options = {f"{name}_attr": name, "batch_size": 60}
        options |= {"input_time": torch.ones(60)} if name == "time" else {}
        with pytest.raises(ValueError, match=rf"^rank 0: ValueError: {tmp_path}/{array}.npy: {name}_attr='{name}'"):
            NeighborLoader((part.features, part.graph), [4], part.input_nodes(None), **options)


def test_of_several_relations_with_wrong_weights_the_first_is_named(tmp_path):
    data = HeteroData()
    for of in "abc":
        data[of].num_nodes = 4
        data["a", f"to {of}", of].edge_index = torch.arange(4).repeat(2, 1)
        data["a", f"to {of}", of].weight = torch.tensor([1.0, 1.0, 1.0, 1.0 if of == "a" else -1.0])
    partition.write(data, tmp_path, 1, topology="partitioned")
    with open_part(tmp_path) as part:
        stores, seeds = (part.features, part.graph), part.input_nodes(None, node_type="a")
        with pytest.raises(ValueError, match=r"weight_attr='weight'.*'to b'"):
            NeighborLoader(stores, [4], seeds, weight_attr="weight", batch_size=4)


@pytest.mark.parametrize("value", [-1, 1500])
def test_edge_ids_of_weights(whole, tmp_path, value):
    """An id is no way to another edge's weight."""
    path = shutil.copytree(whole / "replicated", tmp_path / "parts")
    change(path, "graph/0_edges", lambda edges: edges.index_fill_(1, torch.tensor([1]), value))
    with open_part(path, verify=False) as part:
        message = rf"^edge_id\[0\] = {value}: expected ids of edges in \[0, 1500\)$"
        with pytest.raises(ValueError, match=message):
            NeighborLoader((part.features, part.graph), [4], part.input_nodes("train"), weight_attr="kind")


def test_nodes_that_lead_outside(whole, tmp_path):
    path = shutil.copytree(whole / "partitioned", tmp_path / "parts")
    change(path, "ids/stored_0", partial(set_to, 7, 60))
    parts = partition.open_parts(path, verify=False)
    assert parts.to_stored(torch.tensor([[6], [8]])).shape == (2, 1)
    with pytest.raises(ValueError, match=rf"^{path}/ids/stored_0.npy: expected numbers in \[0, 60\), found 60$"):
        parts.to_stored(torch.tensor([6, 7]))


def test_a_graph_of_another_book(whole, tmp_path):
    """Parts that begin elsewhere in the whole graph than the book says."""
    path = tmp_path / "parts"
    partition.write(homogeneous(60), path, 2, method="random")
    change(path, "book/edge_bounds_0", lambda bounds: bounds + torch.tensor([0, 1, 0]))
    message = f"^{path}/graph/gnnscale.json: expected the graph of the book, found relation None: parts that begin at "
    with pytest.raises(ValueError, match=message):
        partition.open_parts(path)


@pytest.mark.parametrize(
    "how",
    [
        lambda ids: ids.flip(0), partial(set_to, -1, 60), partial(set_to, 0, -1), lambda ids: ids.fill_(0),
        partial(set_to, 0, 0), lambda ids: torch.cat([ids[:1], ids[:-1]]),
    ],
)  # fmt: skip
def test_a_halo_that_is_none(whole, tmp_path, how):
    path = shutil.copytree(whole / "partitioned", tmp_path / "parts")
    change(path, "part-00000/halo_0", how)
    parts = partition.open_parts(path)
    with pytest.raises(ValueError, match=r"^part 0: expected a halo of rising stored ids of other parts' nodes, found"):
        check_halo(parts.part(0).halo[None], parts.book, 0, None)


def opened_with(path, buffer):
    """What a rank raises that opens its part."""
    try:
        open_part(path, buffer=buffer).close()
    except ValueError as error:
        return str(error)


@pytest.mark.slow
def test_a_halo_that_is_none_is_refused_on_all_ranks_with_a_buffer(whole, tmp_path):
    path = shutil.copytree(whole / "partitioned", tmp_path / "parts")
    change(path, "part-00001/halo_0", lambda ids: ids.flip(0))
    text = "rank 1: ValueError: part 1: expected a halo of rising stored ids of other parts' nodes, found others"
    assert cluster(2).run(opened_with, path, 0.5) == [text] * 2
    assert cluster(2).run(opened_with, path, None) == [None] * 2


# Manifests ###########################################################################################################


def without_each(value, place=()):
    """(the name of the place, a copy without it) of each entry of dictionaries, at all depths."""
    for name, inner in value.items():
        rest = copy.deepcopy(value)
        del rest[name]
        yield (*place, name), rest
        if isinstance(inner, dict):
            for below, changed in without_each(inner, (*place, name)):
                rest = copy.deepcopy(value)
                rest[name] = changed
                yield below, rest


def refusal(path):
    """The message with which the only part is refused; empty if it is opened."""
    try:
        partition.open_parts(path).part(0)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["book", "complete", "graph", "part-00000"])
def test_manifests_that_lack_an_entry(whole, tmp_path, folder):
    """The file's name, whatever is missing in it; what is not read may be missing."""
    path = shutil.copytree(whole / "replicated", tmp_path / "parts")
    manifest = json.loads((path / folder / files.MANIFEST).read_text())
    found = {}
    for place, meta in without_each(manifest["meta"]):
        crafted.seal(path / folder, {**copy.deepcopy(manifest), "meta": meta})
        if folder != "complete":
            crafted.seal_all(path)
        found[place[-1]] = refusal(path)
    needed = {
        "book": {"given", "parts", "num_nodes", "relations", "rows", "splits", "links", "about", "topology", "report",
                 "assigned", "folders", "ids", "graph", "largest_degree", "graph_attrs"},
        "complete": {"fingerprint", "parts"}, "graph": {"relations"}, "part-00000": {"part"},
    }  # fmt: skip
    for name in needed[folder]:
        assert found[name].startswith(f"{path}/"), (name, found[name])
        assert "expected" in found[name]


@pytest.mark.parametrize("wrong", ["many", None, [["many"]]], ids=repr)
def test_a_report_that_cannot_be_printed(whole, tmp_path, wrong):
    """Where parts are opened, and not where they are printed."""
    path = shutil.copytree(whole / "replicated", tmp_path / "parts")
    manifest = json.loads((path / "book" / files.MANIFEST).read_text())
    refused = 0
    for name in manifest["meta"]["report"]:
        changed = copy.deepcopy(manifest)
        changed["meta"]["report"][name] = wrong
        crafted.seal(path / "book", changed)
        crafted.seal_all(path)
        if not (said := refusal(path)):
            str(partition.open_parts(path).report)
        else:
            assert said.startswith(f"{path}/book/{files.MANIFEST}: expected "), (name, said)
            refused += 1
    assert refused > 0


def test_a_plan_that_lacks_an_entry(tmp_path):
    counts = torch.arange(4)
    plan = Plan(
        owners=torch.tensor([0, 1, 1, 0], dtype=torch.int32), parts=2, node_load=counts, edge_load=counts, rows=counts,
        cut=3, about={},
    )  # fmt: skip
    plan.save(tmp_path / "plan")
    manifest = json.loads((tmp_path / "plan" / files.MANIFEST).read_text())
    for name in manifest["meta"]:
        changed = copy.deepcopy(manifest)
        del changed["meta"][name]
        crafted.seal(tmp_path / "plan", changed)
        message = rf"^{tmp_path}/plan/gnnscale.json: expected a saved split plan, found no entry '{name}'$"
        with pytest.raises(ValueError, match=message):
            Plan.open(tmp_path / "plan")
    crafted.seal(tmp_path / "plan", manifest)
    crafted.put(tmp_path / "plan", "owners", torch.tensor([0, 1, 2, 0], dtype=torch.int32))
    with pytest.raises(ValueError, match=rf"^{tmp_path}/plan/owners.npy: expected parts in \[0, 2\), found 2$"):
        Plan.open(tmp_path / "plan")
    crafted.put(tmp_path / "plan", "rows", counts[1:])
    with pytest.raises(ValueError, match=rf"^{tmp_path}/plan/gnnscale.json: expected a saved split plan, found owners"):
        Plan.open(tmp_path / "plan")


@pytest.mark.parametrize("end", ["num_src", "num_dst"])
def test_relations_whose_ends_the_book_counts_otherwise(whole, tmp_path, end):
    path = shutil.copytree(whole / "replicated", tmp_path / "parts")
    manifest = json.loads((path / "book" / files.MANIFEST).read_text())
    relation = manifest["meta"]["given"]["relations"][0]
    counts = [relation["num_src"], relation["num_dst"]]
    relation[end] += 1
    crafted.seal(path / "book", manifest)
    crafted.seal_all(path)
    found = [relation["num_src"], relation["num_dst"]]
    assert refusal(path).startswith(f"{path}/book/{files.MANIFEST}: expected ")
    assert f"found {found} nodes at the ends of None, of which there are {counts}" in refusal(path)
