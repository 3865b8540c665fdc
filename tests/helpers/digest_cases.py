"""The batches that are pinned by their digests: every option of loaders and samplers, and every way to carry it out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch_geometric.loader as pyg
from helpers import hetero, links
from helpers.data import double, make_data, our_stores, processes
from helpers.digest_graphs import (
    adjacency,
    edge_timed,
    foreign,
    hetero_timed,
    hetero_weighted,
    hubs,
    mapped,
    shuffled,
    tiered,
    timed,
    weighted,
    without_edges,
)
from helpers.hetero import AUTHOR, CITES, PAPER, WRITES
from helpers.links import FRIENDS, RATES, times_of
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput

from torch_gnnscale import (
    BidirectionalNeighborSampler,
    LinkNeighborLoader,
    NeighborLoader,
    NeighborSampler,
    ops,
    patch_pyg,
)
from torch_gnnscale.datasets import planted
from torch_gnnscale.random import Purpose, batch_key, draw_seed, ids_key
from torch_gnnscale.topology.edge_sources import rmat
from torch_gnnscale.topology.reorder import by_score

EPOCHS = 2
SEED, KEY = 11, 0x123456789ABCDEF


class Case(NamedTuple):
    """How one entry of the table is made."""

    batches: Callable[[Path, str], Iterable[Any]]
    """Of a folder to write in, and of a way."""
    ways: tuple[str, ...] = ("plain",)
    like: str | None = None
    """The case whose entry it shares, if it has none of its own: another store of the same rows."""


EXECUTION: dict[str, dict[str, int]] = {
    "plain": {"prefetch": 0},
    "ahead": {"prefetch": 4},
    "workers": processes(2),
    "bulk": {"bulk": 3, "prefetch": 0},
    "bulks ahead": {"bulk": 4, "prefetch": 8},
}
WAYS = ("plain", "ahead", "resumed", "set epoch", "bulk")
WITH_WORKERS = (*WAYS, "workers")
IN_BULK = (*WAYS, "bulks ahead")


def two_epochs(make: Callable[..., Any], way: str) -> Iterator[Any]:
    """The batches of epochs 0 and 1 of loaders that ``make(**execution)`` gives, all of one kind."""
    if way.startswith("resumed"):
        first, second = (make(**EXECUTION[name]) for name in ("ahead", "workers" if "workers" in way else "plain"))
        batches = iter(first)
        yield from islice(batches, len(first) // 2)
        state = first.state_dict()
        batches.close()
        second.load_state_dict(state)
        yield from second
        yield from second
    elif way == "set epoch":
        yield from make()
        second = make()
        second.set_epoch(1)
        yield from second
    else:
        loader = make(**EXECUTION[way])
        for _ in range(EPOCHS):
            yield from loader


def loaded(kind: type, source: Callable[[Path], Any], ways: tuple[str, ...], like: str | None, **options: Any) -> Case:
    """Batches of a loader of ``source(folder)``."""

    def batches(folder: Path, way: str) -> Iterator[Any]:
        data = source(folder)
        return two_epochs(lambda **execution: kind(data, **{**options, **execution}), way)

    return Case(batches, ways, like)


NODES_OPTIONS = {"num_neighbors": [3, 2], "batch_size": 32, "seed": SEED, "shuffle": True}


def nodes(source: Callable[[], Any] = make_data, ways: tuple[str, ...] = WAYS, **options: Any) -> Case:
    return loaded(NeighborLoader, lambda folder: source(), ways, None, **{**NODES_OPTIONS, **options})


def on_disk(
    source: Callable[[Path], Any], ways: tuple[str, ...] = WAYS, like: str | None = None, **options: Any
) -> Case:
    return loaded(NeighborLoader, source, ways, like, **{**NODES_OPTIONS, **options})


def of_links(source: Callable[[], Any] = links.homogeneous, ways: tuple[str, ...] = WAYS, **options: Any) -> Case:
    usual = {**NODES_OPTIONS, "batch_size": 64}
    return loaded(LinkNeighborLoader, lambda folder: source(), ways, None, **{**usual, **options})


OF_PAPERS = {"input_nodes": PAPER, "batch_size": 10}


def papers(source: Callable[[], Any] = hetero.make_hetero, ways: tuple[str, ...] = WAYS, **options: Any) -> Case:
    return nodes(source, ways, **{**OF_PAPERS, **options})


def patched(kind: type, source: Callable[[], Any], **options: Any) -> Case:
    """PyG's own loader, on our operators."""

    def batches(folder: Path, way: str) -> Iterator[Any]:
        with patch_pyg():
            torch.manual_seed(SEED)
            loader = kind(source(), **{"num_neighbors": [3, 2], "batch_size": 32, "shuffle": True, **options})
            for _ in range(EPOCHS):
                yield from loader

    return Case(batches)


