"""Loaders of random configurations, whose batches are the same wherever they are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from helpers.gpu_cases import choice, number
from torch import Tensor
from torch_geometric.data import Data

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader, TieredFeatureStore
from torch_gnnscale.sampler.executor import GPUExecutor
from torch_gnnscale.topology.segmented import SegmentedCSC

ANY = [torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64, torch.bool,
       torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.complex128]  # fmt: skip
"""Dtypes of attributes beside the features."""
WIDE = {torch.float32: [8, 33, 100], torch.float64: [8, 13], torch.float16: [24, 65], torch.bfloat16: [16, 40]}
"""Columns of features by their dtype, so many that a share of their bytes holds the map of a store's tiers."""
TIERS: dict[str, list[dict[str, Any]]] = {
    "cpu": [{}, {"host": "40%"}],
    "cuda": [
        {"gpu": "100%"}, {"gpu": "40%"}, {"gpu": "30%", "peers": ["30%"]}, {"peers": ["60%"]}, {"device": "cuda"},
        {"gpu": "30%", "host": "30%"}, {"gpu": "30%", "host": 0}, {"gpu": "25%", "peers": ["20%"], "host": "20%"},
    ],
}  # fmt: skip
"""Budgets of tiers by what gathers. Those with a budget of host memory leave rows to disk."""

OF_SAMPLES = ("edge_index", "n_id", "e_id", "input_id", "edge_label_index", "edge_label")
"""The fields of batches that samplers give."""


def same_bits(found: Tensor, expected: Tensor) -> bool:
    """Whether two tensors have the same dtype, shape and bytes, wherever they are."""
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return False
    ours, theirs = (tensor.detach().cpu().contiguous().view(-1).view(torch.uint8) for tensor in (found, expected))
    return torch.equal(ours, theirs)


def check_same_batch(found: Data, expected: Data, place: str, edges_in: str) -> None:
    """Raises unless two batches have the same fields, every tensor bit for bit.

    Args:
        found, expected: the batches; the second one's tensors are in host memory.
        place: the type of the device on which the first one has its attributes.
        edges_in: that of its sampled edges, ids and links.
    """
    assert list(found.keys()) == list(expected.keys())
    for name, value in expected.to_dict().items():
        if name == "layers":
            for layer, other in zip(found.layers, value, strict=True):
                assert layer.size == other.size
                assert same_bits(layer.edge_index, other.edge_index)
                assert same_bits(layer.e_id, other.e_id)
        elif isinstance(value, Tensor):
            ours, theirs = found[name], value
            assert ours.device.type == (edges_in if name in OF_SAMPLES else place), name
            if value.layout != torch.strided:
                ours, theirs = ours.cpu().to_dense(), theirs.to_dense()
            assert same_bits(ours, theirs), name
        else:
            assert found[name] == value, name


def check_same_batches(found: NeighborLoader, expected: NeighborLoader, place: str, edges_in: str) -> None:
    """:func:`check_same_batch` of all batches of two loaders."""
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        check_same_batch(ours, theirs, place, edges_in)


def draw_by_phases(sampler: Any) -> None:
    """Makes a NeighborSampler of the CPU draw as a GPU does."""
    cpu = torch.device("cpu")
    cscs = [
        SegmentedCSC.cut(relation.csc, cpu, 0, copied=False, weight=relation.weight, time=relation.time)
        for relation in sampler.graph.relations
    ]
    sampler.executor = GPUExecutor(sampler.graph, cpu, cscs)


