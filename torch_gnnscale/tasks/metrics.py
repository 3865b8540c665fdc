"""Scores of classes, rankings and links."""

from __future__ import annotations

import torch
from torch import Tensor


def accuracy(out: Tensor, target: Tensor) -> float:
    """The share of rows of class scores [N, classes] whose largest is that of the class, ``target`` [N]."""
    return float((out.argmax(1) == target).float().mean())


def roc_auc(score: Tensor, positive: Tensor) -> float:
    """Area under the ROC curve: the share of (positive, negative) pairs in order, ties counted half."""
    _, place, count = torch.unique(score, return_inverse=True, return_counts=True)
    rank = (count.cumsum(0) - (count - 1).double() / 2)[place]  # the mean rank of equal scores
    positives = int(positive.sum())
    negatives = len(score) - positives
    wins = float(rank[positive].sum()) - positives * (positives + 1) / 2
    return wins / (positives * negatives)


def average_precision(score: Tensor, positive: Tensor) -> float:
    """The mean, over positives, of the share of positives among the items that score at least as high."""
    values, place = torch.unique(-score, return_inverse=True)
    counts = torch.zeros(2, len(values), dtype=torch.float64)
    counts[0].index_add_(0, place, torch.ones(len(place), dtype=torch.float64))
    counts[1].index_add_(0, place, positive.double())
    above, hits = counts.cumsum(1)
    return float((counts[1] * hits / above).sum() / hits[-1])


def recall_at(k: int, sources: Tensor, destinations: Tensor, links: Tensor, known: Tensor, chunk: int = 1024) -> float:
    """Recall@k of links among all destinations, scored by dot products, averaged over sources that have links.

    Args:
        k: how many destinations a source is offered.
        sources: a row for each source: [S, F].
        destinations: a row for each destination: [D, F].
        links: those to be found: int64, shape [2, m].
        known: links that are not offered any more: int64, shape [2, n]; none of ``links``.
        chunk: sources that are scored at a time.
    """
    size = len(destinations)
    wanted = (links[0] * size + links[1]).unique()
    counts = torch.bincount(wanted // size, minlength=len(sources))
    found = torch.zeros(len(sources))
    known = known[:, torch.argsort(known[0], stable=True)]
    asked = counts.nonzero().view(-1)
    for part in asked.split(chunk):
        scores = sources[part] @ destinations.t()
        place = torch.full((len(sources),), -1).index_put_((part,), torch.arange(len(part)))
        row = place[known[0]]
        scores[row[row >= 0], known[1, row >= 0]] = -torch.inf
        top = scores.topk(min(k, size), dim=1).indices
        pairs = part[:, None] * size + top
        found[part] = torch.isin(pairs, wanted).sum(1).float()
    return float((found[asked] / counts[asked]).mean())
