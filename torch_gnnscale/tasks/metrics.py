"""Metrics of classification and ranking."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

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

    def add(self, out: Tensor, target: Tensor) -> None:
        """See :meth:`Metric.add`."""
        self._right_and_all += torch.tensor([int((out.argmax(1) == target).sum()), len(target)])

    def value(self, ranks: RankGroup) -> float:
        """See :meth:`Metric.value`."""
        right, number = ranks.total(self._right_and_all).tolist()
        return right / number if number else math.nan


class RocAuc(Metric):
    """:func:`roc_auc` of the second of two classes, over the nodes of all ranks."""

    def __init__(self) -> None:
        self._score: list[Tensor] = [torch.empty(0)]
        self._positive: list[Tensor] = [torch.empty(0, dtype=torch.bool)]

    def add(self, out: Tensor, target: Tensor) -> None:
        """See :meth:`Metric.add`."""
        self._score.append((out[:, 1] - out[:, 0]).cpu())
        self._positive.append((target == 1).cpu())

    def value(self, ranks: RankGroup) -> float:
        """See :meth:`Metric.value`."""
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


def recall_at(k: int, sources: Tensor, destinations: Tensor, links: Tensor, known: Tensor, chunk: int = 1024) -> Tensor:
    """Recall@k of each source that has links: (number of its links among its k best destinations) / (number of its
    links). score(s, d) = sources[s] @ destinations[d].

    Args:
        k: how many destinations are recommended to a source.
        sources: an embedding per source: [S, F].
        destinations: an embedding per destination: [D, F].
        links: the links to be found: int64, shape [2, m].
        known: links that are never recommended: int64, shape [2, n]; disjoint from ``links``.
        chunk: how many sources are scored at once.

    Returns:
        float64, one for each source that has links.
    """
    size = len(destinations)
    wanted = (links[0] * size + links[1]).unique()
    counts = torch.bincount(wanted // size, minlength=len(sources))
    found = torch.zeros(len(sources))
    asked = counts.nonzero().view(-1)
    for some in asked.split(chunk):
        scores = sources[some] @ destinations.t()
        place = torch.full((len(sources),), -1).index_put_((some,), torch.arange(len(some)))
        row = place[known[0]]
        scores[row[row >= 0], known[1, row >= 0]] = -torch.inf
        top = scores.topk(min(k, size), dim=1).indices
        pairs = some[:, None] * size + top
        found[some] = torch.isin(pairs, wanted).sum(1).float()
    return found[asked].double() / counts[asked]
