"""Metrics of classification and ranking."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

from ..ops import first_outside
from ..ops.arguments import as_ids, check_int
from ..training import RankGroup


class Metric(ABC):
    """A score of classifications, added up batch after batch."""

    @abstractmethod
    def add(self, out: Tensor, target: Tensor) -> None:
        """Adds nodes: ``out`` has class scores [N, classes], ``target`` classes [N]."""

    @abstractmethod
    def value(self, ranks: RankGroup) -> float:
        """The score of the nodes of all ranks, which call this together."""


class Accuracy(Metric):
    """mean(argmax(out[i]) == target[i]) over the nodes of all ranks."""

    def __init__(self) -> None:
        self._right_and_all = torch.zeros(2, dtype=torch.int64)

    @override
    def add(self, out: Tensor, target: Tensor) -> None:
        self._right_and_all += torch.tensor([int((out.argmax(1) == target).sum()), len(target)])

    @override
    def value(self, ranks: RankGroup) -> float:
        right, number = ranks.total(self._right_and_all).tolist()
        return right / number if number else math.nan


class RocAuc(Metric):
    """:func:`roc_auc` of the second of two classes, over the nodes of all ranks."""

    def __init__(self) -> None:
        self._score: list[Tensor] = [torch.empty(0)]
        self._positive: list[Tensor] = [torch.empty(0, dtype=torch.bool)]

    @override
    def add(self, out: Tensor, target: Tensor) -> None:
        self._score.append((out[:, 1] - out[:, 0]).cpu())
        self._positive.append((target == 1).cpu())

    @override
    def value(self, ranks: RankGroup) -> float:
        return roc_auc(ranks.gathered(torch.cat(self._score)), ranks.gathered(torch.cat(self._positive)))


METRICS: dict[str, type[Metric]] = {"accuracy": Accuracy, "roc_auc": RocAuc}
"""By name: ``metric`` of a :class:`NodeTask`."""


def roc_auc(score: Tensor, positive: Tensor) -> float:
    """Area under the ROC curve: P(score of a positive > score of a negative), ties counted half; nan if there are no
    positives or no negatives."""
    _, value, count = torch.unique(score, return_inverse=True, return_counts=True)
    rank = (count.cumsum(0) - (count - 1).double() / 2)[value]  # the mean rank of equal scores
    positives = int(positive.sum())
    negatives = len(score) - positives
    wins = float(rank[positive].sum()) - positives * (positives + 1) / 2
    return wins / (positives * negatives) if positives and negatives else math.nan


def mean_roc_auc(scores: Tensor, positive: Tensor) -> float:
    """The mean of :func:`roc_auc` over the columns of [n, labels] that have both kinds of rows; nan without one."""
    each = [roc_auc(*column) for column in zip(scores.t(), positive.t(), strict=True)]
    return float(torch.tensor(each, dtype=torch.float64).nanmean())


def average_precision(score: Tensor, positive: Tensor) -> float:
    """The mean over positives p of (number of positives / number of items) among those with score >= score[p];
    nan if there are no positives."""
    if not bool(positive.any()):
        return math.nan
    values, value = torch.unique(-score, return_inverse=True)
    counts = torch.zeros(2, len(values), dtype=torch.float64)
    counts[0].index_add_(0, value, torch.ones(len(value), dtype=torch.float64))
    counts[1].index_add_(0, value, positive.double())
    above, hits = counts.cumsum(1)
    return float((counts[1] * hits / above).sum() / hits[-1])


def ranking(
    sources: Tensor, destinations: Tensor, test: Tensor, exclude: Tensor | None = None, k: int = 20,
    ranks: RankGroup | None = None,
) -> dict[str, float]:  # fmt: skip
    """How well the links ``test`` are found among each source's k best destinations: means over the sources that have
    such links. score(s, d) = sources[s] @ destinations[d].

    With hit(r) = 1 if the destination at rank r = 1 ... k is one of the n links of a source, else 0:

    - ``recall`` = sum of hit(r) / n
    - ``ndcg`` = sum of hit(r) / log2(r + 1), divided by the sum of 1 / log2(r + 1) over r = 1 ... min(n, k)
    - ``mrr`` = 1 / r of the first hit; 0 without one

    Memory beside the arguments: a block of scores of 64 MiB, or those of one source, and the sorted links.

    Args:
        sources: an embedding per source: float, shape [S, F].
        destinations: an embedding per destination: float, shape [D, F].
        test: the links to be found, (source, destination): integers, shape [2, m]; each counts once.
        exclude: links that are never recommended, such as those of training: integers, shape [2, n]. A link that is
            in both is none to be found.
        k: how many destinations are recommended to a source.
        ranks: of processes that each have other ``sources``, numbered from 0, with their links, and all
            ``destinations``, and call this together.

    Returns:
        ``recall``, ``ndcg`` and ``mrr``; nan if no source has links.

    Raises:
        ValueError: other shapes, or embeddings that are not finite.
        IndexError: names the first end of a link that is no row.
    """
    check_int("k", k, least=1)
    for name, rows in (("sources", sources), ("destinations", destinations)):
        if rows.dim() != 2 or rows.shape[1:] != sources.shape[1:]:
            raise ValueError(f"{name}: expected shape [n, F], F as of sources, found {list(rows.shape)}")
        if not bool(rows.isfinite().all()):
            raise ValueError(f"{name}: expected finite numbers, found others")
    size = len(destinations)
    wanted = _pairs("test", test, len(sources), size).to(sources.device)
    known = _pairs("exclude", test[:, :0] if exclude is None else exclude, len(sources), size).to(sources.device)
    wanted = wanted[~_is_among(wanted, known)]
    counts = torch.bincount(wanted // max(size, 1), minlength=len(sources))
    asked = counts.nonzero().view(-1)
    rank = torch.arange(1, min(k, size) + 1, dtype=torch.float64, device=sources.device)
    gain = 1 / torch.log2(rank + 1)
    sums = torch.tensor([0, 0, 0, len(asked)], dtype=torch.float64)
    for some in asked.split(max(_BLOCK // max(size, 1), 1)) if len(asked) else ():
        scores = sources[some] @ destinations.t()
        begin, end = torch.searchsorted(known, torch.stack([some[0], some[-1] + 1]) * size).tolist()
        source, destination = known[begin:end] // size, known[begin:end] % size
        row = torch.searchsorted(some, source)
        own = some[row.clamp(max=len(some) - 1)] == source
        scores[row[own], destination[own]] = -torch.inf
        best = scores.topk(len(rank), dim=1).indices
        hit = _is_among(some[:, None] * size + best, wanted).double()
        number = counts[some]
        found = [
            hit.sum(1) / number,
            hit @ gain / gain.cumsum(0)[number.clamp(max=len(rank)) - 1],
            (hit / rank).amax(1),
        ]
        sums[:3] += torch.stack(found).sum(1).cpu()
    *totals, number = (ranks or RankGroup()).total(sums).tolist()
    return {name: total / number if number else math.nan for name, total in zip(_RANKING, totals, strict=True)}


_RANKING = ("recall", "ndcg", "mrr")
_BLOCK = 1 << 24
"""Scores at once."""


def _pairs(name: str, links: Tensor, sources: int, destinations: int) -> Tensor:
    """source * D + destination of links, each once, rising: int64."""
    if links.dim() != 2 or len(links) != 2:
        raise ValueError(f"{name}: expected shape [2, n], found {list(links.shape)}")
    ends = [as_ids(f"{name}[{row}]", links[row]).to(torch.int64) for row in range(2)]
    for row, (end, size) in enumerate(zip(ends, (sources, destinations), strict=True)):
        if (at := first_outside(end.cpu(), size)) >= 0:
            raise IndexError(f"{name}[{row}, {at}] = {int(end[at])}: expected rows in [0, {size})")
    return (ends[0] * destinations + ends[1]).unique()


def _is_among(values: Tensor, rising: Tensor) -> Tensor:
    """Whether each value is one of ``rising``: bool, the shape of ``values``."""
    if not len(rising):
        return torch.zeros_like(values, dtype=torch.bool)
    return rising[torch.searchsorted(rising, values).clamp(max=len(rising) - 1)] == values
