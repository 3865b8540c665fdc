"""DGL's samplers, asked through a pipe, for bench_dgl.py: runs in DGL's own environment, where this package cannot be.

    python dgl_sampler.py FOLDER THREADS FANOUTS neighbor|labor

Reads lines ``CANDIDATE ROUND`` and answers each with a line of JSON: seconds and edges of the round's batches. The
first line it writes names versions and candidates.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import dgl
import dgl.graphbolt as gb
import numpy as np
import torch


def wanted(block: dgl.DGLGraph, colptr: torch.Tensor, fanout: int) -> torch.Tensor:
    """For each destination, min(fanout, the number of its stored edges)."""
    destinations = block.dstdata[dgl.NID]
    return (colptr[destinations + 1] - colptr[destinations]).clamp(max=fanout)


class Samplers:
    """Each method named in ``candidates`` samples batches of the given seeds and returns their number of edges."""

    candidates: tuple[str, ...]

    def __init__(self, folder: Path, fanouts: list[int]) -> None:
        self.colptr, self.row = (torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("colptr", "row"))
        no_ids = torch.empty(0, dtype=torch.int64)  # an edge's id is its position
        self.graph = dgl.graph(("csc", (self.colptr, self.row, no_ids)), num_nodes=len(self.colptr) - 1)
        self.bolt = gb.fused_csc_sampling_graph(self.colptr, self.row)
        self.fanouts = fanouts

    def check_edges(self, block: dgl.DGLGraph) -> None:
        """The edges of a block are the graph's."""
        src, _ = block.edges()
        assert torch.equal(self.row[block.edata[dgl.EID]], block.srcdata[dgl.NID][src])

    def bolt_edges(self, batches: torch.Tensor, draw: str) -> int:
        """Edges of GraphBolt's batches, drawn by its step of this name; it gives no edge ids."""
        pipe = gb.ItemSampler(gb.ItemSet(batches.flatten(), names="seed_nodes"), batches.shape[1])
        pipe = getattr(pipe, draw)(self.bolt, self.fanouts[::-1])
        return sum(len(layer.sampled_csc.indices) for batch in pipe for layer in batch.sampled_subgraphs)


class NeighborSamplers(Samplers):
    """Uniform neighbors."""

    candidates = ("fused", "unfused", "graphbolt")

    def __init__(self, folder: Path, fanouts: list[int]) -> None:
        super().__init__(folder, fanouts)
        self.sampler = dgl.dataloading.NeighborSampler(fanouts[::-1], fused=False)
        self.mapping: dict = {}  # kept from batch to batch, as DGL does

    def fused_blocks(self, seeds: torch.Tensor) -> list:
        """The blocks that DGL's NeighborSampler makes with fused=True, which it does not fuse on one thread: so its
        operator is called here."""
        blocks: list = []
        for fanout in self.fanouts:
            blocks.insert(0, self.graph.sample_neighbors_fused(seeds, fanout, mapping=self.mapping))
            seeds = blocks[0].srcdata[dgl.NID]
        return blocks

    def unfused_blocks(self, seeds: torch.Tensor) -> list:
        """Sampling and to_block."""
        return self.sampler.sample_blocks(self.graph, seeds)[2]

    def check(self, batches: torch.Tensor) -> None:
        """Checks what the samplers give: each destination has as many edges as were asked for."""
        seeds = batches[0]
        for make in (self.fused_blocks, self.unfused_blocks):
            for block, fanout in zip(reversed(make(seeds)), self.fanouts, strict=True):
                self.check_edges(block)
                assert torch.equal(block.in_degrees().long(), wanted(block, self.colptr, fanout).long())
        edges = [self.fused(seeds[None]), self.graphbolt(seeds[None])]
        assert abs(edges[1] / edges[0] - 1) < 0.1, f"GraphBolt and DGL do not sample alike: {edges} edges"

    def fused(self, batches: torch.Tensor) -> int:
        """DGL's FastSample."""
        return sum(block.num_edges() for seeds in batches for block in self.fused_blocks(seeds))

    def unfused(self, batches: torch.Tensor) -> int:
        """DGL's older sampler."""
        return sum(block.num_edges() for seeds in batches for block in self.unfused_blocks(seeds))

    def graphbolt(self, batches: torch.Tensor) -> int:
        """GraphBolt's."""
        return self.bolt_edges(batches, "sample_neighbor")


class LaborSamplers(Samplers):
    """LABOR-0."""

    candidates = ("LaborSampler", "graphbolt")

    def __init__(self, folder: Path, fanouts: list[int]) -> None:
        super().__init__(folder, fanouts)
        self.sampler = dgl.dataloading.LaborSampler(fanouts[::-1])

    def blocks(self, seeds: torch.Tensor) -> list:
        """The layers of a batch."""
        return self.sampler.sample_blocks(self.graph, seeds)[2]

    def check(self, batches: torch.Tensor) -> None:
        """Checks what the samplers give: as many edges as were asked for, on average over a block's destinations."""
        found, asked = [0] * len(self.fanouts), [0] * len(self.fanouts)
        for seeds in batches:
            for hop, block in enumerate(reversed(self.blocks(seeds))):
                self.check_edges(block)
                found[hop] += block.num_edges()
                asked[hop] += int(wanted(block, self.colptr, self.fanouts[hop]).sum())
        for ours, expected in zip(found, asked, strict=True):
            assert abs(ours / expected - 1) < 0.1, f"{ours} edges, expected about {expected}"
        edges = [self.LaborSampler(batches), self.graphbolt(batches)]
        assert abs(edges[1] / edges[0] - 1) < 0.1, f"GraphBolt and DGL do not sample alike: {edges} edges"

    def LaborSampler(self, batches: torch.Tensor) -> int:
        """DGL's, with to_block."""
        return sum(block.num_edges() for seeds in batches for block in self.blocks(seeds))

    def graphbolt(self, batches: torch.Tensor) -> int:
        """GraphBolt's."""
        return self.bolt_edges(batches, "sample_layer_neighbor")


def main() -> None:
    folder, threads, fanouts = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    torch.set_num_threads(threads)
    seeds = torch.from_numpy(np.load(folder / "seeds.npy"))
    samplers = {"neighbor": NeighborSamplers, "labor": LaborSamplers}[sys.argv[4]](folder, fanouts)
    samplers.check(seeds[0])
    hello = {"dgl": dgl.__version__, "torch": torch.__version__, "threads": dgl.utils.get_num_threads()}
    print(json.dumps(hello | {"candidates": samplers.candidates}), flush=True)
    for line in sys.stdin:
        name, round_ = line.split()
        run = getattr(samplers, name)
        start = time.perf_counter()
        edges = run(seeds[int(round_)])
        print(json.dumps({"seconds": time.perf_counter() - start, "edges": edges}), flush=True)


if __name__ == "__main__":
    main()
