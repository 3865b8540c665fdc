"""Sampling and loading on a GPU, against aims and against PyG's loader on the CPU.

    python benchmarks/bench_gpu.py

Samples are compared with the CPU's before anything is timed. One batch of 1024 x (15, 10, 5) is to take less than
0.6 ms, and 32 at a time are to give more than a billion edges per second, host waits included. One at a time, the
batches are those of the bulk in turn. The epoch gathers 128 features per node, on the GPU.
"""

from __future__ import annotations

import torch
from common import compare, data_of, has, judged, parser, report, save, say_aims
from gpu_timing import compare_waits, keep_busy
from torch import Tensor
from torch_geometric.loader import NeighborLoader as PyGNeighborLoader

from torch_gnnscale import CSC, NeighborLoader, ops
from torch_gnnscale.topology.reorder import by_score, reorder_csc
from torch_gnnscale.topology.segmented import SegmentedCSC

BATCH, FANOUTS, BULK, FEATURES = 1024, [15, 10, 5], 32, 128
EPOCHS = 3
"""Rounds of loading, at most: each is long."""
PYG = "PyG, all cores, copied"
DEVICE = "cuda:0"


def prepared(graph: SegmentedCSC, device: torch.device) -> ops.PreparedBulks:
    """What draws bulks of a homogeneous graph on a device."""
    return ops.PreparedBulks([graph.edges()], [len(graph.colptr) - 1], FANOUTS, device)


def draw(bulks: ops.PreparedBulks, seeds: list[Tensor], keys: list[int]) -> list[ops.Sample]:
    """A bulk's samples; returns when the GPU has made them."""
    samples = bulks.sample_many([[batch] for batch in seeds], keys)
    torch.cuda.synchronize()
    return samples


def check(found: list[ops.Sample], csc: CSC, seeds: list[Tensor], keys: list[int]) -> None:
    """Raises RuntimeError unless samples equal the CPU's."""
    stored = csc.relations()
    for sample, batch, key in zip(found, seeds, keys, strict=True):
        expected = ops.sample_neighbors(stored, [batch], FANOUTS, key)
        for name in ("node", "colptr", "edge_index", "edge_id"):
            if not torch.equal(getattr(sample, name)[0].cpu(), getattr(expected, name)[0]):
                raise RuntimeError(f"{name} of the batch with key {key} differs from the CPU's")


def sampling(csc: CSC, rounds: int) -> dict:
    """Milliseconds per batch, one at a time and in bulk, with the graph on the GPU, in pinned host memory, and in both:
    the GPU then has the edges of the nodes with the highest in-degrees."""
    device = torch.device(DEVICE)
    order = by_score(csc.colptr.diff())
    places = {
        "on the GPU": (csc, SegmentedCSC.on_gpu(csc, device)),
        "pinned": (csc, SegmentedCSC.on_gpu(csc, device, 0)),
        "half on the GPU": (sorted_csc := reorder_csc(csc, order), SegmentedCSC.on_gpu(sorted_csc, device, 0.5)),
    }
    batches = torch.randperm(csc.num_dst, generator=torch.Generator().manual_seed(0))[: BATCH * BULK].split(BATCH)
    seeds, there, keys = list(batches), [batch.to(device) for batch in batches], list(range(BULK))
    results = {}
    for name_of_place, (own, graph) in places.items():
        bulks = prepared(graph, there[0].device)
        found = draw(bulks, there, keys)
        check(found, own, seeds, keys)
        check(draw(bulks, there[:1], keys[:1]), own, seeds[:1], keys[:1])
        edges = sum(sample.edge_index[0].size(1) for sample in found) / BULK

        def draw_one(round_: int, bulks: ops.PreparedBulks = bulks) -> list[ops.Sample]:
            at = slice(round_ % BULK, round_ % BULK + 1)  # another batch each time, or its rows are in the cache
            return draw(bulks, there[at], keys[at])

        def draw_all(_: int, bulks: ops.PreparedBulks = bulks) -> list[ops.Sample]:
            return draw(bulks, there, keys)

        for count, run in {1: draw_one, BULK: draw_all}.items():
            name = f"{count} at a time, {name_of_place}"
            (entry,) = compare_waits({name: run}, rounds, batches=count).values()
            results[name] = {**entry, "edges_per_second": edges / entry["median_ms"] * 1e3}
    return results


class Loading:
    """Milliseconds per batch of an epoch of 256 batches."""

    def __init__(self, graph: str) -> None:
        self.data = data_of(graph, FEATURES)
        seeds = torch.randperm(self.data.num_nodes, generator=torch.Generator().manual_seed(0))[: 256 * BATCH]
        self.options = {"num_neighbors": FANOUTS, "input_nodes": seeds, "batch_size": BATCH}

    def ours(self, rounds: int) -> dict:
        """On the GPU, and on the CPU and copied."""
        there = self.data.clone().to(DEVICE)
        return self._compare(
            {
                "torch_gnnscale, device": NeighborLoader(there, **self.options, seed=1, device=DEVICE),
                "torch_gnnscale, CPU, copied": NeighborLoader(self.data, **self.options, seed=1, pin_memory=True),
            },
            rounds,
        )

    def pyg(self) -> dict:
        """PyG's loader, in one round; nothing, and the reason is printed, if it cannot run here."""
        if not (has("pyg_lib") or has("torch_sparse")):
            print("PyG's NeighborLoader is left out: neither pyg-lib nor torch-sparse is installed")
            return {}
        try:
            workers = {"num_workers": torch.get_num_threads(), "pin_memory": True}
            return self._compare({PYG: PyGNeighborLoader(self.data, **self.options, **workers)}, 1)
        except Exception as error:  # of any type: a peer that does not run must not stop the measurements
            print(f"PyG's NeighborLoader is left out: {type(error).__name__}: {error}")
            return {}

    @staticmethod
    def _compare(loaders: dict[str, torch.utils.data.DataLoader], rounds: int) -> dict:
        def epoch(loader: torch.utils.data.DataLoader) -> None:
            for batch in loader:
                batch.to(DEVICE, non_blocking=True)
            torch.cuda.synchronize()

        candidates = {name: lambda _, loader=loader: epoch(loader) for name, loader in loaders.items()}
        keep_busy()
        return compare(candidates, rounds, batches=256)


def main() -> None:
    """Prints and saves the results."""
    options = parser((__doc__ or "").splitlines()[0])
    options.set_defaults(graphs=["2.4M-124M"])
    args = options.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench_gpu: torch sees no CUDA device, so there is nothing to measure")
    results: dict = {"gpu": torch.cuda.get_device_name(0)}
    for name in args.graphs:
        csc = CSC.from_data(data_of(name, 1))
        drawn = sampling(csc, args.rounds)
        report(f"{name}: sampling {BATCH} x {FANOUTS}", drawn, None)
        first, second = drawn["1 at a time, on the GPU"], drawn[f"{BULK} at a time, on the GPU"]
        aims = {
            "milliseconds of one batch": judged(first["median_ms"], most=0.6),
            f"edges per second, {BULK} at a time": judged(second["edges_per_second"], least=1e9),
        }
        say_aims(aims)
        results[name] = {"sampling": drawn, "aims": aims}
        if not args.no_save:
            save("gpu", results)  # what comes next may run out of time
        loading = Loading(name)
        results[name]["loading"] = loaded = loading.ours(min(args.rounds, EPOCHS))
        if not args.no_save:
            save("gpu", results)
        loaded |= loading.pyg()
        report(f"{name}: an epoch with {FEATURES} features, a batch", loaded, PYG)
        if not args.no_save:
            save("gpu", results)


if __name__ == "__main__":
    main()
