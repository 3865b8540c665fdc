"""Recall, NDCG and MRR of recommended destinations."""

import math

import pytest
import torch
from helpers.cluster import cluster
from torch import distributed as dist
from torchmetrics.retrieval import RetrievalMRR, RetrievalNormalizedDCG, RetrievalRecall

from torch_gnnscale.comm.mesh import Ranks
from torch_gnnscale.tasks import metrics
from torch_gnnscale.tasks.metrics import ranking
from torch_gnnscale.training import RankGroup

TORCHMETRICS = {"recall": RetrievalRecall, "ndcg": RetrievalNormalizedDCG, "mrr": RetrievalMRR}


def case():
    """(sources, destinations, test, exclude): of 9 sources, number 3 has no link to be found, 5 none at all left."""
    generator = torch.Generator().manual_seed(1)
    sources, destinations = torch.randn(9, 4, generator=generator), torch.randn(12, 4, generator=generator)
    pairs = torch.randperm(9 * 12, generator=generator)[:70]
    links, known = (torch.stack([part // 12, part % 12]) for part in (pairs[:25], pairs[25:]))
    links = links[:, (links[0] != 3) & (links[0] != 5)]
    return (
        sources,
        destinations,
        links,
        torch.cat([known, torch.stack([torch.full((12,), 5), torch.arange(12)])], dim=1),
    )


def expected_of(k):
    sources, destinations, links, known = case()
    left = torch.ones(9, 12, dtype=torch.bool)
    left[known[0], known[1]] = False
    left &= torch.isin(torch.arange(9), links[0])[:, None]
    source, destination = left.nonzero().unbind(1)
    wanted = torch.zeros(9, 12, dtype=torch.bool)
    wanted[links[0], links[1]] = True
    scores, asked = (sources @ destinations.t())[source, destination], wanted[source, destination]
    scores = scores - scores.min() + 1  # torchmetrics finds nothing whose score is not above 0
    return {name: float(of(top_k=k)(scores, asked, indexes=source)) for name, of in TORCHMETRICS.items()}


@pytest.mark.parametrize(("k", "scores_at_once"), [(1, 24), (5, 24), (5, 1 << 24), (20, 1)])
def test_equals_torchmetrics(monkeypatch, k, scores_at_once):
    monkeypatch.setattr(metrics, "_BLOCK", scores_at_once)
    sources, destinations, links, known = case()
    both = torch.cat([links, links[:, :3], known[:, :2]], dim=1)  # some twice, and two that are excluded
    assert ranking(sources, destinations, both, known, k) == pytest.approx(expected_of(k))


def of_rank(k):
    ranks = RankGroup(Ranks(dist.get_rank(), dist.get_world_size()))
    sources, destinations, links, known = case()
    first, last = ((0, 7), (7, 7), (7, 9))[ranks.rank]  # rank 1 has no source
    own = [part[:, (part[0] >= first) & (part[0] < last)] - torch.tensor([[first], [0]]) for part in (links, known)]
    return ranking(sources[first:last], destinations, *own, k, ranks)


def test_ranks_have_the_means_over_the_sources_of_all():
    assert cluster(3).run(of_rank, 5) == [pytest.approx(expected_of(5))] * 3


@pytest.mark.parametrize(("links", "expected"), [([2], 1), ([2, 0], 1 / (1 + 1 / math.log2(3))), ([2, 0, 1], 1)])
def test_ndcg_is_a_share_of_what_as_many_hits_as_possible_have(links, expected):
    """The best two of three destinations, which are 2 and 1, may both be hits if there are two links or more."""
    destinations, test = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[0] * len(links), links])
    assert ranking(torch.ones(1, 1), destinations, test, k=2)["ndcg"] == pytest.approx(expected, rel=1e-12)


def test_without_links_there_is_no_score():
    none = torch.empty(2, 0, dtype=torch.int64)
    found = [ranking(torch.ones(2, 1), torch.ones(3, 1), none), ranking(torch.ones(0, 1), torch.ones(0, 1), none)]
    assert all(math.isnan(value) for scores in found for value in scores.values())


ONE = torch.zeros(2, 1, dtype=torch.int64)


@pytest.mark.parametrize(
    ("error", "said", "given"),
    [
        (
            ValueError,
            "destinations: expected shape [n, F], F as of sources, found [3, 2]",
            {"destinations": torch.ones(3, 2)},
        ),
        (ValueError, "sources: expected shape [n, F], F as of sources, found [3]", {"sources": torch.ones(3)}),
        (
            ValueError,
            "sources: expected shape [n, F], F as of sources, found [2, 1, 1]",
            {"sources": torch.ones(2, 1, 1), "destinations": torch.ones(2, 1, 1)},
        ),
        (ValueError, "sources: expected finite numbers, found others", {"sources": torch.full((2, 1), math.nan)}),
        (ValueError, "test: expected shape [2, n], found [1, 2]", {"test": ONE.t()}),
        (ValueError, "test: expected shape [2, n], found [2]", {"test": ONE.view(2)}),
        (ValueError, "exclude: expected shape [2, n], found [2, 1, 1]", {"exclude": ONE.view(2, 1, 1)}),
        (TypeError, "test[0]: expected integers, found torch.float32", {"test": ONE.float()}),
        (IndexError, "exclude[1, 0] = 2: expected rows in [0, 2)", {"exclude": torch.tensor([[1], [2]])}),
        (ValueError, "k: expected 1 <= k <= 4611686018427387904, found 0", {"k": 0}),
    ],
)
def test_what_cannot_be_ranked(error, said, given):
    with pytest.raises(error) as raised:
        ranking(**{"sources": torch.ones(2, 1), "destinations": torch.ones(2, 1), "test": ONE, **given})
    assert str(raised.value) == said
