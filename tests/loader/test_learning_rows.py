"""Rows that require grad: each batch has them as they are when it is delivered, with their history."""

import functools

import pytest
import torch
from helpers.data import loader_of, make_data, node_rows
from helpers.modes import MODES, of_processes

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader


def epoch_of(source, weight, **options):
    """The table after an epoch in which it learns, and whether each batch's rows had a gradient's history."""
    optimizer = torch.optim.Adam([weight], lr=0.1)
    history = []
    for batch in loader_of(source, input_nodes=torch.arange(160), **{"seed": 3, **options}):
        history.append(batch.x.grad_fn is not None)
        optimizer.zero_grad()
        batch.x[: batch.batch_size].sin().sum().backward()
        batch.x.detach().add_(1)  # rows are a copy
        optimizer.step()
    return weight.detach().clone(), history


def source_of(kind, weight):
    data = make_data()
    if kind == "Data":
        data.x = weight
        return data
    features = FeatureStore()
    features.put_tensor(weight, group_name=None, attr_name="x", index=None)
    features.put_tensor(data.y, group_name=None, attr_name="y", index=None)
    return features, GraphStore.from_data(data)


@pytest.mark.slow
@pytest.mark.parametrize("strides", ["rows", "columns"])
@pytest.mark.parametrize("kind", ["Data", "store"])
@pytest.mark.filterwarnings("ignore:data.x has no contiguous rows")
def test_a_table_that_learns_ends_equal(kind, strides):
    def run(options):
        start = node_rows(torch.arange(200)) / 7
        weight = torch.nn.Parameter(start if strides == "rows" else start.t().contiguous().t())
        return epoch_of(source_of(kind, weight), weight, **options)

    expected, history = run(MODES[0])
    assert all(history)
    for options in [{}, *MODES[1:], {"num_workers": 0, "prefetch": 2, "edge_layout": "EdgeIndex"}]:
        found, history = run(options)
        assert all(history)
        assert torch.equal(found, expected), options


def test_a_result_of_a_module_that_learns():
    """Rows of a tensor with a history lead back to what it was made from."""
    data, weight = make_data(), torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    gradients = []
    for options in MODES:
        data.x = node_rows(torch.arange(200)) * weight
        *_, batch = loader_of(data, **options)
        weight.grad = None
        batch.x.sum().backward()
        gradients.append(weight.grad.clone())
    assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)
    assert gradients[0].any()


@pytest.mark.parametrize("options", MODES, ids=str)
def test_without_gradients_parameters_are_read_ahead_like_other_tables(options):
    data = make_data()
    data.x = torch.nn.Parameter(data.x)
    with torch.no_grad():
        batches = loader_of(data, **options)
        for number, batch in enumerate(batches):
            assert not batch.x.requires_grad
            assert torch.equal(batch.x, node_rows(batch.n_id) + number)
            data.x += 1


@pytest.mark.parametrize("options", MODES[1:], ids=str)
def test_a_table_that_begins_or_ends_to_learn(options):
    data = make_data()
    for number, batch in enumerate(loader_of(data, **options)):
        assert batch.x.requires_grad == (number % 2 == 1)
        data.x.requires_grad_(number % 2 == 0)


def test_rows_of_what_learns_are_not_changed_in_a_copy():
    features = source_of("store", torch.nn.Parameter(torch.ones(200, 3)))[0]
    with pytest.raises(
        ValueError, match=r"^\(None, 'x'\): expected to be put whole \(index=None\), because it requires"
    ):
        features.update_tensor(torch.zeros(1, 3), group_name=None, attr_name="x", index=torch.tensor([0]))


def test_the_default_gives_equal_weights_in_every_run():
    def run():
        weight = torch.nn.Parameter(torch.linspace(-1, 1, 600, dtype=torch.float64).view(200, 3))
        data, optimizer = source_of("Data", weight), torch.optim.SGD([weight], lr=0.1)
        for batch in NeighborLoader(data, [2], batch_size=5, seed=5, shuffle=True):  # the choice by the clock begins
            optimizer.zero_grad()
            batch.x.square().sum().backward()
            optimizer.step()
        return weight.detach()

    weights = [run() for _ in range(3)]
    assert all(map(functools.partial(torch.equal, weights[0]), weights))


@pytest.mark.slow
def test_what_learns_is_not_gathered_by_worker_processes():
    def run(make, **options):
        weight = torch.nn.Parameter(node_rows(torch.arange(200)) / 7)
        return epoch_of(source_of("Data", weight), weight, **options)

    expected = run(loader_of, prefetch=0)
    found = run(of_processes, num_workers=1, multiprocessing_context="fork")
    assert torch.equal(found[0], expected[0])
    data = make_data()
    data.x = torch.nn.Parameter(data.x)
    with pytest.raises(
        ValueError, match=r"^filter_per_worker=True: expected rows that do not require grad, found 'x'; "
    ):
        iter(of_processes(data, filter_per_worker=True))
