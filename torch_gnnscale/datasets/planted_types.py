"""Generated graphs of several node types: labels, links and events that need the graph."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from .stream import Communities, Stream


def with_reverses(data: HeteroData) -> HeteroData:
    """Adds to every relation ``rel`` between nodes of two types its reverse, ``rev_rel``, with the same attributes."""
    for src, rel, dst in list(data.edge_types):
        if src != dst:
            for name, value in data[src, rel, dst].items():
                data[dst, f"rev_{rel}", src][name] = value.flip(0) if name == "edge_index" else value
    return data


def planted_types(
    num_authors: int = 4000,
    num_papers: int = 8000,
    num_venues: int = 40,
    num_classes: int = 8,
    num_features: int = 32,
    *,
    homophily: float = 0.7,
    signal: float = 1.0,
    split: tuple[float, float] = (0.2, 0.2),
    seed: int = 0,
) -> HeteroData:
    """Authors, papers and venues in communities: an author's label is told by where the author's papers appeared.

    Each paper has three authors, drawn in proportion to power-law weights, and one venue; each is of the paper's
    community with probability ``homophily``, else of any. Features of authors and papers are ``signal`` times a unit
    vector of the community plus standard normal noise; venues have none.

    Args:
        num_authors: authors.
        num_papers: papers.
        num_venues: venues, at least as many as classes.
        num_classes: communities.
        num_features: features of an author and of a paper.
        homophily: share of the edges that are drawn within a community.
        signal: length of a community's mean feature vector; the noise in its direction has length 1.
        split: shares of the authors for training and validation; the rest is for testing.
        seed: decides everything.

    Returns:
        A HeteroData of node types ``author`` (``x``, ``y`` int64, ``train_mask``, ``val_mask``, ``test_mask``),
        ``paper`` (``x``) and ``venue``, and of the relations ``written_by`` and ``published_in`` with their reverses.
    """
    _check_members("num_venues", num_venues, num_classes)
    random = Stream(seed)
    masks = random.masks(num_authors, split)
    y, topic = random.integers(num_authors, num_classes), random.integers(num_papers, num_classes)
    data = HeteroData()
    data["author"].x = random.features(y, num_classes, num_features, signal)
    data["author"].y = y
    for name, mask in zip(("train", "val", "test"), masks, strict=True):
        data["author"][f"{name}_mask"] = mask
    data["paper"].x = random.features(topic, num_classes, num_features, signal)
    data["venue"].num_nodes = num_venues
    paper = torch.arange(num_papers)
    for relation, other, community, of_each in (
        ("written_by", "author", y, 3),
        ("published_in", "venue", torch.arange(num_venues) % num_classes, 1),
    ):
        members = Communities(random, community, num_classes, exponent=2.5)
        papers = paper.repeat_interleave(of_each)
        ends = _mostly_within(random, members, topic[papers], homophily)
        data["paper", relation, other].edge_index = torch.stack([papers, ends])
    return with_reverses(data)


def planted_links(
    num_users: int = 2000,
    num_items: int = 3000,
    num_links: int = 60_000,
    num_communities: int = 20,
    *,
    homophily: float = 0.8,
    split: tuple[float, float] = (0.7, 0.1),
    seed: int = 0,
) -> tuple[HeteroData, dict[str, Tensor]]:
    """Users who choose items: popular ones, and mostly those of their community.

    Args:
        num_users: users.
        num_items: items, at least as many as communities.
        num_links: links that are drawn; repeated ones count once.
        num_communities: communities.
        homophily: share of the links that are drawn within a community.
        split: shares of the links for training and validation; the rest is for testing.
        seed: decides everything.

    Returns:
        A HeteroData of node types ``user`` and ``item``, without features, and of the training links as the relation
        ``chooses`` with its reverse; and all links by part: ``train``, ``val`` and ``test``, int64 [2, m].
    """
    _check_members("num_items", num_items, num_communities)
    random = Stream(seed)
    of_user, of_item = random.integers(num_users, num_communities), torch.arange(num_items) % num_communities
    users = Communities(random, of_user, num_communities, exponent=2.5).draw(num_links)
    items = _mostly_within(random, Communities(random, of_item, num_communities, 2.5), of_user[users], homophily)
    pairs = (users * num_items + items).unique()
    links = torch.stack([pairs // num_items, pairs % num_items])
    masks = random.masks(len(pairs), split)
    parts = {name: links[:, mask] for name, mask in zip(("train", "val", "test"), masks, strict=True)}
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = num_users, num_items
    data["user", "chooses", "item"].edge_index = parts["train"]
    return with_reverses(data), parts


def planted_events(
    num_users: int = 1000,
    num_pages: int = 300,
    num_events: int = 30_000,
    num_communities: int = 10,
    *,
    homophily: float = 0.9,
    loyalty: float = 0.5,
    seed: int = 0,
) -> HeteroData:
    """Users who visit pages in the course of time: some they visited lately, else mostly pages of their community.

    An event repeats the page of one of the user's latest events with probability ``loyalty``: of the j-th before it
    with probability 2^-j.

    Args:
        num_users: users.
        num_pages: pages, at least as many as communities.
        num_events: events.
        num_communities: communities.
        homophily: share of the other events that are drawn within a community.
        loyalty: share of the events that repeat an earlier one.
        seed: decides everything.

    Returns:
        A HeteroData of node types ``user`` and ``page``, without features, and of the events as the relation
        ``visits`` with its reverse, each with ``time``: int64 [E], ascending, in seconds.
    """
    _check_members("num_pages", num_pages, num_communities)
    random = Stream(seed)
    of_user, of_page = random.integers(num_users, num_communities), torch.arange(num_pages) % num_communities
    users = Communities(random, of_user, num_communities, exponent=2.5).draw(num_events)
    fresh = _mostly_within(random, Communities(random, of_page, num_communities, 2.5), of_user[users], homophily)

    # Each user's events in a row; an event has the page of the one that a chain of repetitions leads to.
    order = torch.argsort(users, stable=True)
    place = torch.arange(num_events)
    counts = torch.bincount(users, minlength=num_users)
    first = (counts.cumsum(0) - counts)[users[order]]
    origin = place - 1 - (random.uniform(num_events).log2().neg()).long()
    repeats = (random.uniform(num_events) < loyalty) & (origin >= first)
    origin = torch.where(repeats, origin, place)
    while not torch.equal(origin, origin[origin]):
        origin = origin[origin]
    pages = torch.empty_like(fresh)
    pages[order] = fresh[order][origin]

    data = HeteroData()
    data["user"].num_nodes, data["page"].num_nodes = num_users, num_pages
    data["user", "visits", "page"].edge_index = torch.stack([users, pages])
    data["user", "visits", "page"].time = random.integers(num_events, 120).cumsum(0)
    return with_reverses(data)


def _check_members(name: str, members: int, communities: int) -> None:
    if members < communities:
        raise ValueError(f"{name}: expected at least one a community ({communities}), found {members}")


def _mostly_within(random: Stream, members: Communities, community: Tensor, homophily: float) -> Tensor:
    """A member of each community with probability ``homophily``, else any member."""
    within = random.uniform(len(community)) < homophily
    return torch.where(within, members.draw_from(community), members.draw(len(community)))
