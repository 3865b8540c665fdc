"""Anchors with lists of positives and negatives, and what is drawn for them by definition."""

from __future__ import annotations

import reference
import torch
from helpers.links import RATES, SIZES, heterogeneous
from torch_geometric.sampler import NegativeSampling

from torch_gnnscale import AnchorLoader, ops
from torch_gnnscale.random import batch_key

USERS = torch.tensor([39, 3, 0, 3, 7, 8, 11, 20, 21, 22])  # the first and the last, and one twice
TRIPLETS = NegativeSampling("triplet", 3)


def lists_of(seed, least=1, most=4, size=50):
    """(rowptr, col): ``least`` to ``most`` different items for each user; times follow from them."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(least, most + 1, (SIZES["user"],), generator=generator)
    col = torch.cat([torch.randperm(size, generator=generator)[:count] for count in counts.tolist()])
    return torch.cat([torch.zeros(1).long(), counts.cumsum(0)]), col


POSITIVES, NEGATIVES = lists_of(0), lists_of(1, least=0)


def entries(lists, user):
    rowptr, col = lists[:2]
    return col[rowptr[user] : rowptr[user + 1]].tolist()


def loader_of(data=None, anchors=("user", USERS), positives=(RATES, *POSITIVES), **options):
    data = heterogeneous() if data is None else data
    return AnchorLoader(data, [3, 2], anchors, positives, **{"batch_size": 4, "seed": 3, **options})


def drawn_by_definition(lists, users, count, number, purpose, limit=None, times=None):
    """By the twin: the entries drawn for each user of batch ``number``."""
    rowptr, col = lists
    time = None if times is None else [times]
    graph = ops.relations([rowptr], [col], time=time, src_type=[1], dst_type=[0], sizes=[SIZES["user"], 50])
    key = batch_key(batch_key(3, 0, number), purpose=purpose)
    limits = None if limit is None else [limit, None]
    none = torch.empty(0).long()
    sample = reference.sample_neighbors(graph, [users, none], [count], key, seed_time=limits, disjoint=True)
    row, col = sample.edge_index[0]
    return [sample.node[1][row[col == at]].tolist() for at in range(len(users))]


def found_in(batch, index, mask):
    """The ids at each anchor's positions."""
    items = batch["item"].n_id
    assert torch.equal(mask, index >= 0)
    return [items[of[of >= 0]].tolist() for of in index]


OPTIONS = {"shuffle": True, "num_positives": 2, "negatives": NEGATIVES, "neg_sampling": TRIPLETS}
