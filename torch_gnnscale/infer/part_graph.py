"""A rank's share of a part of a graph, whose other nodes other ranks have, and the steps that they take together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from .._user import warn
from ..comm.exchange import Exchange
from ..comm.mesh import check_alike
from ..comm.rendezvous import outcomes
from ..distributed.own_rows import OwnRows
from ..distributed.partitioned_features import PartitionedFeatureStore
from ..distributed.partitioned_graph import PartitionedGraphStore
from ..distributed.row_exchange import PartTables, RowKind, Wanted, exchange_ids
from ..loader.row_source import Bounds, StoreRows
from ..partition.directory import PartitionBook, edge_type_of
from ..partition.reading import StoredPart, StoredParts
from ..sampler.executor import Drawing, Executor, HostExecutor, sampled_store
from ..sampler.graph import end_types
from ..sampler.minibatch import MiniBatch, PreparedSeeds
from ..sampler.on_executor import write_sample
from ..sampler.relations import sampled_graph
from ..topology import CSC
from .staged_graph import StagedGraph

T = TypeVar("T")


class InferenceSteps:
    """The steps of the ranks of an inference, each of which has another share of a part. A context manager, which ends
    them.

    All ranks call the same methods in the same order. An error of this rank is given to one of them, which raises it
    here, and on the other ranks a RuntimeError that names this rank. If another error leaves the context, the others
    learn of it in what they wait for.

    Args:
        features: of the opened part.

    Raises:
        ValueError, RuntimeError: as of what the ranks of a part do together.
    """

    def __init__(self, features: PartitionedFeatureStore) -> None:
        self.rank_steps = features.open_inference_steps({"purpose": "inference"})
        self.ranks = features.ranks.alone
        self._taken = 0
        self._raised: Exception | None = None  # which the other ranks know of

    @property
    def rows(self) -> Exchange:
        """Over all ranks."""
        return self.rank_steps.rows

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order; anything that can be pickled."""
        with self._together():
            return self.rank_steps.gather(value)

    def alike(self, values: Mapping[str, Any]) -> None:
        """Raises ValueError, equal on all ranks, if the ranks have other values of a name."""
        found = self.gather(dict(values))
        with self._together():
            check_alike(found)

    def all_made(self, make: Callable[[], T]) -> T:
        """Calls ``make()``, which needs no other rank; returns its result when the call has succeeded on all ranks.

        Raises:
            RuntimeError: it failed on another rank, which the message names. What it raises itself is raised here.
        """
        made, error, texts = outcomes(make, self.gather)
        with self._together():
            if error is not None:
                raise error
            for rank, text in enumerate(texts):
                if text is not None:
                    raise RuntimeError(f"rank {rank}: {text}")
        return made  # type: ignore[return-value]

    def begin(self, number: int, count: int, counted: int) -> None:
        """An iteration of ``count`` steps begins, in which ranks exchange ``counted`` counts. ``number``: of the
        stage; 0 for what is none."""
        self._taken = 0
        self.rank_steps.thread.submit(self.rank_steps.begin, number, 0, count, counted, {}).result()

    def step(self, counts: Tensor | None, error: Exception | None, run: Callable[[Tensor], T]) -> T:
        """One step: all ranks agree to take it, then ``run(what each rank asks of this one)`` is called. Arguments and
        errors as of :meth:`Steps.step`."""
        number = self._taken * self.ranks.world + self.ranks.rank
        self._taken += 1
        with self._together():
            return self.rank_steps.thread.submit(self.rank_steps.step, number, error, counts, run).result()

    @contextmanager
    def _together(self) -> Iterator[None]:
        """What raises in it raises on all ranks."""
        try:
            yield
        except Exception as error:
            self._raised = error
            raise

    def __enter__(self) -> InferenceSteps:
        return self

    def __exit__(self, kind: Any, error: Any, *_: Any) -> None:
        if error is not None and error is not self._raised:
            self.rank_steps.lose(f"{kind.__name__}: {error}")
        self.rank_steps.drop()


class RowsOfParts:
    """Rows that the ranks read of each other. Those of one group are read for the same ids.

    Args:
        steps: of these ranks.
        bounds: of each group: the rank of share i has the ids bounds[i]..bounds[i + 1] - 1.
        kinds: the rows of each group's tables.
        own: this rank's.
    """

    def __init__(
        self, steps: InferenceSteps, bounds: Sequence[Tensor], kinds: Sequence[Sequence[RowKind]],
        own: Sequence[Sequence[OwnRows]],
    ) -> None:  # fmt: skip
        self._steps, self._tables = steps, PartTables(steps.ranks.part, bounds, kinds, own)

    def read(self, ids: Sequence[Tensor] | None, error: Exception | None = None) -> list[list[Tensor]]:
        """The rows of each group's tables, in a step.

        Args:
            ids: of each group, in [0, bounds[-1]), repeats allowed: int64; None: this rank only answers.
            error: why this rank cannot take the step.
        """
        tables, steps = self._tables, self._steps
        located = tables.locate([None] * len(tables.bounds) if ids is None or error is not None else ids)
        wanted = Wanted.of([of.remote for of in located], tables.bounds)

        def run(asked: Tensor) -> Any:
            return tables.exchange(steps.rank_steps.transport, asked, wanted)

        came = steps.step(wanted.counts, error, run)
        each = [[(t, a) for a in range(len(of_type))] for t, of_type in enumerate(tables.own)]
        return [tables.joined(which, located, came) for which in each]


