"""A graph of the shape of ogbn-papers100M that lies wholly on a GPU: loading an epoch alone, and training on it.

    python benchmarks/bench_gpu_papers.py

111,059,956 nodes, 1.6 billion edges, 128 features in 16 bits: 36 GB on the GPU. An epoch is 1,178 batches of 1024 x
(10, 10, 10), trained on by GraphSAGE with 256 hidden features; it is to take 6 s, and loading alone 3 s. The graph is
generated there: in-degrees are log-normal, and each source is drawn by a power law (node of rank r with density
r^(-2/3)), independent of its own in-degree; an edge may be repeated. So a batch's size depends on the generator:
degrees, distinct nodes and edges per batch, and the share of the accesses that the most read nodes have, are reported
with the time. Batches are compared with the CPU's, and rows with their nodes', before anything is timed. Without a
GPU, the CPU takes its place, which runs the same code at the sizes given as arguments and measures nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from statistics import median
from typing import Any

import torch
from bench_gpu_epoch import DEVICE, Training, device_name, say, synchronize
from common import judged, parser, ratio, save, say_aims
from torch import Tensor
from torch_geometric.data import Data

from torch_gnnscale import CSC, FeatureStore, GraphStore, NeighborLoader, NeighborSampler

FANOUTS, BATCH, WIDTH = [10, 10, 10], 1024, 128
DIGIT, DIGITS = 512, 4  # a row repeats its node's number in digits that 16 bits hold
CHUNK = 1 << 26
TOP = (0.01, 0.05, 0.10, 0.25)
QUANTILES = (0.5, 0.9, 0.99, 0.999)


def column_pointers(nodes: int, edges: int) -> Tensor:
    """The column pointers of log-normal in-degrees that add up to ``edges``: int64, shape [nodes + 1]."""
    ends = torch.randn(nodes, dtype=torch.float64, device=DEVICE).exp_().cumsum_(0)
    ends *= edges / float(ends[-1])
    colptr = torch.zeros(nodes + 1, dtype=torch.int64, device=DEVICE)
    colptr[1:] = ends.round_()
    colptr[-1] = edges
    return colptr


def sources(nodes: int, edges: int) -> Tensor:
    """The sources of edges, each drawn by a power law over a shuffle of the nodes: int32, shape [edges]."""
    names = torch.randperm(nodes, device=DEVICE).to(torch.int32)
    row = torch.empty(edges, dtype=torch.int32, device=DEVICE)
    for part in row.split(CHUNK):
        ranks = torch.rand(len(part), dtype=torch.float64, device=DEVICE).pow_(3).mul_(nodes).long()
        torch.index_select(names, 0, ranks.clamp_(max=nodes - 1), out=part)
    return row


def features(nodes: int) -> Tensor:
    """Rows that tell which node they are: float16, shape [nodes, WIDTH]."""
    x = torch.empty(nodes, WIDTH // DIGITS, DIGITS, dtype=torch.float16, device=DEVICE)
    for first in range(0, nodes, CHUNK // WIDTH):
        ids = torch.arange(first, min(first + CHUNK // WIDTH, nodes), device=DEVICE)
        for place in range(DIGITS):
            x[first : first + len(ids), :, place] = (ids // DIGIT**place % DIGIT).half()[:, None]
    return x.view(nodes, WIDTH)


def widened(batch: Data) -> Data:
    """The batch with float32 features, which the model takes."""
    batch.x = batch.x.float()
    return batch


def check(found: Iterable[Data], expected: Iterable[Data]) -> None:
    """Raises RuntimeError unless the first two batches are the CPU's, with the rows of their nodes."""
    powers = torch.tensor([DIGIT**place for place in range(DIGITS)])
    for _, ours, theirs in zip(range(2), found, expected, strict=False):
        for name in ("n_id", "edge_index"):
            if not torch.equal(ours[name].cpu(), theirs[name]):
                raise RuntimeError(f"{name}: the batch differs from the CPU's")
        digits = ours.x.cpu().view(len(ours.x), -1, DIGITS).long()
        if not torch.equal((digits * powers).sum(-1), ours.n_id.cpu()[:, None].expand(digits.shape[:2])):
            raise RuntimeError("a batch has rows of other nodes")


