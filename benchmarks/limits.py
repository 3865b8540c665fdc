"""What the machine's memory allows: loops of bare memory accesses, which other benchmarks take as limits."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from torch_gnnscale import CSC, ops


@functools.cache
def library() -> ctypes.CDLL:
    """limits.cpp, compiled by the C++ compiler at hand."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "limits.so")
        source = Path(__file__).with_name("limits.cpp")
        subprocess.run([compiler, "-std=c++20", "-O3", "-fPIC", "-shared", source, "-o", path], check=True)
        loaded = ctypes.CDLL(str(path))
    for name in ("sampler_accesses", "line_reads", "list_touches", "list_draws", "list_high_words"):
        getattr(loaded, name).restype = ctypes.c_uint64
    return loaded


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


LINE = 64
"""Bytes of a line of memory."""


def lines_of(table: Tensor, rows: Tensor) -> np.ndarray:
    """The addresses of the lines that have rows of a table, each once, in the order of their first use."""
    size = table[:1].numel() * table.element_size()
    begin = table.data_ptr() + rows.numpy() * (table.stride(0) * table.element_size())
    end = begin + max(size - 1, 0)
    spans = [np.minimum(begin // LINE + step, end // LINE) for step in range(-(-size // LINE) + 1)]
    lines, first = np.unique(np.stack(spans, 1).ravel(), return_index=True)
    return lines[np.argsort(first)] * LINE


def read_lines(lines: np.ndarray) -> int:
    """Reads a word of each line, prefetched; returns their sum."""
    found: int = library().line_reads(ctypes.c_void_p(lines.ctypes.data), ctypes.c_int64(len(lines)))
    return found


class SamplerAccesses:
    """The memory accesses of one batch of the neighbor sampler, to be made again without the sampler.

    ``map`` stands for the relabel map (int32, one per node) and ``outputs`` (int64, four rows) for the output memory.
    """

    def __init__(self, csc: CSC, map: Tensor, outputs: Tensor, seeds: Tensor, fanouts: Sequence[int], key: int) -> None:
        graph = ops.relations([csc.colptr], [csc.row])  # edge ids are positions
        sample = ops.sample_neighbors(graph, [seeds], fanouts, key)
        self.csc, self.map, self.outputs = csc, map, outputs
        self.positions = sample.edge_id[0]
        self.entry_bytes = csc.row.stride(0) * csc.row.element_size()  # with the edge id, where there is one
        self.num_nodes = len(sample.node[0])
        self.sources = sample.node[0][sample.edge_index[0][0]]
        self.expanded = sample.node[0][: sum(sample.num_nodes[0][:-1])].contiguous()

    def run(self) -> int:
        """Makes the accesses; returns a sum that depends on all of them."""
        edges = len(self.positions)
        assert self.outputs.shape[1] >= max(edges, self.num_nodes), "no room for the outputs"
        found: int = library().sampler_accesses(
            pointer(self.csc.colptr), pointer(self.expanded), ctypes.c_int64(len(self.expanded)),
            pointer(self.csc.row), ctypes.c_int64(self.entry_bytes), pointer(self.positions), pointer(self.map),
            pointer(self.sources), ctypes.c_int64(edges), *map(pointer, self.outputs), ctypes.c_int64(self.num_nodes),
        )  # fmt: skip
        return found

    def check(self) -> None:
        """Checks that the loop makes all accesses: that its sum is that of the values."""
        csc = self.csc
        stored = csc.row[self.positions].long()
        if csc.edge_id is not None:
            stored += csc.edge_id[self.positions].long() << 32
        expected = int(csc.colptr[self.expanded].sum() + stored.sum() + self.map[self.sources].long().sum())
        assert self.run() == expected % (1 << 64), "limits.cpp does not read what the sampler reads"


def touch_lists(csc: CSC, nodes: Tensor, cells: Tensor) -> int:
    """Reads the lists of ``nodes`` (int64) and adds 1 to the cell (int64, one per node) of each source; returns the
    number of edges."""
    assert csc.row.element_size() == 4
    found: int = library().list_touches(
        pointer(csc.colptr), pointer(nodes), ctypes.c_int64(len(nodes)), pointer(csc.row),
        ctypes.c_int64(csc.row.stride(0) * 4), pointer(cells),
    )  # fmt: skip
    return found


def draw_lists(csc: CSC, nodes: Tensor, key: int, fanout: int, positions: Tensor) -> int:
    """Reads the lists of ``nodes`` (int64), draws a number for each source, and stores the edges that LABOR's scheme
    ``poisson`` draws in ``positions`` (int64, room for all edges of the lists and one more); returns their number."""
    assert csc.row.element_size() == 4
    found: int = library().list_draws(
        pointer(csc.colptr), pointer(nodes), ctypes.c_int64(len(nodes)), pointer(csc.row),
        ctypes.c_int64(csc.row.stride(0) * 4), ctypes.c_uint64(key), ctypes.c_uint64(fanout), pointer(positions),
    )  # fmt: skip
    return found


def draw_high_words(csc: CSC, nodes: Tensor, key: int, part: float) -> int:
    """Reads the lists of ``nodes`` (int64) and draws the high word of a number for each source; returns how many of the
    words are below ``part`` of their range."""
    assert csc.row.element_size() == 4
    found: int = library().list_high_words(
        pointer(csc.colptr), pointer(nodes), ctypes.c_int64(len(nodes)), pointer(csc.row),
        ctypes.c_int64(csc.row.stride(0) * 4), ctypes.c_uint64(key), ctypes.c_uint32(int(part * 2**32)),
    )  # fmt: skip
    return found
