"""Training steps of ordinary PyG models: plain, with trim_to_layer, and narrowed; a part of bench_training.py.

A batch of 1024 x (15, 10, 5), 128 features per node, three layers of 256 hidden channels; forward, loss, backward. The
limit is the dense products of the narrowed model alone, forward and backward; a second one also has its biases and
ReLUs, so that only aggregation is left out. Each candidate runs once untimed before it is timed, because it may find
the memory allocator in another state than the one before it. Under autocast, steps are timed beside the narrowed one in
float32.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate

import torch
import torch_geometric.nn as pyg_nn
from common import compare, data_of, report
from torch import nn
from torch_geometric.data import Data

from torch_gnnscale import NeighborLoader
from torch_gnnscale.bench import step, trimmed
from torch_gnnscale.nn import narrow
from torch_gnnscale.nn.layered import default_call

FANOUTS = [15, 10, 5]
LIMIT = "its dense products alone"
DENSE = "its dense products, biases and ReLU"
BATCH, FEATURES, HIDDEN, CLASSES = 1024, 128, 256, 47
MODELS: dict[str, Callable[[], nn.Module]] = {
    "GraphSAGE": lambda: pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES),
    "GraphSAGE, max": lambda: pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES, aggr="max"),
    "GCN": lambda: pyg_nn.GCN(FEATURES, HIDDEN, 3, CLASSES),
    "GIN": lambda: pyg_nn.GIN(FEATURES, HIDDEN, 3, CLASSES),
    "GAT": lambda: pyg_nn.GAT(FEATURES, HIDDEN, 3, CLASSES, heads=4),
}


def dense_layers(batch: Data) -> list[tuple[nn.Linear, nn.Linear, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """For each layer of a narrowed GraphSAGE: its two linear maps, their inputs, and the gradient of the layer."""
    rows = list(accumulate(batch.num_sampled_nodes))[-2::-1]
    sizes = [FEATURES, HIDDEN, HIDDEN, CLASSES]
    layers = []
    for number, (count, fan_in, fan_out) in enumerate(zip(rows, sizes[:-1], sizes[1:], strict=True)):
        neighbors, root = (torch.randn(count, fan_in, requires_grad=number > 0) for _ in range(2))
        linears = nn.Linear(fan_in, fan_out), nn.Linear(fan_in, fan_out, bias=False)
        layers.append((*linears, neighbors, root, torch.randn(count, fan_out)))
    return layers


def dense_products(batch: Data) -> Callable[[], None]:
    """The matrix products of a narrowed GraphSAGE, without anything between them."""
    layers = dense_layers(batch)

    def run() -> None:
        for of_neighbors, of_root, neighbors, root, grad in layers:
            for linear, given in ((of_neighbors, neighbors), (of_root, root)):
                linear.weight.grad = given.grad = None
                nn.functional.linear(given, linear.weight).backward(grad)

    return run


def all_but_aggregation(batch: Data) -> Callable[[], None]:
    """The products of each layer, added up in one tensor, with biases and ReLUs."""
    layers = dense_layers(batch)

    def run() -> None:
        for of_neighbors, of_root, neighbors, root, grad in layers:
            for entry in (of_neighbors.weight, of_neighbors.bias, of_root.weight, neighbors, root):
                entry.grad = None
            out = of_neighbors(neighbors).addmm_(root, of_root.weight.t())
            (out if of_neighbors is layers[-1][0] else out.relu()).backward(grad)

    return run


def measure_bfloat16(name: str, batches: list[Data], rounds: int) -> dict:
    """Times of one step of a model in float32, narrowed, and under autocast. CPU time, on one thread."""
    torch.manual_seed(0)
    model = MODELS[name]()
    narrowed = narrow(model)
    ways = {"PyG": partial(default_call, model), "PyG, trim_to_layer": partial(trimmed, model), "narrowed": narrowed}
    with torch.autocast("cpu", torch.bfloat16):
        expected = ways["PyG"](batches[0])[:BATCH]
        torch.testing.assert_close(narrowed(batches[0]), expected, rtol=0.1, atol=0.1)

    def run(way: str, number: int) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            step(model, ways[way], batches[number])

    runs: dict[str, Callable[[int], None]] = {way: partial(run, way) for way in ways}
    runs["float32, narrowed"] = lambda number: step(model, narrowed, batches[number])
    results = compare(runs, rounds, again=True, clock=time.thread_time)
    report(name, results, "float32, narrowed")
    return results


def measure_steps(name: str, batches: list[Data], rounds: int) -> dict:
    """Times of one step of a model."""
    torch.manual_seed(0)
    model = MODELS[name]()
    narrowed = narrow(model)

    plain = partial(default_call, model)
    torch.testing.assert_close(
        narrowed(batches[0]), plain(batches[0])[:BATCH], rtol=1e-3, atol=1e-3
    )  # correctness first
    ways = {"PyG": plain, "PyG, trim_to_layer": partial(trimmed, model), "narrowed": narrowed}
    runs = {way: [partial(step, model, run, batch) for batch in batches] for way, run in ways.items()}
    if name == "GraphSAGE":
        runs[LIMIT] = [dense_products(batch) for batch in batches]
        runs[DENSE] = [all_but_aggregation(batch) for batch in batches]
    results = compare({way: lambda i, runs=runs: runs[i]() for way, runs in runs.items()}, rounds, again=True)
    if name == "GraphSAGE":
        narrowed_ms = results["narrowed"]["median_ms"]
        results["narrowed"]["times_limit"] = narrowed_ms / results[LIMIT]["median_ms"]
        results["narrowed"]["times_dense"] = narrowed_ms / results[DENSE]["median_ms"]
    report(name, results, "PyG")
    return results


def measure_models(graphs: list[str], rounds: int, bfloat16: bool) -> dict:
    """Every model on R-MAT graphs, on two threads; ``bfloat16``: under autocast, on one."""
    torch.set_num_threads(1 if bfloat16 else 2)
    measure = measure_bfloat16 if bfloat16 else measure_steps
    results = {}
    for name in graphs:
        data = data_of(name, FEATURES, CLASSES)
        seeds = torch.randperm(data.num_nodes)[: 12 * BATCH]
        loader = NeighborLoader(data, FANOUTS, seeds, batch_size=BATCH, seed=0)
        batches = [batch for batch, _ in zip(loader, range(rounds), strict=False)]
        print(f"\nR-MAT {name}: {batches[0].num_nodes:,} nodes and {batches[0].num_edges:,} edges per batch")
        results[name] = {model: measure(model, batches, rounds) for model in MODELS}
    return results
