"""Batches cut over ranks by the twin, and plans of given owners."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import reference
import torch
from helpers.cluster import cluster
from helpers.data import make_data
from helpers.loader_cases import draw_by_phases
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Data

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader, TieredFeatureStore, ops
from torch_gnnscale.comm.memory_transport import MemoryTransport
from torch_gnnscale.comm.mesh import Grid
from torch_gnnscale.ops.ranks import Cut
from torch_gnnscale.random import Purpose, batch_key
from torch_gnnscale.sampler.minibatch import MiniBatch
from torch_gnnscale.split.plans import Plan
from torch_gnnscale.split.rank_rows import ShuffleIndex


class GivenPlan(Plan):
    """A plan with the owners that a test chose, and without counts."""

    def __init__(self, owners: Tensor, parts: int, fingerprint: str = "given") -> None:
        none = torch.empty(0, dtype=torch.int64)
        super().__init__(owners, parts, none, none, none, 0, {})
        self.__dict__["fingerprint"] = fingerprint


def random_owners(num_nodes: int, parts: int, seed: int = 0) -> Tensor:
    """A random rank for each node: int64, shape [num_nodes]."""
    return torch.randint(parts, (num_nodes,), generator=torch.Generator().manual_seed(seed))


def cut_of(batch: Data, owners: Tensor, parts: int, part: int) -> Cut:
    """One rank's cut of a batch of all ranks; ``owners`` by the ids in ``batch.n_id``."""
    columns = sum(batch.num_sampled_nodes[:-1])
    colptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(batch.edge_index[1], minlength=columns)])
    owner = owners[batch.n_id].to(torch.int64)
    return reference.cut_batch(
        batch.n_id, batch.num_sampled_nodes, colptr.cumsum(0), batch.edge_index[0], owner, parts, part
    )


def cut_batches(whole: Data, owners: Tensor, parts: int, key: int = 0) -> list[Data]:
    """The batches of all ranks that a split loader makes of one batch.

    Args:
        whole: a batch of a NeighborLoader over data with the user's ids, with edges as COO, sorted by destination.
        owners: owners[i]: the rank of node i; integers, shape [nodes].
        parts: the number of ranks.
        key: the batch's key.
    """
    return [_of_rank(whole, cut_of(whole, owners, parts, part), parts, part, key) for part in range(parts)]


def _of_rank(whole: Data, cut: Cut, parts: int, part: int, key: int) -> Data:
    degrees = cut.colptr.diff()
    col = torch.arange(len(degrees)).repeat_interleave(degrees)
    batch = Data(edge_index=torch.stack([cut.row, col]))
    for name, value in whole.to_dict().items():
        if name == "e_id" or (name != "edge_index" and whole.is_edge_attr(name)):
            batch[name] = value[cut.edge]
        elif name == "n_id" or whole.is_node_attr(name):
            batch[name] = value[cut.local]
    batch.num_nodes = len(cut.local)
    batch.num_sampled_nodes, batch.num_sampled_edges = cut.num_nodes, cut.num_edges
    own = cut.local[: cut.num_nodes[0]]
    batch.input_id = whole.input_id[own]
    batch.batch_size = len(own)
    batch.global_batch_size = whole.batch_size
    batch.batch_key = key
    batch.shuffle_index = ShuffleIndex(parts, part, cut.sent, cut.num_sent, cut.num_received)
    if "x" in whole:
        batch.x_halo = whole.x[cut.halo]
        batch.shuffle_index = batch.shuffle_index.with_halo_of(batch.x)
    return batch


def own_and_halo(batches: list[Data], part: int, values: list[Any]) -> Tensor:
    """The rows of a rank's own nodes and then of its halo, if rank i's own nodes have the rows ``values[i]``."""
    rows = [values[part]]
    for batch, of_rank in zip(batches, values, strict=True):
        sender: ShuffleIndex = batch.shuffle_index
        rows.append(of_rank[sender.sent.split([sum(counts) for counts in sender.num_sent])[part]])
    return torch.cat(rows)


class Whole(NamedTuple):
    """What is cut: a batch's nodes and edges, as :func:`reference.cut_batch` takes them."""

    node: Tensor
    num_nodes: list[int]
    colptr: Tensor
    row: Tensor
    owner: Tensor


