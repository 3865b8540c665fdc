"""Ranks that differ, or of which one refuses: all get the same error."""

import warnings
from pathlib import Path

import pytest
import torch
from helpers.cluster import cluster
from helpers.data import wait_for
from helpers.parts import homogeneous, loader_of_part
from helpers.slow import quick
from torch import distributed as dist

from torch_gnnscale import LinkNeighborLoader, NeighborLoader, partition
from torch_gnnscale.distributed import open_part
from torch_gnnscale.random import draw_seed


def other_options(path, of_ranks, close=True):
    with open_part(path) as part:
        loader_of_part(part, **of_ranks[dist.get_rank()])


DIFFERENT = {
    "fanouts": ({"num_neighbors": [3, 2]}, {"num_neighbors": [3, 3]},
                "num_neighbors: expected the same on all ranks, found [[3, 2], [3, 3]]"),
    "seed": ({"seed": 1}, {"seed": 2}, "seed: expected the same on all ranks, found [1, 2]"),
    "batch size": ({"batch_size": 5}, {"batch_size": 6}, "batch_size: expected the same on all ranks, found [5, 6]"),
    "order": ({"shuffle": False}, {"shuffle": True},
              "order: expected the same on all ranks, found ['input', 'shuffled']"),
    "uneven": ({"uneven": "pad"}, {"uneven": "drop"}, "uneven: expected the same on all ranks, found ['pad', 'drop']"),
    "method": ({}, {"method": "ladies", "num_neighbors": [8, 8]},
               "num_neighbors: expected the same on all ranks, found [[3, 2], None]"),
    "replace": ({}, {"replace": True}, "replace: expected the same on all ranks, found [False, True]"),
}  # fmt: skip


@pytest.mark.parametrize(("first", "second", "message"), quick(DIFFERENT, "uneven", "method"))
def test_ranks_that_differ_get_the_same_error(parts, first, second, message):
    results = cluster(2).results(other_options, parts, [first, second])
    assert results == [(False, f"ValueError: {message}")] * 2


def other_times(path):
    with open_part(path) as part:
        times = torch.arange(len(part.input_nodes("train", of="all"))) + dist.get_rank()
        loader_of_part(part, seed_order="global", input_time=times, time_attr="time")


@pytest.mark.slow
def test_ranks_with_other_times_get_the_same_error(parts):
    (made, text), second = cluster(2).results(other_times, parts)
    assert not made
    assert text.startswith("ValueError: key_of_inputs: expected the same on all ranks, found [")
    assert second == (made, text)


def other_books(paths):
    with open_part(paths[dist.get_rank()]) as part:
        loader_of_part(part)


@pytest.mark.slow
def test_ranks_with_other_books_get_the_same_error(parts, tmp_path):
    partition.write(homogeneous(), tmp_path / "parts", parts=2, method="random", seed=1)
    results = cluster(2).results(other_books, [parts, str(tmp_path / "parts")])
    assert results[0] == results[1]
    assert results[0][1].startswith("ValueError: partition book: expected the same on all ranks, found [")


@pytest.mark.slow
def test_ranks_with_equal_books_and_other_rows_get_the_same_error(parts, tmp_path):
    data = homogeneous()
    data.x = data.x + 1
    partition.write(data, tmp_path / "parts", parts=2, method="random")
    results = cluster(2).results(other_books, [parts, str(tmp_path / "parts")])
    assert results[0] == results[1]
    assert results[0][1].startswith("ValueError: partition book: expected the same on all ranks, found [")


@pytest.fixture(scope="module")
def parts_of_edges(tmp_path_factory):
    """A directory of two parts, edges included."""
    path = tmp_path_factory.mktemp("parts") / "parts"
    partition.write(homogeneous(), path, parts=2, method="random", topology="partitioned")
    return str(path)


