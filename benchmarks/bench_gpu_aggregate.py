"""Aggregation over a batch's edges on a GPU, forward and backward, against torch.sparse and PyG's scatter.

    python benchmarks/bench_gpu_aggregate.py

The edges are those of a batch of 1024 x (15, 10, 5), drawn on the GPU. Rows of all of its nodes are summed, weighed and
summed, or their maximum is taken, for each node that has neighbors; "forward and backward" are both passes by autograd,
the backward pass for the rows alone. "ours" finds the transposed edges of the backward pass anew each time, which a
model does once per batch; "ours, again" has them. torch.sparse multiplies a CSR matrix by the rows; "scatter" takes the
rows of all edges and adds them by PyG's scatter. Sums are compared with the CPU's, bit for bit, and the others' with
ours, before anything is timed, by events on the stream.

Aims: the rows of all edges are read, and the results written, at 70 % of the speed of a copy within the GPU for rows of
512 bytes; both passes take no longer than the faster peer's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from common import data_of, has, judged, parser, save, say_aims
from gpu_timing import compare
from torch import Tensor
from torch_geometric.utils import scatter

from torch_gnnscale import CSC, ops
from torch_gnnscale.nn.aggregate import Bipartite, aggregate
from torch_gnnscale.topology.segmented import SegmentedCSC

BATCH, FANOUTS, WIDTHS = 1024, [15, 10, 5], (32, 128, 256)
DEVICE = "cuda:0"
OURS, AGAIN, SPARSE, SCATTER = "ours", "ours, again", "torch.sparse", "scatter"
Passes = dict[str, Callable[[], Tensor]]


def edges_of_batch(csc: CSC) -> Bipartite:
    """The edges of a batch, on the GPU."""
    graph = SegmentedCSC.on_gpu(csc, torch.device(DEVICE))
    seeds = torch.randperm(csc.num_dst, generator=torch.Generator().manual_seed(0))[:BATCH].to(DEVICE)
    sample = ops.PreparedBulks([graph.edges()], [csc.num_dst], FANOUTS, seeds.device).sample_many([[seeds]], [0])[0]
    return Bipartite.sorted(sample.edge_index[0].long(), sample.colptr[0], sum(sample.num_nodes[0]))


def forward_passes(edges: Bipartite, x: Tensor, kind: str, weight: Tensor) -> Passes:
    """What is compared; each returns a row for each destination."""
    src, dst = edges.index
    reduce, weight_or_none = ("max", None) if kind == "max" else ("sum", weight if kind == "weighted" else None)

    def ours(again: bool) -> Tensor:
        of = edges if again else Bipartite.sorted(edges.index, edges.forward.ptr, edges.num_src)
        return aggregate(x, of, reduce, weight_or_none)

    def scattered() -> Tensor:
        rows = x[src] if weight_or_none is None else x[src] * weight[:, None]
        return scatter(rows, dst, 0, edges.num_dst, reduce=reduce)

    found = {OURS: lambda: ours(again=False), AGAIN: lambda: ours(again=True), SCATTER: scattered}
    if reduce == "sum":
        values = torch.ones_like(weight) if weight_or_none is None else weight
        matrix = torch.sparse_csr_tensor(edges.forward.ptr, src, values, (edges.num_dst, edges.num_src))
        found[SPARSE] = lambda: matrix @ x
    return found


def both_passes(forward: Callable[[], Tensor], x: Tensor, grad: Tensor) -> Callable[[], Tensor]:
    """Calls of a forward and a backward pass, which return the gradient of x."""
    return lambda: torch.autograd.grad(forward(), x, grad)[0]


def check(found: Passes, expected: Tensor) -> None:
    """Raises RuntimeError unless ours give what the CPU does, and the others nearly that."""
    for name, run in found.items():
        result = run().detach().cpu()
        same = torch.equal(result, expected) if name in (OURS, AGAIN) else torch.allclose(result, expected, 1e-4, 1e-4)
        if not same:
            raise RuntimeError(f"{name} differs from the CPU's")


def measure(edges: Bipartite, width: int, kind: str, rounds: int) -> tuple[dict, dict]:
    """Milliseconds of all candidates, and the aims, for rows of so many numbers."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(edges.num_src, width, generator=generator)
    weight, grad = (
        torch.rand(edges.num_edges, generator=generator),
        torch.randn(edges.num_dst, width, generator=generator),
    )
    own_x, own_grad = x.to(DEVICE).requires_grad_(), grad.to(DEVICE)
    forward = forward_passes(edges, own_x, kind, weight.to(DEVICE))
    both = {name: both_passes(run, own_x, own_grad) for name, run in forward.items()}
    x.requires_grad_()
    here = Bipartite.sorted(edges.index.cpu(), edges.forward.ptr.cpu(), edges.num_src)
    expected = forward_passes(here, x, kind, weight)[OURS]
    check(forward, expected().detach())
    check(both, both_passes(expected, x, grad)())
    moved = (edges.num_edges + edges.num_dst) * width * x.element_size()
    source, target = torch.empty(2, moved // 2, dtype=torch.uint8, device=DEVICE).unbind()
    with torch.no_grad():
        passes = {"copy": lambda: target.copy_(source), **forward}
        times = {"forward": compare(passes, moved, rounds)}
    times["forward and backward"] = compare(both, 2 * moved, rounds)
    return times, aims_of(times, x.element_size() * width)


def aims_of(times: dict[str, dict], row_bytes: int) -> dict:
    """The aims of forward passes beside a copy, and of both passes."""
    one, both = times["forward"], times["forward and backward"]
    peer = min(entry["median_ms"] for name, entry in both.items() if name not in (OURS, AGAIN))
    aims = {"both passes over the faster peer's": judged(both[OURS]["median_ms"] / peer, most=1)}
    if row_bytes == 512:
        aims["forward over a copy"] = judged(one[OURS]["gb_per_s"] / one["copy"]["gb_per_s"], least=0.7)
    return aims


def main() -> None:
    """Prints and saves the results."""
    options = parser((__doc__ or "").splitlines()[0])
    options.set_defaults(graphs=["2.4M-124M"])
    args = options.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench_gpu_aggregate: torch sees no CUDA device, so there is nothing to measure")
    results: dict = {
        "gpu": torch.cuda.get_device_name(0),
        "PyG scatters by torch-scatter where it has gradients": has("torch_scatter"),
    }
    for name in args.graphs:
        edges = edges_of_batch(CSC.from_data(data_of(name, 1)))
        most = int(edges.index[0].bincount().max())
        print(f"{name}: {edges.num_edges} edges, {edges.num_dst} destinations, a source with {most} edges", flush=True)
        results[name] = {"edges": edges.num_edges, "destinations": edges.num_dst, "most_edges_of_a_source": most}
        for width in WIDTHS:
            for kind in ("sum", "weighted", "max"):
                times, aims = measure(edges, width, kind, args.rounds)
                for passes, entries in times.items():
                    said = ", ".join(f"{who} {entry['median_ms']:.3f}" for who, entry in entries.items())
                    print(f"{kind} of rows of {4 * width} bytes, {passes}, ms: {said}", flush=True)
                say_aims(aims)
                results[name][f"{kind}, {4 * width} bytes"] = {**times, "aims": aims}
            if not args.no_save:
                save("gpu_aggregate", results)  # the next width may run out of time


if __name__ == "__main__":
    main()