def shape_of(colptr: Tensor) -> dict[str, Any]:
    """The in-degrees of a graph."""
    degree = colptr.diff().sort()[0]
    at = {f"{100 * q:g} %": int(degree[min(int(q * len(degree)), len(degree) - 1)]) for q in QUANTILES}
    return {"mean": float(degree.double().mean()), "largest": int(degree[-1]), "quantiles": at}


def accesses(loader: NeighborLoader, nodes: int) -> dict[str, Any]:
    """What an epoch reads: nodes and edges per batch, and the share of reads of the most read nodes."""
    count = torch.zeros(nodes, dtype=torch.int32, device=DEVICE)
    batches = num_nodes = num_edges = 0
    for batch in loader:
        count.index_add_(0, batch.n_id, torch.ones_like(batch.n_id, dtype=torch.int32))
        batches, num_nodes, num_edges = batches + 1, num_nodes + batch.num_nodes, num_edges + batch.num_edges
    falling = count.sort(descending=True)[0].cumsum(0)
    return {
        "nodes_per_batch": num_nodes / batches,
        "edges_per_batch": num_edges / batches,
        "nodes_read": int((count > 0).sum()),
        "share_of_reads": {f"{100 * top:g} %": int(falling[int(top * nodes) - 1]) / num_nodes for top in TOP},
    }


def loading(loader: Iterable[Data]) -> float:
    """Seconds of an epoch that nobody trains on."""
    synchronize()
    begin = time.perf_counter()
    for _ in loader:
        pass
    synchronize()
    return time.perf_counter() - begin


def main() -> None:
    options = parser((__doc__ or "").splitlines()[0], graphs=False)
    options.set_defaults(rounds=3)
    options.add_argument("--nodes", type=int, default=111_059_956)
    options.add_argument("--edges", type=int, default=1_615_685_872)
    options.add_argument("--batches", type=int, default=1178, help="per epoch")
    options.add_argument("--hidden", type=int, default=256)
    args = options.parse_args()
    torch.manual_seed(0)
    begin = time.perf_counter()
    csc = CSC.from_csc(column_pointers(args.nodes, args.edges).cpu(), sources(args.nodes, args.edges).cpu())
    graph = GraphStore.from_csc(csc)
    say(f"graph of {args.nodes:,} nodes and {args.edges:,} edges", begin)
    begin = time.perf_counter()
    store = FeatureStore.from_data(Data(x=features(args.nodes), num_nodes=args.nodes))
    say("features", begin)
    seeds = torch.randperm(args.nodes, generator=torch.Generator().manual_seed(0))[: args.batches * BATCH]
    given = {"input_nodes": seeds, "batch_size": BATCH, "shuffle": True, "seed": 1}
    sampler = NeighborSampler((FeatureStore(), graph), FANOUTS, device=DEVICE)
    loader = NeighborLoader((store, graph), FANOUTS, neighbor_sampler=sampler, transform=widened, **given)
    check(loader, NeighborLoader((FeatureStore(), graph), FANOUTS, **given))
    print("batches are the CPU's, with the rows of their nodes", flush=True)
    results: dict[str, Any] = {
        "device": device_name(),
        "arguments": vars(args),
        "degrees": shape_of(csc.colptr.to(DEVICE)),
        "accesses": accesses(loader, args.nodes),
        "seconds": {"loading": [], "training": []},
    }
    for name in ("degrees", "accesses"):
        print(f"{name}: {results[name]}", flush=True)
    training = Training(WIDTH, args.hidden)
    training.epoch(loader)  # which finds the memory that the others use
    for _ in range(args.rounds):
        results["seconds"]["loading"].append(loading(loader))
        results["seconds"]["training"].append(training.epoch(loader))
        if not args.no_save:
            save("gpu_papers", results)
    found = {name: median(values) for name, values in results["seconds"].items()}
    for name, seconds in found.items():
        per_second = ratio(args.batches * results["accesses"]["edges_per_batch"], seconds)
        print(f"{name}: {seconds:.3f} s per epoch, {per_second:.3g} sampled edges per second")
    results["aims"] = {
        "seconds of loading an epoch": judged(found["loading"], most=3.0),
        "seconds of training on an epoch": judged(found["training"], most=6.0),
    }
    say_aims(results["aims"])
    if not args.no_save:
        save("gpu_papers", results)


if __name__ == "__main__":
    main()
