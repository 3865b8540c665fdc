"""Generated heterogeneous graphs with labels, links or events that a model can predict only from the graph."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from ..ops.arguments import check_int
from .planted import Communities, Stream


def with_reverses(data: HeteroData) -> HeteroData:
    """Adds the reverse ``rev_rel`` of each relation ``rel`` between two node types, with the same attributes.

    A relation whose reverse is in the graph already gets none, and neither does one that is a reverse itself.
    """
    given = data.edge_types
    reverses = {(dst, f"rev_{rel}", src) for src, rel, dst in given}
    for src, rel, dst in given:
        reverse = (dst, f"rev_{rel}", src)
        if src != dst and reverse not in given and (src, rel, dst) not in reverses:
            for name, value in data[src, rel, dst].items():
                data[reverse][name] = value.flip(0) if name == "edge_index" else value
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
    """Authors, papers and venues in communities. An author's label, its community, follows from its papers' venues.

    Each paper has three authors and one venue, drawn with P(node) proportional to its power-law weight: with
    probability ``homophily`` from the paper's community if that has any, else from all. Features of authors and papers
    are signal * unit vector of the community + N(0, 1); venues have none.

    Args:
        num_authors: number of authors.
        num_papers: number of papers.
        num_venues: number of venues, at least ``num_classes``.
        num_classes: number of communities.
        num_features: number of features of an author and of a paper.
        homophily: P(an author or venue is drawn from the paper's community).
        signal: length of a community's mean feature vector; the noise in its direction has length 1.
        split: fractions of the authors for training and validation; the rest is for testing.
        seed: seed of all random numbers.

    Returns:
        A HeteroData of node types ``author`` (``x``, ``y`` int64, ``train_mask``, ``val_mask``, ``test_mask``),
        ``paper`` (``x``) and ``venue``, and of the relations ``written_by`` and ``published_in`` with their reverses.
    """
    num_authors, num_classes = check_int("num_authors", num_authors, 1), check_int("num_classes", num_classes, 1)
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
    """Users who choose popular items, mostly of their own community.

    P(item) is proportional to a power-law weight: with probability ``homophily`` among the items of the user's
    community, else among all items.

    Args:
        num_users: number of users.
        num_items: number of items, at least ``num_communities``.
        num_links: number of links drawn; repeated links are kept once.
        num_communities: number of communities.
        homophily: P(an item is drawn from the user's community).
        split: fractions of the links for training and validation; the rest is for testing.
        seed: seed of all random numbers.

    Returns:
        A HeteroData with node types ``user`` and ``item``, without features, and relation ``chooses``, the training
        links, with its reverse; and a dictionary of the links of ``train``, ``val`` and ``test``: int64 [2, m].
    """
    num_users = check_int("num_users", num_users, 1)
    num_communities = check_int("num_communities", num_communities, 1)
    _check_members("num_items", num_items, num_communities)
    random = Stream(seed)
    of_user, of_item = random.integers(num_users, num_communities), torch.arange(num_items) % num_communities
    users = Communities(random, of_user, num_communities, exponent=2.5).draw(num_links)
    items = _mostly_within(random, Communities(random, of_item, num_communities, 2.5), of_user[users], homophily)
    pairs = (users * num_items + items).unique()
    links = torch.stack([pairs // num_items, pairs % num_items])
    masks = random.masks(len(pairs), split)
    by_subset = {name: links[:, mask] for name, mask in zip(("train", "val", "test"), masks, strict=True)}
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = num_users, num_items
    data["user", "chooses", "item"].edge_index = by_subset["train"]
    return with_reverses(data), by_subset


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
    """Users who visit pages at times: pages that they visited recently, else mostly pages of their community.

    With probability ``loyalty`` an event repeats the page of an earlier event of the user: the j-th before it with
    probability 2^-j (a new page if there is none). A new page is drawn as an item in :func:`planted_links`.

    Args:
        num_users: number of users.
        num_pages: number of pages, at least ``num_communities``.
        num_events: number of events.
        num_communities: number of communities.
        homophily: P(a new page is drawn from the user's community).
        loyalty: P(an event repeats an earlier one).
        seed: seed of all random numbers.

    Returns:
        A HeteroData with node types ``user`` and ``page``, without features, and relation ``visits``, the events, with
        its reverse; both have ``time``: int64 [E], ascending, in seconds.
    """
    num_users = check_int("num_users", num_users, 1)
    num_communities = check_int("num_communities", num_communities, 1)
    _check_members("num_pages", num_pages, num_communities)
    random = Stream(seed)
    of_user, of_page = random.integers(num_users, num_communities), torch.arange(num_pages) % num_communities
    users = Communities(random, of_user, num_communities, exponent=2.5).draw(num_events)
    fresh = _mostly_within(random, Communities(random, of_page, num_communities, 2.5), of_user[users], homophily)

    # position: events sorted by (user, time). origin[i]: the event whose page event i repeats, or i for a new page;
    # following it to the end of the chain gives the event that chose the page.
    order = torch.argsort(users, stable=True)
    position = torch.arange(num_events)
    counts = torch.bincount(users, minlength=num_users)
    first = (counts.cumsum(0) - counts)[users[order]]
    origin = position - 1 - (random.uniform(num_events).log2().neg()).long()
    repeats = (random.uniform(num_events) < loyalty) & (origin >= first)
    origin = torch.where(repeats, origin, position)
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
        raise ValueError(f"{name}: expected at least one per community ({communities}), found {members}")


def _mostly_within(random: Stream, members: Communities, community: Tensor, homophily: float) -> Tensor:
    """result[i]: a member of community[i] with probability ``homophily``, else of any community."""
    within = random.uniform(len(community)) < homophily
    return torch.where(within, members.draw_from(community), members.draw(len(community)))
