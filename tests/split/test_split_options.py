"""Each option of plans, their stores and models reaches what it is for."""

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.data import make_data
from helpers.narrow import CLASSES, FEATURES
from helpers.slow import quick

from torch_gnnscale import split
from torch_gnnscale.nn.layered import default_call
from torch_gnnscale.split import parallelize, planning, plans


def planned(*positional, **options) -> split.Plan:
    given = {"weights": "random", "epochs": 1, "batch_size": 16, **options}
    return split.plan(make_data(), torch.arange(40), *(positional or ([3, 2], 2)), **given)


ABOUT = {
    "load": ("edges", "layers"),
    "batch_size": (16, 7),
    "epochs": (1, 2),
    "seed": (0, 5),
    "weights": ("random", "edge"),
}


@pytest.mark.parametrize("name", quick(list(ABOUT), "load", "batch_size", "epochs", "seed"))
def test_each_option_is_in_the_plan(name):
    if name == "weights":
        pytest.importorskip("pymetis")
    default, given = ABOUT[name]
    before, after = planned().about, planned(**{name: given}).about
    assert (before.pop(name), after.pop(name)) == (default, given)
    before.pop("sampler"), after.pop("sampler")
    assert before == after


@pytest.mark.parametrize(
    ("name", "value", "seen"),
    [("replace", True, True), ("num_neighbors", [4], [4]), ("method", "labor", "labor")],
)
def test_how_it_is_drawn_is_in_the_plan(name, value, seen):
    positional = (value, 2) if name == "num_neighbors" else ([3, 2], 2)
    options = {} if name == "num_neighbors" else {name: value}
    found = planned(*positional, **options).about["sampler"]
    assert found[name] == seen
    assert found != planned().about["sampler"]


def test_the_bar_is_shown_if_it_is_asked_for(monkeypatch):
    asked = []
    plain = planning.presample

    def presample(loader, epochs, progress):
        asked.append((list(epochs), progress))
        return plain(loader, epochs)

    monkeypatch.setattr(planning, "presample", presample)
    planned(progress=True)
    planned(epochs=2)
    first = planning.FIRST_EPOCH
    assert asked == [([first], True), ([first, first + 1], False)]


GIVEN = {
    "gpu": "1GiB", "host": "2GiB", "disk": "there", "names": ["x"], "device": "cpu", "timeout": 7.0,
}  # fmt: skip
DEFAULTS = {"gpu": 0, "host": None, "disk": None, "names": None, "device": None, "timeout": 600.0}


@pytest.mark.parametrize("name", GIVEN)
def test_each_option_of_a_store_arrives(name, monkeypatch):
    monkeypatch.setattr(plans, "own_store", lambda *given: given)
    plan, data = planned(epochs=0), make_data()
    owners, parts, rows, found, *options = plan.store(data, **{name: GIVEN[name]})
    assert (owners is plan.owners, parts, rows is plan.rows, found is data) == (True, 2, True, True)
    assert dict(zip(DEFAULTS, options, strict=True)) == {**DEFAULTS, name: GIVEN[name]}


def test_options_of_a_model_arrive():
    def call(model, batch):
        return model(batch.x, batch.edge_index)

    model = pyg_nn.SAGEConv(FEATURES, CLASSES)
    for given, expected in (
        ({}, ("auto", 600.0, default_call)),
        ({"transport": "gloo", "timeout": 9.0, "call": call}, ("gloo", 9.0, call)),
    ):
        made = parallelize(model, **given)
        assert (made.transport, made.timeout, made.call) == expected
        assert made._connection._held.rendezvous._timeout == expected[1]
        assert made.module is model
        made.close()
