"""A part of a graph whose other parts are held by other ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..distributed.feature_store import PartitionedFeatureStore
from ..loader.row_source import Bounds
from ..loader.sampled import MiniBatch
from ..sampler.executor import Drawing, Executor, HostExecutor, sampled_store
from ..sampler.output import as_output
from ..sampler.relations import sampled_graph
from .graph import StagedGraph
from .steps import InferenceSteps, RowsOfParts


def features_of_part(data: Any) -> PartitionedFeatureStore | None:
    """The feature store of a part, if ``data`` are the stores of a part that the ranks read together; else None."""
    pair = isinstance(data, (tuple, list)) and len(data) == 2
    return data[0] if pair and isinstance(data[0], PartitionedFeatureStore) else None


class PartOfGraph(StagedGraph):
    """The nodes of this rank's part, the edges into them and their rows. Sources are of all parts.

    Args:
        features, graph: the stores of the part.

    Raises:
        NotImplementedError: several ranks hold the part, or its rows are on a GPU.
        ValueError: the part was closed.
    """

    def __init__(self, features: PartitionedFeatureStore, graph: Any) -> None:
        if features.ranks.copies > 1:
            raise NotImplementedError(
                f"data: inference by {features.ranks.copies} ranks per part is not implemented; start as many ranks as "
                f"parts, {features.ranks.parts}"
            )
        tiers = {} if features.tiers is None else features.tiers.rows_by_attribute()
        if features.rows_here or any(rows.device.type != "cpu" for rows in tiers.values()):
            raise NotImplementedError(
                "data: inference with rows on a GPU is not implemented; open the part with transport='auto' and tiers "
                "in host memory"
            )
        features.check_graph(features.parts.hetero, {})
        self.features, self.part, book = features, features.part, features.parts.book
        own = {node_type: book.nodes(self.part.number, node_type) for node_type in book.bounds}
        super().__init__(
            (features, graph), dict(self.part.relations), {t: len(nodes) for t, nodes in own.items()},
            {t: book.num_nodes(t) for t in own}, {t: nodes.start for t, nodes in own.items()},
        )  # fmt: skip
        self.bounds = book.bounds
        """By type, the bounds of the parts' stored ids."""
        self._steps: InferenceSteps
        self._executor: Executor

    def join(self, steps: InferenceSteps) -> None:
        """Lets :meth:`small` draw and read in these steps. All ranks call it."""
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
        """See :meth:`StagedGraph._seeds`: as many of those that the ranks propose as one rank has."""
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
                made = self._executor.sample(seeds, 0, drawing)
            except Exception as failed:
                error = failed
            steps.agree(error, "sampling")
            return made

        self._steps.begin(0, 1, 0)
        return as_output(self._steps.step(None, None, draw), self._executor.graph, "directional")

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
        found = rows.read([features.places(of[0]) for of in groups.values()])
        by_key = {key: value for of, got in zip(keys, found, strict=True) for key, value in zip(of, got, strict=True)}
        return [(attr, by_key[attr.group_name, attr.attr_name]) for attr in attrs]
