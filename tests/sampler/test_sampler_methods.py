"""Samplers by the name of their method, and the options that loaders have in common."""

import inspect
import re
from dataclasses import fields

import pytest
import torch
from helpers.data import make_data, plain

from torch_gnnscale import LinkNeighborLoader, NeighborLoader, NeighborSampler
from torch_gnnscale.loader.keyed_loader import LoaderOptions
from torch_gnnscale.sampler import register_method
from torch_gnnscale.sampler.fanouts import SamplingOptions
from torch_gnnscale.sampler.methods import METHODS

DATA = make_data()


def whole(text):
    return f"^{re.escape(text)}$"


def first_hop_twice(data, num_neighbors, **options):
    return NeighborSampler(data, [num_neighbors[0]] * 2, **options)


@pytest.fixture
def twice(monkeypatch):
    monkeypatch.setattr("torch_gnnscale.sampler.methods.METHODS", known := dict(METHODS))
    register_method("twice", first_hop_twice, ["replace", "device"])
    return known


def test_a_sampler_of_ones_own_has_a_name(twice):
    loader = NeighborLoader(DATA, [3], torch.arange(20), method="twice", replace=True, batch_size=5, seed=1)
    given = NeighborSampler(DATA, [3, 3], replace=True)
    expected = NeighborLoader(DATA, [3, 3], torch.arange(20), neighbor_sampler=given, batch_size=5, seed=1)
    assert [plain(batch) for batch in loader] == [plain(batch) for batch in expected]
    with pytest.raises(ValueError, match=whole("disjoint=True: expected False with method='twice'")):
        NeighborLoader(DATA, [3], method="twice", disjoint=True)
    register_method("bare", first_hop_twice)
    with pytest.raises(ValueError, match=whole("replace=True: expected False with method='bare'")):
        NeighborLoader(DATA, [3], method="bare", replace=True)


def test_what_is_no_sampler_is_refused():
    with pytest.raises(TypeError, match=whole("neighbor_sampler: expected a BaseSampler, found int")):
        NeighborLoader(DATA, [3], neighbor_sampler=3)


@pytest.mark.parametrize("made", [None, "sampler"])
def test_a_method_whose_factory_returns_no_sampler_is_refused(twice, made):
    register_method("nothing", lambda data, num_neighbors: made)
    text = "method='nothing': expected what was registered to return a KeyedSampler, found "
    for make in (NeighborLoader, LinkNeighborLoader):
        with pytest.raises(TypeError, match=whole(text + type(made).__name__)):
            make(DATA, [3], method="nothing")


def test_an_empty_list_of_budgets_asks_for_nothing():
    assert SamplingOptions(graph_on_peers=[]).changed() == {}
    NeighborLoader(DATA, [3], neighbor_sampler=NeighborSampler(DATA, [3]), graph_on_peers=[])


def test_names_that_are_refused(twice):
    for name, takes, error, text in (
        (3, (), TypeError, "name: expected a str, found int"),
        ("twice", (), ValueError, f"name: expected one that no method has, unlike {[*twice]}, found 'twice'"),
        ("", (), ValueError, f"name: expected one that no method has, unlike {[*twice]}, found ''"),
        ("three", ["x"], ValueError, f"takes: expected names of {[*twice['neighbor'].takes]}, found ['x']"),
    ):
        with pytest.raises(error, match=whole(text)):
            register_method(name, first_hop_twice, takes)


@pytest.mark.parametrize("of", [NeighborLoader, LinkNeighborLoader, NeighborSampler])
def test_signatures_have_the_options_with_their_defaults(of):
    parameters = inspect.signature(of).parameters
    options = {entry.name: entry.default for kind in (SamplingOptions, LoaderOptions) for entry in fields(kind)}
    found = {name: each.default for name, each in parameters.items() if name in options}
    assert found == {name: options[name] for name in found}
    kinds = {NeighborSampler: (SamplingOptions,), NeighborLoader: (SamplingOptions, LoaderOptions)}
    missing = {entry.name for kind in kinds.get(of, ()) for entry in fields(kind)} - set(found)
    assert missing == ({"exclude_seed_edges", "strict_negatives"} if of is NeighborLoader else set())


def test_options_that_are_not_the_defaults():
    assert SamplingOptions().changed() == {}
    given = SamplingOptions(strict_negatives=torch.zeros(2, 1), directed=False, graph_on_peers=[1])
    assert list(given.changed()) == ["strict_negatives", "directed", "graph_on_peers"]
    assert given.subgraph.value == "induced"