@st.composite
def wholes(draw: st.DrawFn, parts: int, most: int = 8) -> Whole:
    """Batches with repeated seeds, self loops, multi-edges and groups without nodes; some ranks have none."""
    hops = draw(st.integers(1, 3))
    sizes = [draw(st.integers(0, most)) for _ in range(hops + 1)]
    seeds = [draw(st.integers(0, most)) for _ in range(sizes[0])]
    others = draw(st.permutations(range(most + 1, most + 1 + 2 * sum(sizes[1:]))))[: sum(sizes[1:])]
    node = seeds + list(others)
    first = [node.index(of) for of in node]
    ends = list(accumulate(sizes))
    colptr, row = [0], []
    for group in range(hops):
        for _ in range(sizes[group]):
            if ends[group + 1]:
                picks = draw(st.lists(st.integers(0, ends[group + 1] - 1), max_size=4))
                row += [first[at] for at in picks]
            colptr.append(len(row))
    used = draw(st.integers(1, parts))  # the other ranks own nothing
    owner_of = [draw(st.integers(0, used - 1)) for _ in range(max([*node, 0]) + 1)]
    owner = torch.tensor([owner_of[of] for of in node], dtype=torch.int64)
    return Whole(
        torch.tensor(node, dtype=torch.int64), sizes, torch.tensor(colptr), torch.tensor(row, dtype=torch.int64), owner
    )


ON_RANKS = ("uneven", "bulk", "seed_order", "phases", "device", "rows_on")
"""Options of loaders by which batches are the same."""

# On ranks ############################################################################################################


def loader_of(plan: GivenPlan | None, options: dict[str, Any]) -> NeighborLoader:
    """A loader over a graph of 200 nodes; ``plan=None``: one of whole batches. ``stores``: of a pair of stores;
    ``tiers``: of one whose rows lie in tiers, by these arguments; ``rows_on``: the device of the rows of a Data;
    ``method``: of sampling layer by layer; ``phases``: draws on the CPU as a GPU does."""
    options = {"num_neighbors": [3, 2], "batch_size": 10, "shuffle": True, "seed": 3, **options}
    data: Any = make_data()
    data.edge_kind, data.num_nodes = torch.arange(data.num_edges) % 5, 200
    phases, tiers = options.pop("phases", False), options.pop("tiers", None)
    if options.pop("stores", False):
        data = FeatureStore.from_data(data), GraphStore.from_data(data)
    elif tiers is not None:
        graph = GraphStore.from_data(data)
        del data.edge_kind, data.edge_attr  # tiers have rows of nodes alone
        data = TieredFeatureStore.from_data(data, hotness="out_degree", **tiers), graph
    if options.pop("without_x", False):
        del data.x
    if (place := options.pop("rows_on", None)) is not None:
        data = data.to(place)
    seeds = torch.arange(0, 200, 3) if (given := options.pop("seeds", None)) is None else torch.tensor(given)
    loader = NeighborLoader(data, input_nodes=seeds, **options, **({} if plan is None else {"split": plan}))
    if phases:
        draw_by_phases(loader._sharing.sampler.sampler)  # type: ignore[union-attr]
    return loader


def batches_of_rank(plan: GivenPlan, epochs: int, options: dict[str, Any]) -> list[list[Any]]:
    """The batches of this rank, by epoch."""
    loader = loader_of(plan, options)
    return [[comparable(batch) for batch in loader] for _ in range(epochs)]


def without_peers() -> AbstractContextManager[Any]:
    """Within, the ranks of a machine cannot read each other's memory."""
    return mock.patch.object(MemoryTransport, "connect", return_value="a test")


def batches_over_gloo(*arguments: Any) -> list[list[Any]]:
    """:func:`batches_of_rank` where no rank reads another one's memory."""
    with without_peers():
        return batches_of_rank(*arguments)


def outcomes_of(loader: NeighborLoader) -> list[Any]:
    """What each batch of an epoch came to: its key, or the error in its place."""
    iterator, found = iter(loader), []
    while True:
        try:
            found.append(comparable(next(iterator))["batch_key"])
        except StopIteration:
            return found
        except (LookupError, RuntimeError, ValueError) as error:
            found.append(f"{type(error).__name__}: {error}")