def random_data(generator: torch.Generator) -> Data:
    """A graph of 20 to 400 nodes, among them some without edges and hubs, with features, labels, a mask, an attribute
    of any dtype and shape, and two attributes of edges."""
    nodes, degree = number(generator, 20, 400), choice(generator, [0, 2, 9])
    edges = nodes * degree + number(generator, 1, 19)
    ends = (torch.rand(2, edges, generator=generator) ** choice(generator, [1, 3]) * nodes).long()
    dtype = choice(generator, [*WIDE])
    data = Data(edge_index=ends.to(choice(generator, [torch.int32, torch.int64])), num_nodes=nodes)

    def rows(count: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.randint(120, (count, *shape), generator=generator).to(dtype)

    data.x = torch.randn(nodes, choice(generator, WIDE[dtype]), generator=generator).to(dtype)
    data.y = rows(nodes, (), choice(generator, [torch.int64, torch.float32]))
    data.train_mask = rows(nodes, (), torch.uint8) % 2 == 0
    data.other = rows(nodes, choice(generator, [(), (1,), (3,), (2, 5)]), choice(generator, ANY))
    data.edge_attr = rows(edges, choice(generator, [(), (4,)]), choice(generator, [torch.float32, torch.float16]))
    data.edge_kind = rows(edges, (), choice(generator, ANY))
    return data


def check_random_loader(seed: int, way: str, folder: Path) -> None:
    """Batches of an epoch equal those of a loader that draws them one by one on the CPU.

    By chance: the graph and its attributes (:func:`random_data`), the fanouts of 1 to 3 hops, draws with replacement or
    without, each node expanded once or again in each hop, the seeds and their dtype, the size of batches, their order,
    ``drop_last``, ``prefetch`` and ``bulk``, the layout of edges, and where the features are: a Data or a FeatureStore
    with rows on the device or in host memory, or tiers (:data:`TIERS`), which a loader that draws on the CPU may read
    on a GPU, too. On a GPU also how much of the graph it holds.

    Args:
        seed: of the configuration.
        way: "dealt" to threads of the CPU; by the "phases" of a GPU on the CPU; on "cuda".
        folder: for rows on disk.
    """
    generator = torch.Generator().manual_seed(seed)
    data, device = random_data(generator), "cuda" if way == "cuda" else "cpu"
    hops = number(generator, 1, 3)
    replace = choice(generator, [False, True])
    fanouts = [choice(generator, [1, 2, 5, 12, 40] if replace else [-1, 1, 2, 5, 12, 40]) for _ in range(hops)]
    options: dict[str, Any] = {
        "replace": replace,
        "layers": choice(generator, [False, True]),
        "batch_size": number(generator, 1, 50),
        "shuffle": choice(generator, [False, True]),
        "drop_last": choice(generator, [False, True]),
        "seed": seed,
    }
    if not options["layers"]:
        options["edge_layout"] = choice(generator, ["coo", "EdgeIndex"])
    seeds = torch.randint(data.num_nodes, (number(generator, 1, 150),), generator=generator)
    seeds = seeds.to(choice(generator, [torch.int32, torch.int64])) if choice(generator, [True, True, False]) else None
    made = {"prefetch": choice(generator, [0, 1, 5]), "bulk": choice(generator, [1, 2, 4])}
    where = choice(generator, ["device", "host", "store", "host store", "tiers", "tiers"])
    tiers = TIERS[device] if way != "phases" else [{}]  # without rows on disk, which no GPU reads
    budgets, on_cpu = choice(generator, tiers), choice(generator, [False, False, True])
    sampled_on = "cpu" if where == "tiers" and on_cpu else device
    if sampled_on == "cuda":
        made["device"] = "cuda"
        share = choice(generator, [None, 0.0, 0.4, 1.0])
        made |= {} if share is None else {"graph_on_gpu": share}
    if where == "device":
        expected, given = data, data.clone().to(device)
    elif where == "host":
        expected = given = data
    else:
        if where == "tiers":
            del data.edge_attr, data.edge_kind  # tiers have rows of nodes alone
        graph = GraphStore.from_data(data)
        expected = FeatureStore.from_data(data), graph
        if where == "tiers":
            disk = {"disk": folder} if "host" in budgets else {}
            features: FeatureStore = TieredFeatureStore.from_data(data, hotness="out_degree", **budgets, **disk)
        else:
            features = FeatureStore.from_data(data.clone().to("cpu" if where == "host store" else device))
        given = features, graph
    loader = NeighborLoader(given, fanouts, seeds, **options, **made)
    if way == "phases":
        draw_by_phases(loader.node_sampler)
    check_same_batches(loader, NeighborLoader(expected, fanouts, seeds, **options), device, sampled_on)
    if isinstance(given, tuple) and isinstance(given[0], TieredFeatureStore):
        given[0].close()