def ids_at_owners(steps: InferenceSteps, bounds: Sequence[Tensor], ids: Sequence[Tensor]) -> list[Tensor]:
    """Sends ids to the ranks that own them, in one iteration of one step.

    Args:
        steps: of the ranks.
        bounds: of each group: the rank of share i has the ids bounds[i]..bounds[i + 1] - 1.
        ids: of each group, rising, none of this rank: int64.

    Returns:
        Of each group, the ids of this rank that others have sent, as numbers of its rows; there may be repeats.
    """
    counts, wanted = Wanted.of(ids, bounds)
    steps.begin(0, 1, len(bounds))
    found = steps.step(counts, None, lambda asked: exchange_ids(steps.rows, wanted, counts.tolist(), asked.tolist()))
    return [torch.cat(list(found[group :: len(bounds)])) for group in range(len(bounds))]


# The part #############################################################################################################


def features_of_part(data: Any) -> PartitionedFeatureStore | None:
    """The feature store of a part, if ``data`` are the stores of a part that the ranks read together; else None."""
    pair = isinstance(data, (tuple, list)) and len(data) == 2
    return data[0] if pair and isinstance(data[0], PartitionedFeatureStore) else None


class PartOfGraph(StagedGraph):
    """The nodes of this rank's share of a part, the edges into them and their rows. Sources are of all parts.

    Before :meth:`join`, it has all nodes of the part.

    Args:
        features, graph: the stores of the part.

    Raises:
        NotImplementedError: rows are on a GPU.
        ValueError: the part was closed.
    """

    def __init__(self, features: PartitionedFeatureStore, graph: Any) -> None:
        tiers = {} if features.tiers is None else features.tiers.rows_by_attribute()
        if features.rows_here or any(rows.device.type != "cpu" for rows in tiers.values()):
            raise NotImplementedError(
                "data: inference with rows on a GPU is not implemented; open the part with transport='auto' and tiers "
                "in host memory"
            )
        if tiers and (copies := features.ranks.copies) > 1:
            warn(
                f"tiers of the part have no effect in inference by {copies} ranks per part, which read its rows from "
                f"its files"
            )
        if features.buffer is not None:
            warn(f"open_part(buffer={features.buffer!r}) has no effect in inference, which reads rows in one pass")
        features.check_graph(features.parts.hetero, {})
        self._take(features, graph)
        self._steps: InferenceSteps
        self._executor: Executor

    def _take(self, features: PartitionedFeatureStore, graph: Any) -> None:
        self.features, self.part, book = features, features.part, features.parts.book
        own = {node_type: book.nodes(self.part.number, node_type) for node_type in book.bounds}
        super().__init__(
            (features, graph), dict(self.part.relations), {t: len(nodes) for t, nodes in own.items()},
            {t: book.num_nodes(t) for t in own}, {t: nodes.start for t, nodes in own.items()},
        )  # fmt: skip
        self._rows = StoreRows(features, graph)  # a loader's source would read in the loader's steps
        self.bounds = book.bounds
        """By type, the bounds of the stored ids of shares, in the order of parts."""

    def join(self, steps: InferenceSteps) -> None:
        """Divides the part among the ranks that hold it, and lets :meth:`small` draw and read in these steps. All ranks
        call it."""
        if (ranks := self.features.ranks).copies > 1:
            shares = ranks.grid.shares().column(0)

            def by_share(value: Any) -> list[Any]:
                of_ranks = steps.gather(value)
                return [of_ranks[rank] for rank in shares]

            parts, part = share(self.features.parts, self.part, ranks.copy, ranks.copies, by_share)
            features, replicated = self.features.of_share(parts, part), parts.topology == "replicated"
            graph = parts.graph().numbered_by(features.order) if replicated else PartitionedGraphStore(parts, part)
            self._take(features, graph)
        store, device = sampled_store(self._data), torch.device("cpu")
        self._steps = steps
        if store is None:
            self._executor = steps.all_made(lambda: HostExecutor(sampled_graph(self._data)))
        else:

            def executor() -> Executor:
                graph = store.sampled_graph(self.features, time_attr=None, weight_attr=None, backward=False)
                return store.executor(graph, device)

            self._executor = steps.all_made(executor)
        self._executor.join(steps.rank_steps, own_seeds=False)

    # A part to look at ###############################################################################################

    def _seeds(self, count: int) -> list[Tensor]:
        """As many of the seeds that the ranks propose as one rank has."""
        proposed = self._steps.gather([seeds.tolist() for seeds in super()._seeds(count)])
        found = []
        for of_type in zip(*proposed, strict=True):
            seeds, most = torch.tensor(sorted(id_ for of_rank in of_type for id_ in of_rank)), max(map(len, of_type))
            found.append(seeds.to(torch.int64)[torch.arange(most) * len(seeds) // max(most, 1)])
        return found

    def _drawn(self, seeds: list[Tensor]) -> Any:
        drawing = Drawing(self._fanouts, False, False, False, False, "directional")
        steps = self._steps.rank_steps

        def draw(_: Tensor) -> Any:
            made, error = None, None
            try:
                made = self._executor.draw([PreparedSeeds(seeds, ())], [0], drawing)[0]
            except Exception as failed:
                error = failed
            steps.agree(error, "sampling")
            return made

        self._steps.begin(0, 1, 0)
        write_sample(batch := MiniBatch(), self._steps.step(None, None, draw), self._executor.graph)
        return batch

    def _fetched(self, part: MiniBatch) -> Any:
        features, attrs = self.features, self._rows.wanted(part, Bounds())
        groups: dict[Any, list[Any]] = {}
        for attr in attrs:
            groups.setdefault(attr.group_name, []).append(attr)
        keys = [[(attr.group_name, attr.attr_name) for attr in of] for of in groups.values()]
        rows = RowsOfParts(
            self._steps, [features.bounds(group) for group in groups], [list(map(features.kind, of)) for of in keys],
            [list(map(features.own_rows, of)) for of in keys],
        )  # fmt: skip
        self._steps.begin(0, 1, len(groups))
        found = rows.read([features.places(group, of[0].index) for group, of in groups.items()])
        by_key = {key: value for of, got in zip(keys, found, strict=True) for key, value in zip(of, got, strict=True)}
        return [(attr, by_key[attr.group_name, attr.attr_name]) for attr in attrs]


def share_bounds(bounds: Tensor, copies: int) -> Tensor:
    """Divides each part's ids into ``copies`` consecutive shares, as :meth:`Tensor.tensor_split` does.

    Args:
        bounds: part i has the ids bounds[i]..bounds[i + 1] - 1: int64, shape [K + 1].
        copies: c.

    Returns:
        The bounds of the shares, those of a part one after another: int64, shape [K c + 1].
    """
    (each, more), copy = (bounds.diff() // copies, bounds.diff() % copies), torch.arange(copies)[:, None]
    begins = bounds[:-1] + copy * each + torch.minimum(copy, more)
    return torch.cat([begins.T.reshape(-1), bounds[-1:]])


def share(
    parts: StoredParts, part: StoredPart, copy: int, copies: int, gather: Callable[[Any], list[Any]]
) -> tuple[StoredParts, StoredPart]:
    """A share of a part, and the parts as they are if each of the K c shares is a part of its own.

    Seeds, links and halo remain those of the whole part.

    Args:
        parts, part: the opened directory, and the part of this rank.
        copy: which share: 0, ..., copies - 1.
        copies: c, how many shares a part has.
        gather: the values of all ranks, in the order of parts and of the shares of a part.
    """
    bounds = {node_type: share_bounds(of, copies) for node_type, of in parts.book.bounds.items()}
    number = part.number * copies + copy
    begins = {}
    for edge_type, csc in part.relations.items():
        of_nodes, first = bounds[end_types(edge_type)[1]], parts.book.edges(part.number, edge_type).start
        begins[edge_type] = first + int(csc.colptr[of_nodes[number] - of_nodes[part.number * copies]])
    of_ranks = gather(begins)
    edge_bounds = {t: torch.tensor([*(of[t] for of in of_ranks), parts.book.num_edges(t)]) for t in begins}
    book = PartitionBook(bounds, edge_bounds)

    def slice_of(group: Any) -> slice:
        if isinstance(group, tuple):
            edge_type = edge_type_of(group)
            own, first = book.edges(number, edge_type), parts.book.edges(part.number, edge_type).start
        else:
            own, first = book.nodes(number, group), parts.book.nodes(part.number, group).start
        return slice(own.start - first, own.stop - first)

    relations = {}
    for edge_type, csc in part.relations.items():
        nodes, edges = slice_of(end_types(edge_type)[1]), slice_of((None, None) if edge_type is None else edge_type)
        edge_id = None if csc.edge_id is None else csc.edge_id[edges]
        colptr = csc.colptr[nodes.start : nodes.stop + 1] - edges.start
        relations[edge_type] = CSC(colptr, csc.row[edges], edge_id, csc.num_src)
    return replace(parts, book=book), replace(
        part, number=number, relations=relations,
        rows={key: rows[slice_of(key[0])] for key, rows in part.rows.items()},
        user_ids={node_type: ids[slice_of(node_type)] for node_type, ids in part.user_ids.items()},
    )  # fmt: skip