def first_batches(plan: GivenPlan, count: int, options: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The first ``count`` batches of an epoch, which all ranks leave then; and the state."""
    loader = loader_of(plan, options)
    iterator = iter(loader)
    found = [comparable(next(iterator)) for _ in range(count)]
    iterator.close()
    return found, loader.state_dict()


def rest_of(plan: GivenPlan, state: dict[str, Any], options: dict[str, Any]) -> list[Any]:
    """What follows a state in its epoch."""
    loader = loader_of(plan, options)
    loader.load_state_dict(state)
    return [comparable(batch) for batch in loader]


def owned_positions(owners: Tensor, parts: int, epoch: int, options: dict[str, Any], groups: int = 1) -> list[Tensor]:
    """The positions of the inputs of all batches of an epoch in which each part has an order of its own.

    Args:
        owners: the part of each input.
        options: of the loader: batch_size, seed, shuffle, drop_last, uneven.
        groups: of ranks.
    """
    size, uneven, chunks = options["batch_size"] // parts, options.get("uneven", "pad"), []
    for part in range(parts):
        own = (owners == part).nonzero().flatten()
        if options.get("shuffle", True):
            own = own[ops.permutation(len(own), batch_key(options["seed"], epoch, part, Purpose.SHUFFLE))]
        smallest = size if options.get("drop_last") else 1
        chunks.append([chunk for chunk in own.split(size) if len(chunk) >= smallest])
    steps = (min if uneven == "drop" else max)(len(of_part) for of_part in chunks)
    whole = {"pad": -(-steps // groups) * groups, "drop": steps // groups * groups, "serve": steps}[uneven]
    if uneven == "serve":
        chunks = [[*of_part, *[own[:0]] * (steps - len(of_part))] for of_part in chunks]
    return [torch.cat([of_part[number % len(of_part)] for of_part in chunks]) for number in range(whole)]


def expected_batches(plan: GivenPlan, epochs: int, world: int, options: dict[str, Any]) -> list[list[list[Any]]]:
    """found[rank][epoch]: the twin's cuts of one process's whole batches."""
    given = {name: value for name, value in options.items() if name not in ON_RANKS}
    loader, grid = loader_of(None, given), Grid(world, 1 if world == 1 else plan.parts, "parts")
    owned = owned_orders(loader, plan.owners[loader.input_data.node], plan.parts, options, grid.copies)
    return cut_over_ranks(loader, plan.owners, grid, epochs, options.get("uneven", "pad"), owned)


def check_batches(
    world: int, plan: GivenPlan, options: dict[str, Any], epochs: int = 2,
    of_rank: Callable[..., list[list[Any]]] = batches_of_rank,
) -> None:  # fmt: skip
    """The batches of ranks are the twin's cuts of one process's."""
    found = cluster(world).run(of_rank, plan, epochs, options)
    expected = expected_batches(plan, epochs, world, options)
    assert [[len(epoch) for epoch in rank] for rank in found] == [[len(epoch) for epoch in rank] for rank in expected]
    for theirs, of_expected in zip(found, expected, strict=True):
        for epoch, as_expected in zip(theirs, of_expected, strict=True):
            for batch, of_twin in zip(epoch, as_expected, strict=True):
                assert batch.keys() == of_twin.keys()
                for name in of_twin:
                    assert batch[name] == of_twin[name], name


def owned_orders(
    loader: NeighborLoader, owners: Tensor, parts: int, options: dict[str, Any], groups: int
) -> Callable[[int], list[np.ndarray]] | None:
    """The positions of the inputs of an epoch's batches where parts have orders of their own; None where they do not.

    Args:
        loader: of one process.
        owners: the part of each input.
        options: of the ranks' loaders.
        groups: of ranks.
    """
    if options.get("seed_order") != "owned":
        return None
    orders = {"batch_size": loader.batch_size, "seed": loader.seed, **options}
    return lambda epoch: [entry.numpy() for entry in owned_positions(owners, parts, epoch, orders, groups)]


def cut_over_ranks(
    loader: NeighborLoader, owners: Tensor, grid: Grid, epochs: int, uneven: str,
    positions_of: Callable[[int], list[np.ndarray]] | None = None,
) -> list[list[list[Any]]]:  # fmt: skip
    """found[rank][epoch]: the twin's cuts of a loader's whole batches, which the columns of a grid take in turn.

    Args:
        loader: of one process.
        owners: owners[i]: the part of the node whose ``n_id`` is i.
        grid: of the ranks.
        epochs: so many.
        uneven: of the ranks' loaders.
        positions_of: returns those of the inputs of an epoch's batches; None: the loader's.
    """
    owners = owners if grid.parts > 1 else torch.zeros_like(owners)
    found: list[list[list[Any]]] = [[[] for _ in range(epochs)] for _ in range(grid.ranks)]
    for epoch in range(epochs):
        if positions_of is None:
            positions = [index.positions for index in loader._seed_order.numbered(loader.batch_sampler, epoch)]
        else:
            positions = positions_of(epoch)
        count, groups = len(positions), grid.copies
        for begin in range(0, count - groups + 1 if uneven == "drop" else count, groups):
            numbers = [begin + group for group in range(groups) if uneven != "serve" or begin + group < count]
            seeds = sum(len(positions[number % count]) for number in numbers)
            for copy, number in enumerate(numbers):
                whole = loader.collate_fn(MiniBatch(epoch, number, positions[number % count]))
                cuts = cut_batches(whole, owners, grid.parts, batch_key(loader.seed, epoch, number))
                for part, cut in enumerate(cuts):
                    found[grid.rank(part, copy)][epoch].append({**comparable(cut), "global_batch_size": seeds})
    return found


def comparable(batch: Data) -> dict[str, Any]:
    """The fields of a batch as plain values, to be compared and sent to other processes."""
    fields = {name: (str(value.dtype), value.tolist()) if isinstance(value, Tensor) else value for name, value in batch}
    index = fields.pop("shuffle_index")
    return {**fields, "shuffle_index": {**vars(index), "sent": index.sent.tolist(), "x": index.x is batch.x}}
