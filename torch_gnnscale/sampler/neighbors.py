"""What a sampler of the user's reads a graph by: all edges into some nodes, whoever has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.typing import EdgeType

from .. import ops
from ..comm.steps import Steps
from ..ops.arguments import as_ids, check_choice, check_int
from .executor import Executor, sampled_store
from .graph import check_times, end_types, ordered_limit
from .minibatch import LATEST
from .neighbor import HostExecutor
from .relations import sampled_graph


class EdgesInto(NamedTuple):
    """All edges into n nodes."""

    colptr: Tensor
    """Edges colptr[i]..colptr[i + 1] - 1 lead to the i-th node: int64, [n + 1]."""
    row: Tensor
    """Stored ids of their sources: int64, [e]."""
    edge_id: Tensor
    """Ids of the edges: int64, [e]."""


Ask = Callable[..., EdgesInto]
"""``ask(nodes, edge_type=None, time=None)``: the edges of a type into nodes, given by stored ids, [n], repeats allowed.
``time``: for each node, edges of later times are left out: [n]."""


class Neighbors:
    """The edges into nodes of a graph that this process has, or that the ranks have in parts. Both give the same.

    For a :class:`KeyedSampler` of one's own. Of a partitioned graph, the ranks ask their owners together: all make
    ``rounds`` rounds of a batch, also those that need fewer. The sampler's ``collective`` is this object's, its
    ``join`` calls this one's, and each sample is made within one :meth:`batch`::

        with self.neighbors.batch() as ask:
            colptr, row, edge_id = ask(seeds)

    Args:
        data: a Data, a HeteroData or a (FeatureStore, GraphStore) pair, such as ``(part.features, part.graph)``.
        rounds: how often a batch asks at most, the same on all ranks. They may ask for edges of different types.
        time_attr: name of the times of nodes or of edges, as of :class:`torch_gnnscale.NeighborSampler`.

    Raises:
        NotImplementedError: times that a partitioned graph does not have.
        TypeError, ValueError, IndexError: data of another kind; a malformed graph.
    """

    def __init__(self, data: Any, rounds: int, *, time_attr: str | None = None) -> None:
        self._rounds, store = check_int("rounds", rounds, 1), sampled_store(data)
        self._executor: Executor
        if store is None:
            self._executor = HostExecutor(sampled_graph(data, time_attr=time_attr))
        else:
            graph = store.sampled_graph(data[0], time_attr=time_attr, weight_attr=None, backward=False)
            self._executor = store.executor(graph, torch.device("cpu"))
        self._sizes = self._executor.graph.bounds()

    @property
    def collective(self) -> bool:
        """Whether the ranks ask together."""
        return self._executor.collective

    def join(self, steps: Steps, own_seeds: bool) -> None:
        """As :meth:`KeyedSampler.join`."""
        self._executor.join(steps, own_seeds=False)  # what a batch asks for first need not be its seeds

    @contextmanager
    def batch(self) -> Iterator[Ask]:
        """What asks for the edges of one batch.

        Raises:
            TypeError, ValueError: there is no such edge type; times that are none, or that the graph does not have; a
                batch asks more than ``rounds`` times.
            IndexError: an id that is no node.
            RuntimeError: of a partitioned graph: not in a step of a loader; or another rank failed.
        """
        graph, left = self._executor.graph, self._rounds
        types = graph.edge_types

        def ask(nodes: Tensor, edge_type: EdgeType | None = None, time: Tensor | None = None) -> EdgesInto:
            nonlocal left
            check_choice("edge_type", edge_type, types)
            if left == 0:
                raise ValueError(f"rounds: expected at most {self._rounds} of a batch, found one more")
            nodes, size = as_ids("nodes", nodes).to(torch.int64), self._sizes[end_types(edge_type)[1]]
            if (at := ops.first_outside(nodes, size)) >= 0:
                raise IndexError(f"nodes[{at}] = {int(nodes[at])} is out of range: expected nodes in [0, {size})")
            limits = torch.full_like(nodes, LATEST) if graph.is_temporal else None
            if time is not None:
                if not graph.is_temporal:
                    raise ValueError("time: expected none without time_attr, found some")
                check_times("time", time, len(nodes))
                limits = ordered_limit("time", time, graph.floating_time)
            left -= 1
            found = self._executor.edges_into(nodes, types.index(edge_type), limits)
            assert found.edge_id is not None
            colptr = torch.cat([torch.zeros(1, dtype=torch.int64), found.num_edges.cumsum(0)])
            return EdgesInto(colptr, found.source, found.edge_id)

        yield ask
        while left and self.collective:  # other ranks may ask this one still
            ask(torch.empty(0, dtype=torch.int64), types[0])
