"""What ranks make of loops over parts that they leave early, and in which batches fail."""

from __future__ import annotations

from typing import Any

from helpers.parts import as_plain, loader_over
from torch import distributed as dist

from torch_gnnscale.distributed import neighbor_sampling as executor
from torch_gnnscale.distributed import open_part


def disturbed(path: str, kept: dict[str, Any], options: dict[str, Any]) -> list[list[Any]]:
    """Leaves loops early, and lets batches fail on rank 1: what each batch of this rank came to."""

    def transform(out):
        if fails and dist.get_rank() == 1 and int(out.metadata[0].sum()) % 3 == 0:
            raise KeyError("no luck")
        return out

    with open_part(path, **kept) as part:
        given = {"transform_sampler_output": transform, **options}
        loader = loader_over((part.features, part.graph), part.input_nodes("train"), "nodes", given)
        found = []
        for steps in (2, 0, 3):
            fails = False
            iterator = iter(loader)
            found.append([as_plain(next(iterator)) for _ in range(steps)])
            iterator.close()
        fails = True
        for _ in range(2):
            iterator, batches = iter(loader), []
            for _ in range(len(loader)):
                try:
                    batches.append(as_plain(next(iterator)))
                except (KeyError, RuntimeError):
                    batches.append("failed")
            assert next(iterator, None) is None
            found.append(batches)
    return found


def unanswerable(path: str, bad_rank: int, bulk: int = 1, kept: dict[str, Any] | None = None) -> list[Any]:
    """An owner fails in the second hop of the third bulk, when it draws for the others."""
    with open_part(path, **(kept or {})) as part:
        options = {"prefetch": 1, "bulk": bulk}
        loader = loader_over((part.features, part.graph), part.input_nodes("train"), "nodes", options)
        executor = loader._sampler.executor
        draw, calls = executor._draw, iter(range(1000))

        def failing(drawing):
            drawn = draw(drawing)

            def fails(requests, frontier):
                if frontier.hop == 1 and next(calls) == 2:
                    raise KeyError("no luck")
                return drawn(requests, frontier)

            return fails

        if dist.get_rank() == bad_rank:
            executor._draw = failing
        return results_of(loader)


def results_of(loader: Any) -> list[Any]:
    """The batches of an epoch, and errors in their places."""
    found, iterator = [], iter(loader)
    while True:
        try:
            found.append(as_plain(next(iterator)))
        except StopIteration:
            return found
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")


def fails_between(path: str, bad_rank: int, where: str, kept: dict[str, Any] | None = None) -> list[Any]:
    """A rank fails by itself: after a sample, or between two hops."""
    calls = iter(range(1000))

    def transform(out):
        if where == "transform" and dist.get_rank() == bad_rank and next(calls) == 2:
            raise KeyError("no luck")
        return out

    def relabels(*args, **kwargs):
        if dist.get_rank() == bad_rank and next(calls) == 6:
            raise KeyError("no luck")
        return relabel(*args, **kwargs)

    relabel, hops = executor.ops.relabel, executor.by_hops
    try:
        if where == "hops":
            executor.by_hops = lambda *args, **kwargs: hops(*args, **kwargs, relabel=relabels)
        with open_part(path, **(kept or {})) as part:
            options = {"transform_sampler_output": transform, "num_neighbors": [2, 2, 2]}
            return results_of(loader_over((part.features, part.graph), part.input_nodes("train"), "nodes", options))
    finally:
        executor.by_hops = hops
