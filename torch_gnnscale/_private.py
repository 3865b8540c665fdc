"""The private names of torch and Python that the package uses, each with what breaks if it goes.

Besides these, private attributes of objects are read where they are used: ``Tensor._version`` (without it, no change of
a tensor in place is found), ``nn.Module._modules``, ``_parameters``, ``_*_hooks`` and ``_compiled_call_impl`` (whether
a module's call is more than its ``forward``), ``UntypedStorage._cdata`` (which tensors share memory).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch._C._dynamo.eval_frame
import torch._dynamo.eval_frame
import torch.utils._python_dispatch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.modules import batchnorm
from torch.nn.parallel import DistributedDataParallel

BatchNorm = batchnorm._BatchNorm
"""Split models: norms are not told from other modules, and normalize by one rank's rows."""
NormBase = batchnorm._NormBase
"""Narrowed models: norms are not told from other modules, and normalize by fewer rows."""
TorchDispatchMode = torch.utils._python_dispatch.TorchDispatchMode
"""Draws in code that must not draw, and reads of values in inference, are not found."""
active_ddp_module = DistributedDataParallel._get_active_ddp_module
"""Split models within DistributedDataParallel are not refused, and have their gradients summed twice."""
below_autograd = torch._C._AutoDispatchBelowAutograd
"""Rows of small batches are gathered and exchanged by way of autograd, which takes longer than the rows."""
count_function_modes = torch._C._len_torch_function_stack
"""The default device is asked for in every call, which takes 3 microseconds."""
current_function_mode = torch.overrides._get_current_function_mode
"""Rows are followed within functions that should be left alone."""
current_graph_task_id = torch._C._current_graph_task_id
"""Split models: backward passes are not told apart, so that gradients are summed too early."""
get_eval_frame_callback = torch._C._dynamo.eval_frame.get_eval_frame_callback
"""Narrowed and split models within torch.compile are not refused."""


def column_pointer(ids: Tensor, size: int) -> Tensor:
    """The pointer of sorted ids in [0, size): [size + 1]. Layers and layouts of edges: searchsorted takes its place."""
    return torch._convert_indices_from_coo_to_csr(ids, size)


def queue_callback(function: Callable[[], None]) -> None:
    """Has autograd call a function when the running backward pass has ended. Split models: no sum of gradients."""
    torch.autograd.Variable._execution_engine.queue_callback(function)


def default_store() -> Any:
    """The store of torch.distributed. Ranks: no rendezvous and no liveness without a store of our own."""
    return dist.distributed_c10d._get_default_store()


def share_on_gpu(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    """What another process opens a GPU's memory by. Ranks' memory on GPUs: rows go over NCCL or Gloo instead."""
    return storage._share_cuda_()


def shared_on_gpu(*handle: Any) -> torch.UntypedStorage:
    """The memory of another process's :func:`share_on_gpu`, which goes with it."""
    return torch.UntypedStorage._new_shared_cuda(*handle)


def before_threads_end(function: Callable[[], None]) -> None:
    """Calls a function before Python waits for its threads at exit. Loaders: a program that leaves an epoch early waits
    for batches that nobody takes. Huge pages: a thread aborts the process."""
    threading._register_atexit(function)  # type: ignore[attr-defined]


def is_compiled(module: nn.Module) -> bool:
    """Whether a module is what ``torch.compile`` returned, or was compiled in place. Compiled modules are no longer
    refused by name."""
    return isinstance(module, torch._dynamo.eval_frame.OptimizedModule) or module._compiled_call_impl is not None
