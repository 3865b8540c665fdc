"""Random typed graphs, with seeds of several types, links of several relations, or anchors: their batches."""

import itertools

import pytest
import torch
from helpers.data import plain
from helpers.slow import NIGHTLY, SLOW
from torch_geometric.data import HeteroData
from torch_geometric.sampler import NegativeSampling

from torch_gnnscale import AnchorLoader, LinkNeighborLoader, NeighborLoader, NeighborSampler
from torch_gnnscale.random import batch_key

SEEDS = [*range(12), *map(SLOW, range(12, 30)), *map(NIGHTLY, range(30, 300))]
WAYS = ({"prefetch": 0}, {"prefetch": 3}, {"bulk": 3, "prefetch": 3})


class Case:
    """A random graph with rows that tell the node, and random choices by one generator."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        types = [f"t{i}" for i in range(self.number(1, 4))]
        self.sizes = {node_type: self.number(1, 30) for node_type in types}
        self.data = HeteroData()
        for i, (node_type, size) in enumerate(self.sizes.items()):
            self.data[node_type].x = torch.arange(size)[:, None] + 100.0 * i
            self.data[node_type].time = self.ids(10, size)
        pairs = list(itertools.product(types, types))
        for i in range(self.number(1, 5)):
            src, dst = pairs[self.number(0, len(pairs))]
            edges = [
                self.ids(self.sizes[end], count) for count in [self.number(0 if i else 1, 80)] for end in (src, dst)
            ]
            self.data[src, f"r{i}", dst].edge_index = torch.stack(edges)
        self.timed = self.number(0, 3) == 0
        self.options = {"num_neighbors": [self.number(1, 4), self.number(-1, 4)], "seed": seed}
        self.options |= {"shuffle": bool(self.number(0, 2)), "replace": bool(self.number(0, 2))}
        self.options |= {"disjoint": bool(self.number(0, 2)), "drop_last": False}
        self.options |= {"time_attr": "time"} if self.timed else {}

    def number(self, least: int, beyond: int) -> int:
        return int(torch.randint(least, beyond, (), generator=self.generator))

    def ids(self, size: int, count: int):
        return torch.randint(size, (count,), generator=self.generator)

    def sizes_of(self, keys):
        """A batch size: a number, or one for each type."""
        each = {key: self.number(1, 6) for key in keys}
        return each if self.number(0, 2) else 1 + sum(each.values())

    def check_rows(self, batch) -> None:
        for i, node_type in enumerate(self.sizes):
            assert torch.equal(batch[node_type].x[:, 0], batch[node_type].n_id + 100.0 * i)

    def check_ways(self, kind, *arguments, **options) -> list:
        """The batches, which are the same in every way."""
        found = [list(kind(self.data, *arguments, **self.options, **options, **way)) for way in WAYS]
        assert plain(found[0]) == plain(found[1]) == plain(found[2])
        for batch in found[0]:
            self.check_rows(batch)
        return found[0]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.filterwarnings("ignore:replace=True has no effect")
def test_seeds_of_several_types(seed):
    case = Case(seed)
    seeds = {
        node_type: case.ids(size, case.number(0 if i else 1, 12))
        for i, (node_type, size) in enumerate(case.sizes.items())
    }
    times = {of: case.ids(10, len(nodes)) for of, nodes in seeds.items()} if case.timed else None
    sizes = case.sizes_of(seeds)
    options = {"input_nodes": seeds, "input_time": times, "batch_size": sizes}
    batches = case.check_ways(NeighborLoader, **options)
    names = ("replace", "disjoint", "time_attr")
    sampler = NeighborSampler(
        case.data, case.options["num_neighbors"], **{n: case.options[n] for n in names if n in case.options}
    )
    seen = {of: [] for of in seeds}
    for number, batch in enumerate(batches):
        chosen = {of: batch[of].input_id for of in seeds}
        at = {of: nodes[chosen[of]] for of, nodes in seeds.items()}
        limits = {of: times[of][chosen[of]] for of in seeds} if times else None
        out = sampler.sample(at, limits, batch_key(case.options["seed"], 0, number))
        for of, nodes in at.items():
            seen[of] += chosen[of].tolist()
            assert batch[of].batch_size == len(nodes)
            assert torch.equal(batch[of].n_id, out.node[of])
        if isinstance(sizes, dict):
            assert all(len(chosen[of]) <= sizes[of] for of in seeds)
        elif number + 1 < len(batches):
            assert sum(map(len, chosen.values())) == sizes
    assert {of: sorted(ids) for of, ids in seen.items()} == {of: list(range(len(n))) for of, n in seeds.items()}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.filterwarnings("ignore:replace=True has no effect")
def test_links_of_several_relations(seed):
    case = Case(seed)
    kinds = [None, NegativeSampling("binary", 0.5), NegativeSampling("binary", 2), NegativeSampling("triplet", 2)]
    links, negatives, times = {}, {}, {}
    for edge_type in case.data.edge_types:
        edges = case.data[edge_type].edge_index
        some = case.number(0 if links else 1, 15)
        links[edge_type] = edges[:, case.ids(edges.size(1), some)] if edges.size(1) else edges
        times[edge_type] = case.ids(10, links[edge_type].size(1)) + 10  # later than every node
        negatives[edge_type] = kinds[case.number(0, 4)]
    exclude = bool(case.number(0, 2))
    batches = case.check_ways(
        LinkNeighborLoader, edge_label_index=links, neg_sampling=negatives, batch_size=case.sizes_of(links),
        edge_label_time=times if case.timed else None, exclude_seed_edges=exclude,
    )  # fmt: skip
    seen = {of: [] for of in links}
    for batch in batches:
        for edge_type, of_type in links.items():
            store, (src, dst) = batch[edge_type], (batch[end].n_id for end in edge_type[::2])
            seen[edge_type] += store.input_id.tolist()
            given, kind = of_type[:, store.input_id], negatives[edge_type]
            count = given.size(1)
            if kind is not None and kind.is_triplet():
                # Of the only relation the fields are where PyG has them.
                of_src, of_dst = (store, store) if len(links) > 1 else (batch[end] for end in edge_type[::2])
                assert torch.equal(torch.stack([src[of_src.src_index], dst[of_dst.dst_pos_index]]), given)
                assert of_dst.dst_neg_index.shape == (count, 2)
            else:
                ends = torch.stack([src[store.edge_label_index[0]], dst[store.edge_label_index[1]]])
                assert torch.equal(ends[:, :count], given)
                assert ends.size(1) == count + (0 if kind is None else -int(-count * kind.amount // 1))
                if kind is not None:
                    assert torch.equal(store.edge_label, (torch.arange(ends.size(1)) < count).float())
            if exclude and not case.timed and not case.options["disjoint"]:
                drawn = torch.stack([src[store.edge_index[0]], dst[store.edge_index[1]]])
                assert not set(map(tuple, drawn.t().tolist())) & set(map(tuple, given.t().tolist()))
    assert {of: sorted(ids) for of, ids in seen.items()} == {of: list(range(n.size(1))) for of, n in links.items()}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.filterwarnings("ignore:replace=True has no effect")
def test_anchors(seed):
    case = Case(seed)
    types = list(case.sizes)
    src, dst = (types[case.number(0, len(types))] for _ in range(2))

    def lists(most):
        counts = torch.randint(0, most + 1, (case.sizes[src],), generator=case.generator)
        return torch.cat([torch.zeros(1).long(), counts.cumsum(0)]), case.ids(case.sizes[dst], int(counts.sum()))

    positives, own = lists(4), lists(3)
    anchors = case.ids(case.sizes[src], case.number(1, 12))
    time = case.ids(10, len(anchors)) if case.timed else None
    width = [-1, 1, 3][case.number(0, 3)]
    batches = case.check_ways(
        AnchorLoader, anchors=(src, anchors), positives=((src, "new", dst), *positives), num_positives=width,
        negatives=own, anchor_time=time, empty="skip", batch_size=case.number(1, 5),
    )  # fmt: skip
    times = case.data[dst].time

    def allowed(pointers, at):
        some = pointers[1][pointers[0][anchors[at]] : pointers[0][anchors[at] + 1]]
        return some if time is None else some[times[some] <= time[at]]

    seen = []
    for batch in batches:
        ids, items = batch[src].input_id, batch[dst].n_id
        seen += ids.tolist()
        assert torch.equal(batch[src].n_id[batch[src].src_index], anchors[ids])
        for number, at in enumerate(ids.tolist()):
            expected = sorted(allowed(positives, at).tolist())
            if width < 0:
                of, found = batch[src].label_index
                mine = items[found[of == batch[src].src_index[number]]]
                assert set(mine.tolist()) == set(expected)
            else:
                found = batch[dst].dst_pos_index[number]
                found = items[found[batch[dst].dst_pos_mask[number]]].tolist()
                assert len(found) == min(width, len(expected))
                assert all(found.count(item) <= expected.count(item) for item in found)
            of_own = batch[dst].dst_neg_index[number]
            of_own = items[of_own[batch[dst].dst_neg_mask[number]]]
            assert sorted(of_own.tolist()) == sorted(allowed(own, at).tolist())
    assert sorted(seen) == [at for at in range(len(anchors)) if len(allowed(positives, at))]
