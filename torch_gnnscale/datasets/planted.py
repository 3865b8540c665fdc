"""Generated graphs with labels, links or events that a model can predict only from the graph, and random tensors,
functions of a seed, of which they are made."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from .. import ops
from ..ops.arguments import check_int, to_int
from ..random import Purpose, batch_key


def planted(
    num_nodes: int = 50_000,
    avg_degree: float = 20,
    num_classes: int = 16,
    num_features: int = 64,
    *,
    homophily: float = 0.6,
    signal: float = 1.0,
    exponent: float = 2.5,
    split: tuple[float, float] = (0.5, 0.2),
    seed: int = 0,
) -> Data:
    """A power-law graph with planted communities. A node's label shows weakly in its own features, and clearly in the
    features of its neighbors.

    A degree-corrected stochastic block model (Karrer & Newman, Phys. Rev. E 83, 2011). Each end of an edge is drawn
    with P(node) proportional to its power-law weight: the first from all nodes; the second, with probability
    ``homophily``, from the community of the first, else from all nodes. x[v] = signal * unit
    vector of v's community + N(0, 1).

    Args:
        num_nodes: number of nodes.
        avg_degree: edges per node, both directions counted, before self loops are removed.
        num_classes: number of communities; a node's label is its community.
        num_features: number of features per node.
        homophily: P(the second end of an edge is drawn from the community of the first).
        signal: length of a community's mean feature vector; the noise in its direction has length 1.
        exponent: exponent of the power law of expected degrees, above 2.
        split: fractions of the nodes for training and validation; the rest is for testing.
        seed: seed of all random numbers.

    Returns:
        A Data with ``x`` float32 [N, F], ``y`` int64 [N], ``edge_index`` int64 [2, E] in both directions, and
        ``train_mask``, ``val_mask``, ``test_mask``.
    """
    num_nodes, num_classes = check_int("num_nodes", num_nodes, 1), check_int("num_classes", num_classes, 1)
    random = Stream(seed)
    masks = random.masks(num_nodes, split)
    y = random.integers(num_nodes, num_classes)
    nodes = Communities(random, y, num_classes, exponent)
    num_edges = int(num_nodes * avg_degree / 2)
    src = nodes.draw(num_edges)
    within = random.uniform(num_edges) < homophily
    dst = torch.where(within, nodes.draw_from(y[src]), nodes.draw(num_edges))
    edges = torch.stack([src, dst])[:, src != dst]
    return Data(
        x=random.features(y, num_classes, num_features, signal),
        edge_index=torch.cat([edges, edges.flip(0)], dim=1),
        y=y,
        train_mask=masks[0],
        val_mask=masks[1],
        test_mask=masks[2],
    )


class Stream:
    """Independent random tensors: each is a function of the seed and of the number of the call."""

    def __init__(self, seed: int) -> None:
        self.seed = to_int("seed", seed)
        self.calls = 0

    def integers(self, count: int, below: int | Tensor) -> Tensor:
        """Integers in [0, below): int64, shape [count]; the bias is at most below / 2^63."""
        key = batch_key(self.seed, 0, self.calls, Purpose.GENERATE)
        self.calls += 1
        return (ops.random_bits(count, key) & (2**63 - 1)) % below

    def uniform(self, count: int) -> Tensor:
        """Numbers in (0, 1): float64, shape [count]."""
        return (self.integers(count, 1 << 53).double() + 0.5) / (1 << 53)

    def normal(self, count: int) -> Tensor:
        """Standard normal numbers by the method of Box and Muller: float32, shape [count]."""
        half = (count + 1) // 2
        radius, angle = (-2 * self.uniform(half).log()).sqrt(), 2 * math.pi * self.uniform(half)
        return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count].float()

    def features(self, community: Tensor, count: int, width: int, signal: float) -> Tensor:
        """signal * m[community[v]] + N(0, 1) for each node v, with one random unit vector m[c] per community c of
        ``count``: float32, shape [N, width]."""
        means = torch.nn.functional.normalize(self.normal(count * width).view(count, width))
        return signal * means[community] + self.normal(len(community) * width).view(len(community), width)

    def masks(self, count: int, split: tuple[float, float]) -> list[Tensor]:
        """Three disjoint random masks [count] for training, validation and testing; ``split``: fractions of the first
        two."""
        if not 0 < sum(split) < 1 or min(split) <= 0:
            raise ValueError(f"split: expected two positive fractions with a sum below 1, found {split}")
        order = ops.permutation(count, batch_key(self.seed, 1, 0, Purpose.GENERATE))
        bounds = [int(count * split[0]), int(count * (split[0] + split[1]))]
        masks = [torch.zeros(count, dtype=torch.bool) for _ in range(3)]
        for mask, chosen in zip(masks, order.tensor_split(bounds), strict=True):
            mask[chosen] = True
        return masks


class Communities:
    """Draws nodes, of all or of given communities, with P(node) proportional to a power-law weight.

    Args:
        random: the source of random numbers.
        community: community of each node: int64, shape [N], N > 0.
        count: number of communities.
        exponent: exponent of the power law of the weights, above 2.
    """

    def __init__(self, random: Stream, community: Tensor, count: int, exponent: float) -> None:
        if exponent <= 2:
            raise ValueError(f"exponent: expected more than 2, found {exponent}")
        self.random = random
        # A node of weight w holds w consecutive tickets; a draw picks a ticket. Weights are integers, so draws are
        # exact, and at most sqrt(N) times the smallest.
        nodes = len(community)
        weight = random.uniform(nodes).pow(-1 / (exponent - 1)).clamp(max=math.sqrt(nodes)).mul(1024).long()
        self.nodes = torch.argsort(community, stable=True)
        self.end = weight[self.nodes].cumsum(0)  # end of each node's range of tickets, communities in order
        held = torch.zeros(count, dtype=torch.int64).index_add_(0, community, weight)
        self.first = (held.cumsum(0) - held).masked_fill(held == 0, 0)  # a community without nodes has all tickets
        self.tickets = held.masked_fill(held == 0, int(self.end[-1]))

    def draw(self, count: int) -> Tensor:
        """Nodes drawn from all communities: int64, shape [count]."""
        return self._holder(self.random.integers(count, int(self.end[-1])))

    def draw_from(self, community: Tensor) -> Tensor:
        """result[i]: a node drawn from community[i], or from all if that has none: int64, shape of ``community``."""
        return self._holder(self.first[community] + self.random.integers(len(community), self.tickets[community]))

    def _holder(self, ticket: Tensor) -> Tensor:
        return self.nodes[torch.searchsorted(self.end, ticket, right=True)]


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