REFUSED = {
    "seed": ({"seed": "one"}, "TypeError: seed: expected an int, found str"),
    "fanouts": ({"num_neighbors": [3.5]}, "TypeError: num_neighbors"),
    "nodes": ({"input_nodes": torch.tensor([200])}, "IndexError: input_nodes[0] = 200 is out of range: expected nodes"),
    "mode": ({"subgraph_type": "induced"}, "NotImplementedError: subgraph_type='induced' with a partitioned topology"),
    "processes": (
        {"num_workers": 1, "multiprocessing_context": "fork"},
        "NotImplementedError: worker processes (num_workers=1) with the ",
    ),
    "links": (None, "NotImplementedError: exclude_seed_edges=True with a partitioned topology is not implemented; "),
}  # fmt: skip


def refuses_on(path, of_ranks):
    """What becomes of a loader for which each rank has other options; and how many batches the next one makes."""
    with open_part(path) as part:
        given, stores = of_ranks[dist.get_rank()], (part.features, part.graph)
        options = {"num_neighbors": [2], "input_nodes": part.input_nodes("train"), "batch_size": 10, "seed": 1}
        try:
            if given is None:
                links = torch.zeros(2, 1).long()
                LinkNeighborLoader(stores, [2], links, exclude_seed_edges=True, seed=1)
            NeighborLoader(stores, **{**options, **(given or {})})
            text = ""
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        return text, len(list(loader_of_part(part)))


@pytest.mark.slow
@pytest.mark.parametrize("refused", REFUSED)
def test_what_one_rank_refuses_while_it_makes_its_loader_is_told_to_all(parts_of_edges, refused):
    given, text = REFUSED[refused]
    (first, count), (second, of_other) = cluster(2).run(refuses_on, parts_of_edges, [{}, given])
    assert second.startswith(text)
    assert first == f"ValueError: rank 1: {second}"
    assert count == of_other > 0


def waits_for_the_others(path, said):
    """Rank 1 refuses; rank 0 makes its loader once rank 1 has warned. What became of both, and the warnings."""
    heard = []

    def hear(message, *_):
        heard.append(str(message))
        Path(said).touch()

    with open_part(path) as part, warnings.catch_warnings():
        warnings.showwarning = hear
        if dist.get_rank() == 0:
            wait_for(Path(said).exists)
        try:
            loader_of_part(part, **({} if dist.get_rank() == 0 else {"seed": "one"}))
        except Exception as error:
            return f"{type(error).__name__}: {error}", heard
    raise AssertionError


@pytest.mark.slow
def test_a_rank_that_waits_to_tell_the_others_of_its_error_says_so(parts_of_edges, tmp_path):
    why = "TypeError: seed: expected an int, found str"
    first, second = cluster(2).run(waits_for_the_others, parts_of_edges, str(tmp_path / "said"))
    assert first == (f"ValueError: rank 1: {why}", [])
    assert second == (why, [f"this rank makes no loader, and waits for the other ranks, which come to make theirs, to "
                            f"tell them: {why}"])  # fmt: skip


@pytest.mark.slow
def test_what_all_ranks_refuse_each_raises_as_it_is(parts_of_edges):
    found = cluster(2).run(refuses_on, parts_of_edges, [REFUSED["mode"][0]] * 2)
    assert all(text.startswith(REFUSED["mode"][1]) for text, _ in found)


@pytest.mark.slow
def test_a_seed_that_one_rank_draws_is_an_error_on_all(parts):
    text = "ValueError: seed: expected the same on all ranks, found [None, 1]"
    assert cluster(2).results(other_options, parts, [{"seed": None}, {"seed": 1}]) == [(False, text)] * 2


def drawn_seed(path):
    torch.manual_seed(7 + dist.get_rank())
    with open_part(path) as part:
        loader = loader_of_part(part, seed=None)
        return loader.seed, loader.sampler.epochs.seed, draw_seed(torch.Generator().manual_seed(7))


@pytest.mark.slow
def test_the_seed_that_rank_0_draws_is_that_of_all(parts):
    for seeds in cluster(2).run(drawn_seed, parts):
        assert len({*seeds}) == 1
