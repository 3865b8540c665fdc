"""What any sampler of LADIES must do on a GPU, as a bare kernel, whose time bench_gpu_layers.py gives as the limit."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from limits import pointer
from torch import Tensor

from torch_gnnscale import CSC


@functools.cache
def library() -> ctypes.CDLL:
    """limits.cu, compiled for the GPU at hand by the nvcc that is found."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "limits_gpu.so")
        source = Path(__file__).with_name("limits.cu")
        command = [
            shutil.which("nvcc") or "nvcc",
            "-arch=native",
            "-O3",
            "-std=c++17",
            "-shared",
            "-Xcompiler",
            "-fPIC",
        ]
        subprocess.run([*command, source, "-o", path], check=True)
        return ctypes.CDLL(str(path))


class ClaimsAndAdds:
    """A hop of LADIES for several batches that only claims a cell for each (batch, source) and adds to its score.

    ``frontiers``: the nodes of each batch (int64). The graph and the table, 32 to 64 bytes per edge, are on the GPU.
    """

    def __init__(self, csc: CSC, frontiers: Sequence[Tensor], device: torch.device) -> None:
        self.colptr, self.row = csc.colptr.to(device), csc.row.contiguous().to(device)
        assert self.row.element_size() == 4
        self.nodes = torch.cat([frontier.cpu() for frontier in frontiers])
        self.edges = int(csc.colptr.diff()[self.nodes].sum())
        sizes = torch.tensor([len(frontier) for frontier in frontiers])
        self.batches = torch.arange(len(frontiers)).repeat_interleave(sizes).to(device)
        self.nodes = self.nodes.to(device)
        self.table = torch.zeros(2, 1 << (2 * self.edges).bit_length(), dtype=torch.int64, device=device)

    def run(self) -> None:
        """Queues the work on the default stream; RuntimeError if CUDA refuses it."""
        error = library().claims_and_adds(
            pointer(self.colptr), pointer(self.row), pointer(self.nodes), pointer(self.batches),
            ctypes.c_int64(len(self.nodes)), *map(pointer, self.table), ctypes.c_int64(self.table.shape[1]),
        )  # fmt: skip
        if error:
            raise RuntimeError(f"claims_and_adds: CUDA error {error}")

    def check(self) -> None:
        """RuntimeError unless each edge was counted, in the cell of one key."""
        self.run()
        keys, scores = self.table
        taken = keys[keys != 0]
        if int(scores.sum()) != self.edges or len(taken.unique()) != len(taken) or bool((scores[keys == 0] != 0).any()):
            raise RuntimeError("limits.cu does not count the edges")
