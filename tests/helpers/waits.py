"""What makes the host wait for a GPU, found where there is none."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_READS = {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "_unique", "_unique2"}
"""Operators of which the host reads a number, or the size of a result."""


class NoWaits(TorchDispatchMode):
    """Within it, an operator for which the host would wait if its tensors were on a GPU is an AssertionError. Copies
    between devices are not seen."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        masks = name.startswith(("index", "_index")) and any(
            isinstance(entry, torch.Tensor) and entry.dtype in (torch.bool, torch.uint8)
            for indices in args[1:2]
            if isinstance(indices, (list, tuple))
            for entry in indices
        )
        assert name not in _READS, f"the host waits for {name}"
        assert not masks, f"the host waits for {name} by a mask"
        return func(*args, **(kwargs or {}))