def ids(*values: int) -> Tensor:
    return torch.tensor(values)


def drawn(make: Callable[[], Any], inputs: Any, **options: Any) -> Case:
    """Outputs of a sampler that is given two keys, and one from torch's generator."""

    def batches(folder: Path, way: str) -> Iterator[Any]:
        sampler = make()
        draw = sampler.sample_from_edges if isinstance(inputs, EdgeSamplerInput) else sampler.sample_from_nodes
        yield draw(inputs, **options, key=KEY)
        yield draw(inputs, **options, key=-1)
        torch.manual_seed(SEED)
        yield draw(inputs, **options)

    return Case(batches)


def one_off(*indices: Any, kind: type = NeighborLoader, **options: Any) -> Case:
    """Batches of given inputs, which have no numbers."""

    def batches(folder: Path, way: str) -> Iterator[Any]:
        loader = kind(links.homogeneous(), [3, 2], batch_size=32, seed=SEED, **options)
        return map(loader, indices)

    return Case(batches)


def plain_values(make: Callable[[], dict[str, Any]]) -> Case:
    return Case(lambda folder, way: [make()])


BINARY, TRIPLET = NegativeSampling("binary", 1.5), NegativeSampling("triplet", 2)
WEIGHTS = torch.arange(60) % 5 / 4
HEAVY = NegativeSampling("binary", 2, WEIGHTS, WEIGHTS.flip(0))
LINKS = torch.stack([torch.arange(40).repeat_interleave(2), torch.arange(80) % 40])
MASK = torch.arange(200) % 3 == 0
NODE_INPUTS = NodeSamplerInput(None, ids(5, 17, 5, 199, 0))
TIMED_INPUTS = NodeSamplerInput(ids(3, 4), ids(5, 17), ids(4, 9))
LINK_INPUTS = EdgeSamplerInput(torch.arange(5), ids(5, 17, 5, 59, 0), ids(1, 2, 3, 4, 5))


def samples(way: str, kind: type, source: Callable[[], Any], **options: Any) -> Iterator[Any]:
    loader = kind(source(), [3, 2], batch_size=32, seed=SEED, shuffle=True, **options, **EXECUTION[way])
    return chain(loader.samples(0), loader.samples(1))


def orders() -> dict[str, Any]:
    """The functions that decide keys and orders."""
    inputs = dict(zip("abc", [(0,), (1, 2, 3), (-1, 5, 1 << 40, Purpose.NEGATIVE)], strict=True))
    return {
        "batch_key": {name: batch_key(*given) for name, given in inputs.items()},
        "ids_key": [ids_key(SEED, ids(3, 1, 2)), ids_key(SEED, ids(3, 2, 1).int())],
        "draw_seed": draw_seed(torch.Generator().manual_seed(SEED)),
        "permutation": [ops.permutation(count, KEY) for count in (0, 1, 2, 257, 1000)],
        "random_bits": ops.random_bits(100, KEY),
        "by_score": list(by_score(torch.arange(100) * 37 % 11)),
    }


def task() -> dict[str, Any]:
    """A planted graph but for its features, which are made by cosines and logarithms."""
    data = planted(300, 8, 4, 4, seed=SEED)
    return {name: data[name] for name in ("edge_index", "y", "train_mask", "val_mask", "test_mask")}


def graphs() -> dict[str, Any]:
    """What the other cases are made of: if this differs, torch's generator does."""
    made = {"data": make_data(), "timed": timed(), "links": links.homogeneous(), "hubs": hubs()}
    types = {"hetero": hetero.with_weights(hetero_timed()), "rated": links.heterogeneous()}
    return {
        **{name: data.to_dict() for name, data in made.items()},
        **{name: data.to_dict() for name, data in types.items()},
        "rmat": rmat(100, 1000, seed=SEED),
    }


