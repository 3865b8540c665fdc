"""Runs a program of a GPU on the CPU, so that its Python runs where there is none: its figures mean nothing.

    python tests/helpers/cpu_as_gpu.py PROGRAM [ARGUMENT ...]

What is asked of a CUDA device is done in host memory, streams and events are those of the one thread, and operators are
the CPU's. Nothing of CUDA itself is seen.
"""

import runpy
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
FORK = {"start_method": "fork"}
"""So that processes which a program starts do as it does."""


def moved(value):
    """The CPU in place of a CUDA device."""
    if isinstance(value, torch.device):
        return CPU if value.type == "cuda" else value
    return "cpu" if isinstance(value, str) and value.startswith("cuda") else value


class OnTheCPU(TorchFunctionMode):
    """Every call of torch, without CUDA devices and pinned memory."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in ("cuda", "pin_memory"):
            return args[0]
        kept = {name: moved(value) for name, value in (kwargs or {}).items() if name != "pin_memory"}
        return func(*map(moved, args), **kept)


class Event:
    """A moment of the host."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self, *_) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, later: "Event") -> float:
        return (later.at - self.at) * 1e3

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


class Stream:
    """The host's order."""

    def wait_stream(self, _) -> None:
        pass

    def wait_event(self, _) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def record_event(self) -> Event:
        event = Event()
        event.record()
        return event


def count_edges(hop) -> None:
    """What the kernel of limits.cu does, in place of ClaimsAndAdds.run."""
    degree = hop.colptr.diff()[hop.nodes]
    first = (hop.colptr[hop.nodes] - degree.cumsum(0) + degree).repeat_interleave(degree)
    source = hop.row[first + torch.arange(len(first))].long()
    keys, counts = (((hop.batches + 1) << 40).repeat_interleave(degree) | source).unique(return_counts=True)
    hop.table.zero_()
    hop.table[0, : len(keys)], hop.table[1, : len(keys)] = keys, counts


def main() -> None:
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    import limits_gpu

    from torch_gnnscale.comm.peer_memory import GPUMemories, HostMemories

    limits_gpu.ClaimsAndAdds.run = count_edges
    for name in ("allocated", "opened", "events"):
        setattr(GPUMemories, name, getattr(HostMemories, name))
    start = torch.multiprocessing.start_processes
    torch.multiprocessing.start_processes = lambda *given, **options: start(*given, **{**options, **FORK})
    runtime = SimpleNamespace(cudaHostRegister=lambda *_: 0, cudaHostUnregister=lambda *_: 0)
    for name, value in {
        "is_available": lambda: True,
        "get_device_name": lambda *_: "a CPU that stands for a GPU",
        "mem_get_info": lambda *_: (1 << 40, 1 << 40),
        "memory_reserved": lambda *_: 0,
        "memory_allocated": lambda *_: 0,
        "max_memory_allocated": lambda *_: 0,
        "reset_peak_memory_stats": lambda *_: None,
        "empty_cache": lambda: None,
        "synchronize": lambda *_: None,
        "_sleep": lambda *_: None,
        "cudart": lambda: runtime,
        "Event": Event,
        "Stream": Stream,
        "current_stream": lambda *_: Stream(),
        "stream": lambda *_: nullcontext(),
        "device": lambda *_: nullcontext(),
    }.items():
        setattr(torch.cuda, name, value)
    torch.Tensor.record_stream = lambda *_: None  # it knows no stream but torch's own
    with OnTheCPU():
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
