"""Attributes that change while worker processes make batches of a copy of them."""

import pytest
import torch
from helpers.data import loader_of, make_data
from helpers.hetero import PAPER, make_hetero
from helpers.modes import of_processes


@pytest.mark.slow
def test_worker_processes_that_gather_from_a_copy_refuse_changes():
    data = make_data()
    text = r"^'x', 'y': expected attributes that stay as they are while worker processes gather from a copy of them"
    for options in ({}, {"persistent_workers": True}):
        loader = of_processes(data, **options)
        iterator = iter(loader)
        assert torch.equal((batch := next(iterator)).x, data.x[batch.n_id])
        data.x += 1
        data.y = data.y + 1
        with pytest.raises(RuntimeError, match=text):
            next(iterator)
        del iterator
        if options:
            with pytest.raises(RuntimeError, match=text):
                next(iter(loader))
        else:  # new processes have a new copy
            assert torch.equal((batch := next(iter(loader))).x, data.x[batch.n_id])


@pytest.mark.slow
@pytest.mark.parametrize("of", ["graph", "graph with types", "type"])
def test_numbers_reach_batches_of_worker_processes(of):
    data = make_data() if of == "graph" else make_hetero()
    nodes = None if of == "graph" else (PAPER, torch.arange(40))

    def attributes(graph):
        return graph[PAPER] if of == "type" else graph

    def numbers(graph):
        return {name: attributes(graph)[name] for name in ("a", "b", "c") if name in attributes(graph)}

    attributes(data).a, attributes(data).b = 0.5, "first"
    iterator = iter(loader_of(data, [2], nodes, batch_size=8, num_workers=1, multiprocessing_context="fork"))
    assert numbers(next(iterator)) == {"a": 0.5, "b": "first"}
    attributes(data).a, attributes(data).c = 0.25, True
    assert numbers(next(iterator)) == {"a": 0.25, "b": "first", "c": True}
    del attributes(data).b, attributes(data).c
    assert numbers(next(iterator)) == {"a": 0.25}
    data.a = torch.ones(3)
    with pytest.raises(RuntimeError, match=r"^'a': expected attributes that stay as they are"):
        next(iterator)


@pytest.mark.slow
def test_numbers_that_a_transform_saw_in_worker_processes():
    data = make_data()
    data.a = 1
    iterator = iter(of_processes(data, transform=lambda batch: batch))
    assert next(iterator).a == 1
    data.a = 2
    with pytest.raises(RuntimeError, match=r"^'a': expected attributes that stay as they are"):
        next(iterator)
