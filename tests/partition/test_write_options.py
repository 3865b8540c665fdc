"""Each option of ``partition.write`` and ``assign`` reaches what it is for."""

import numpy as np
import pytest
import torch
from helpers.data import make_data

from torch_gnnscale import partition
from torch_gnnscale.partition import directory, open_parts, write, writing


class Asked(Exception):
    """What a function was called with."""


GIVEN = {
    "method": "ranges",
    "topology": "partitioned",
    "splits": {"mine": [5, 3]},
    "links": {"some": [[1, 2, 3], [4, 5, 6]]},
    "graph_attrs": ["y"],
    "balance": ["edges"],
    "seed": 7,
    "about": {"a": [1, None]},
}
IN_BOOK = {**GIVEN, "splits": [[None, "mine", 2]], "links": [[None, "some", 3]], "parts": 3}


@pytest.mark.parametrize("name", GIVEN)
def test_each_option_is_in_the_book(tmp_path, name):
    default = {"method": "random"}
    write(make_data(), tmp_path / "default", 3, only=[], **default)
    write(make_data(), tmp_path / "given", 3, only=[], **{**default, name: GIVEN[name]})
    before, after = (directory.load_book(tmp_path / folder)[1]["given"] for folder in ("default", "given"))
    assert before.pop(name) != after[name]
    assert after.pop(name) == IN_BOOK[name]
    assert before == after


@pytest.mark.slow
def test_a_seed_of_numpy_is_that_integer(tmp_path):
    for name, seed in (("given", np.int64(3)), ("same", 3)):
        write(make_data(), tmp_path / name, 3, method="random", seed=seed)
    with open_parts(tmp_path / "given") as given, open_parts(tmp_path / "same") as same:
        assert given.fingerprint == same.fingerprint


def test_the_defaults_in_the_book(tmp_path):
    write(make_data(), tmp_path / "parts", 3, only=[], owners=[0] * 200)
    given = directory.load_book(tmp_path / "parts")[1]["given"]
    found = {name: given[name] for name in IN_BOOK}
    assert found == {
        "method": "owners", "topology": "replicated", "splits": [], "links": [], "graph_attrs": [], "seed": 0,
        "balance": ["nodes", "edges", "train"], "about": {}, "parts": 3,
    }  # fmt: skip


def test_options_reach_the_method_and_the_writer(tmp_path, monkeypatch):
    asked = []

    def assign(relations, num_nodes, parts, **options):
        raise Asked(list(relations), dict(num_nodes), parts, options)

    class Writer(writing.PartWriter):
        def __init__(self, path, inputs, memory):
            asked.append(memory)
            super().__init__(path, inputs, memory)

    monkeypatch.setattr(writing, "assign", assign)
    monkeypatch.setattr(writing, "PartWriter", Writer)
    given = {"method": "coarse", "balance": ["nodes"], "seed": 5, "memory": 12345}
    with pytest.raises(Asked) as raised:
        write(make_data(), tmp_path / "parts", 3, splits={"train": [4, 9]}, **given)
    relations, num_nodes, parts, options = raised.value.args
    train = options.pop("train")
    assert (relations, num_nodes, parts, options) == ([None], {None: 200}, 3, given)
    assert train[None].tolist() == [4, 9]
    with pytest.raises(Asked) as raised:
        write(make_data(), tmp_path / "parts", 3)
    options = raised.value.args[3]
    assert options == {"method": "auto", "balance": ("nodes", "edges", "train"), "seed": 0, "memory": None, "train": {}}
    assert asked == [12345, 1 << 30]


def test_the_bar_is_shown_if_it_is_asked_for(tmp_path, monkeypatch):
    shown = []

    def tqdm(parts, desc, unit, disable):
        shown.append((list(parts), desc, unit, disable))
        return parts

    monkeypatch.setattr(writing, "tqdm", tqdm)
    write(make_data(), tmp_path / "parts", 3, only=[1, 0, 1], method="random", progress=True)
    write(make_data(), tmp_path / "parts", only=[2], method="random")
    assert shown == [([0, 1], "parts", " parts", None), ([2], "parts", " parts", True)]


def test_the_book_tells_how_parts_were_chosen(tmp_path):
    write(make_data(), tmp_path / "parts", 3, method="random", seed=4)
    assigned, report = partition.read_report(tmp_path / "parts")
    assert assigned.keys() == {"method", "seconds", "peak_bytes"}
    assert assigned["method"] == "random"
    assert assigned["peak_bytes"] > 1 << 20
    with open_parts(tmp_path / "parts") as parts:
        assert parts.assigned == assigned
        assert parts.report == report
        expected = partition.assign(parts.graph()._relations, {None: 200}, 3, method="random", seed=4).owner[None]
        assert torch.equal(parts.book.part_of(parts.stored_ids()).to(torch.int32), expected)