CASES: dict[str, Case] = {
    "graphs": plain_values(graphs),
    "orders": plain_values(orders),
    "planted": plain_values(task),
    # Nodes, homogeneous
    "uniform": nodes(ways=(*IN_BULK, "workers", "resumed by workers")),
    "in order": nodes(ways=IN_BULK, shuffle=False),
    "drop last": nodes(ways=IN_BULK, drop_last=True),
    "another seed": nodes(seed=-5),
    "replace": nodes(ways=IN_BULK, replace=True),
    "all neighbors": nodes(ways=IN_BULK, num_neighbors=[-1, 4]),
    "three hops": nodes(ways=IN_BULK, num_neighbors=[2, 0, 3]),
    "no hops": nodes(num_neighbors=[]),
    "weighted": nodes(weighted, WITH_WORKERS, weight_attr="weight"),
    "weighted replace": nodes(weighted, weight_attr="weight", replace=True),
    "weighted disjoint": nodes(weighted, weight_attr="weight", disjoint=True),
    "weighted induced": nodes(weighted, weight_attr="weight", subgraph_type="induced"),
    "node times": nodes(timed, WITH_WORKERS, time_attr="time"),
    "node times last": nodes(timed, time_attr="time", temporal_strategy="last"),
    "node times given": nodes(timed, time_attr="time", input_time=times_of(200, 8)),
    "node times replace": nodes(timed, time_attr="time", replace=True),
    "edge times": nodes(timed, time_attr="when", input_time=times_of(200, 8)),
    "edge times last": nodes(timed, time_attr="when", input_time=times_of(200, 8), temporal_strategy="last"),
    "disjoint": nodes(disjoint=True),
    "disjoint replace": nodes(disjoint=True, replace=True),
    "induced": nodes(subgraph_type="induced"),
    "bidirectional": nodes(subgraph_type="bidirectional"),
    "disjoint induced": nodes(disjoint=True, subgraph_type="induced"),
    "disjoint bidirectional": nodes(disjoint=True, subgraph_type="bidirectional"),
    "times induced": nodes(timed, time_attr="time", subgraph_type="induced"),
    "hubs": nodes(hubs, IN_BULK, num_neighbors=[15, 10], input_nodes=torch.arange(96)),
    "hubs int32": nodes(lambda: hubs(torch.int32), IN_BULK, num_neighbors=[70, 5], input_nodes=torch.arange(96)),
    "hubs replace": nodes(hubs, num_neighbors=[200, 2], input_nodes=torch.arange(96), replace=True),
    "hubs weighted": nodes(hubs, num_neighbors=[40, 5], input_nodes=torch.arange(96), weight_attr="weight"),
    "layers": nodes(ways=(*IN_BULK, "workers"), layers=True),
    "layers replace": nodes(ways=IN_BULK, layers=True, replace=True),
    "layers weighted": nodes(weighted, layers=True, weight_attr="weight"),
    "layers disjoint": nodes(layers=True, disjoint=True),
    "layers EdgeIndex": nodes(layers=True, edge_layout="EdgeIndex"),
    "EdgeIndex": nodes(ways=IN_BULK, edge_layout="EdgeIndex"),
    "sparse_csr": nodes(ways=IN_BULK, edge_layout="sparse_csr"),
    "adj_t": nodes(adjacency, WITH_WORKERS),
    "adj_t as coo": nodes(adjacency, edge_layout="coo"),
    "adj_t induced": nodes(adjacency, subgraph_type="induced"),
    "no edges": nodes(without_edges, batch_size=4),
    "repeated seeds": nodes(ways=IN_BULK, input_nodes=ids(3, 3, 9, 4, 3).repeat(9)),
    "repeated seeds disjoint": nodes(input_nodes=ids(3, 3, 9, 4, 3).repeat(9), disjoint=True),
    "mask": nodes(ways=IN_BULK, input_nodes=MASK),
    "input_id": nodes(ways=IN_BULK, input_nodes=ids(19, 4, 7, 150), batch_size=2, input_id=ids(70, 71, 72, 73)),
    "transform": nodes(ways=(*IN_BULK, "workers"), transform=double),
    "filtered by workers": nodes(ways=("workers",), filter_per_worker=True, input_nodes=torch.arange(90)),
    "sampler": nodes(shuffle=False, sampler=list(range(100, 0, -2))),
    "batch sampler": nodes(shuffle=False, batch_size=1, batch_sampler=[[3, 1], [7], [100, 5, 9]]),
    "of a generator": Case(lambda folder, way: two_epochs(
        lambda **execution: NeighborLoader(
            make_data(), [3], batch_size=64, shuffle=True, generator=torch.Generator().manual_seed(SEED), **execution
        ), way), ("plain", "ahead", "bulk")),
    # Stores
    "stores": nodes(lambda: our_stores(make_data()), (*IN_BULK, "workers")),
    "stores mapped": on_disk(lambda folder: mapped(make_data(), folder), (*IN_BULK, "workers"), "stores"),
    "foreign stores": nodes(lambda: foreign(make_data()), ("plain", "ahead", "workers")),
    "memory": nodes(tiered, (*IN_BULK, "workers")),
    "memory and disk": on_disk(
        lambda folder: tiered(host="40%", disk=folder), (*IN_BULK, "workers"), "memory"),
    "renumbered": nodes(shuffled, (*IN_BULK, "workers"), input_nodes=torch.arange(0, 60, 2)),
    "renumbered memory and disk": on_disk(
        lambda folder: tiered(host="40%", disk=folder, renumbered=True), (*IN_BULK, "workers")),
    "renumbered times": nodes(shuffled, time_attr="time", input_nodes=torch.arange(0, 60, 2)),
    "renumbered links": of_links(shuffled, WITH_WORKERS, neg_sampling=HEAVY, exclude_seed_edges=True,
                                 strict_negatives=True),
    "hetero stores": papers(lambda: our_stores(hetero.make_hetero()), WITH_WORKERS),
    "hetero mapped": on_disk(lambda folder: mapped(hetero.make_hetero(), folder), WAYS, "hetero stores", **OF_PAPERS),
    "hetero foreign": papers(lambda: hetero.foreign_stores(hetero_timed()), ("plain", "ahead"), time_attr="time"),
    # Nodes of several types
    "hetero": papers(ways=(*WITH_WORKERS, "resumed by workers")),
    "hetero authors": papers(input_nodes=(AUTHOR, ids(3, 9, 3, 20, 1)), batch_size=2),
    "hetero by relation": papers(num_neighbors={CITES: [3, 2], WRITES: [-1, 1], hetero.REV_WRITES: [0, 4],
                                                hetero.HELD: [2, 2], hetero.LIKES: [1, 0]}),
    "hetero replace": papers(replace=True),
    "hetero all neighbors": papers(num_neighbors=[-1, -1]),
    "hetero weighted": papers(hetero_weighted, weight_attr="weight"),
    "hetero weighted replace": papers(hetero_weighted, weight_attr="weight", replace=True),
    "hetero node times": papers(hetero_timed, time_attr="time"),
    "hetero node times last": papers(hetero_timed, time_attr="time", temporal_strategy="last"),
    "hetero edge times": papers(edge_timed, time_attr="time", input_time=times_of(40, 8)),
    "hetero edge times last": papers(edge_timed, time_attr="time", input_time=times_of(40, 8),
                                     temporal_strategy="last"),
    "hetero disjoint": papers(disjoint=True),
    "hetero induced": papers(subgraph_type="induced"),
    "hetero bidirectional": papers(subgraph_type="bidirectional"),
    "hetero disjoint induced": papers(disjoint=True, subgraph_type="induced"),
    "hetero layers": papers(layers=True),
    "hetero EdgeIndex": papers(edge_layout="EdgeIndex"),
    "hetero sparse_csr": papers(edge_layout="sparse_csr"),
    # Links
    "links": of_links(ways=WITH_WORKERS),
    "links binary": of_links(ways=(*WITH_WORKERS, "resumed by workers"), neg_sampling=BINARY),
    "links of a ratio": of_links(neg_sampling_ratio=3),
    "links triplet": of_links(neg_sampling=TRIPLET),
    "links weighted negatives": of_links(neg_sampling=HEAVY),
    "links labels": of_links(neg_sampling=BINARY, edge_label=torch.arange(300) % 3),
    "links given": of_links(edge_label_index=LINKS, neg_sampling=BINARY),
    "links exclude": of_links(exclude_seed_edges=True),
    "links exclude reverse": of_links(exclude_seed_edges="reverse"),
    "links strict": of_links(neg_sampling=BINARY, strict_negatives=True),
    "links strict of given": of_links(neg_sampling=TRIPLET, strict_negatives=LINKS),
    "links times": of_links(time_attr="time", edge_label_time=times_of(300, 1), neg_sampling=BINARY),
    "links times last": of_links(time_attr="time", edge_label_time=times_of(300, 1), neg_sampling=TRIPLET,
                                 temporal_strategy="last"),
    "links disjoint": of_links(disjoint=True, neg_sampling=BINARY),
    "links induced": of_links(subgraph_type="induced", exclude_seed_edges=True),
    "links replace": of_links(replace=True, neg_sampling=BINARY),
    "links EdgeIndex": of_links(edge_layout="EdgeIndex"),
    "hetero links": of_links(links.heterogeneous, WITH_WORKERS, edge_label_index=RATES, neg_sampling=BINARY),
    "hetero links triplet": of_links(links.heterogeneous, edge_label_index=RATES, neg_sampling=TRIPLET),
    "hetero links of one type": of_links(links.heterogeneous, edge_label_index=FRIENDS, neg_sampling=TRIPLET),
    "hetero links strict": of_links(links.heterogeneous, edge_label_index=(RATES, LINKS), neg_sampling=BINARY,
                                    strict_negatives=True, exclude_seed_edges="reverse"),
    "hetero links times": of_links(links.heterogeneous, edge_label_index=RATES, neg_sampling=TRIPLET,
                                   time_attr="time", edge_label_time=times_of(200, 1)),
    # Without numbers, and without features
    "one batch": one_off([3, 1], [1, 3], ids(4, 4, 2), []),
    "one batch of links": one_off([3, 1], ids(5, 2, 9), kind=LinkNeighborLoader, neg_sampling="binary"),
    "samples": Case(lambda folder, way: samples(way, NeighborLoader, make_data), ("plain", "ahead")),
    "samples of links": Case(lambda folder, way: samples(way, LinkNeighborLoader, links.homogeneous,
                                                         neg_sampling=BINARY), ("plain", "ahead")),
    "sampler of nodes": drawn(lambda: NeighborSampler(make_data(), [3, 2]), NODE_INPUTS),
    "sampler of times": drawn(lambda: NeighborSampler(timed(), [3, 2], time_attr="time"), TIMED_INPUTS),
    "sampler of layers": drawn(lambda: NeighborSampler(make_data(), [3, 2], layers=True), NODE_INPUTS),
    "sampler of links": drawn(lambda: NeighborSampler(links.homogeneous(), [3, 2], exclude_seed_edges=True),
                              LINK_INPUTS, neg_sampling=TRIPLET),
    "backward": drawn(lambda: NeighborSampler(make_data(), [3, 2], sample_direction="backward"), NODE_INPUTS),
    "backward weighted": drawn(lambda: NeighborSampler(weighted(), [3, 2], weight_attr="weight",
                                                       sample_direction="backward"), NODE_INPUTS),
    "backward induced": drawn(lambda: NeighborSampler(make_data(), [3, 2], "induced", disjoint=True,
                                                      sample_direction="backward"), NODE_INPUTS),
    "hetero sampler": drawn(lambda: NeighborSampler(hetero.make_hetero(), [3, 2]),
                            NodeSamplerInput(None, ids(5, 17, 5), input_type=PAPER)),
    "hetero backward": drawn(lambda: NeighborSampler(hetero.make_hetero(), [3, 2], sample_direction="backward"),
                             NodeSamplerInput(None, ids(5, 17, 5), input_type=PAPER)),
    "both directions": drawn(lambda: BidirectionalNeighborSampler(make_data(), [3, 2]), NODE_INPUTS),
    "both directions weighted": drawn(lambda: BidirectionalNeighborSampler(weighted(), [3, 2], disjoint=True,
                                                                           weight_attr="weight"), NODE_INPUTS),
    # PyG's loaders
    "patched": patched(pyg.NeighborLoader, make_data),
    "patched times": patched(pyg.NeighborLoader, timed, time_attr="time", temporal_strategy="last"),
    "patched induced": patched(pyg.NeighborLoader, make_data, subgraph_type="induced"),
    "patched bidirectional": patched(pyg.NeighborLoader, make_data, subgraph_type="bidirectional"),
    "patched stores": patched(pyg.NeighborLoader, lambda: our_stores(make_data()), input_nodes=torch.arange(90)),
    "patched hetero": patched(pyg.NeighborLoader, hetero.make_hetero, input_nodes=PAPER),
    "patched links": patched(pyg.LinkNeighborLoader, links.homogeneous, neg_sampling=BINARY),
    "patched hetero links": patched(pyg.LinkNeighborLoader, links.heterogeneous, edge_label_index=RATES,
                                    neg_sampling="triplet"),
}  # fmt: skip
