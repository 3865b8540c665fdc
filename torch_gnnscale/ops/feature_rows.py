"""Operators on rows of features."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _library
from .arguments import OPS, check_ids, check_tensor, resolve_threads

MAX_ROW_BYTES = 1 << 29
"""Of a row that a GPU gathers."""
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
_ORDINARY = (Tensor, torch.nn.Parameter)
_SELECTED = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool}
_FEW_ROWS = 128
_FEW_ELEMENTS = 1 << 15
"""Torch selects so many on one thread, more on all of its threads."""


def can_gather_rows(src: Tensor) -> bool:
    """Whether :func:`gather_rows` gives what ``src[index]`` would.

    It does for contiguous rows on a device for which the operator is loaded, unless ``src`` is of a subclass of Tensor,
    which it would drop.
    """
    device = src.device.type
    loaded = device == "cpu" or (device == "cuda" and _library.status.get("_CUDA") == "loaded")
    ordinary = type(src) in _ORDINARY and src.layout == torch.strided and src.dim() > 0 and not src.is_quantized
    return loaded and ordinary and has_contiguous_rows(src)


def torch_selects_sooner(src: Tensor, count: int) -> bool:
    """Whether ``src.index_select(0, index)`` takes less time than :func:`gather_rows` for so many rows.

    A call of torch's costs 4 us less. It is slower for many rows of several numbers that are far apart in memory, and
    it would start threads, which the model needs, for more than ``_FEW_ELEMENTS`` numbers.
    """
    return (
        (count <= _FEW_ROWS or src.dim() == 1)
        and src.device.type == "cpu"
        and src.dtype in _SELECTED
        and src.is_contiguous()
        and count * src.stride(0) <= _FEW_ELEMENTS
    )


def has_contiguous_rows(src: Tensor) -> bool:
    """Whether each row of a strided tensor is contiguous."""
    return src.is_contiguous() or src[0].is_contiguous()  # without elements it is contiguous


def as_words(rows: Tensor) -> Tensor:
    """The same memory in a dtype of the same size that torch can write at indices, which it cannot for every dtype."""
    return rows.view(_WORDS[rows.dtype.itemsize])


def check_row_bytes(name: str, src: Tensor, device: torch.device) -> None:
    """Raises ValueError for rows too large for a GPU's kernel."""
    if device.type == "cuda" and len(src) and (size := src[:1].nbytes) > MAX_ROW_BYTES:
        raise ValueError(f"{name}: expected rows of at most {MAX_ROW_BYTES} bytes on a GPU, found {size}")


def gather_rows(src: Tensor, index: Tensor, threads: int = 0, *, check: bool = True) -> Tensor:
    """``src[index]`` for rows of any dtype and size, into recycled memory on the CPU; differentiable in ``src``.

    Args:
        src: shape [N, ...]; rows may be strided, each row must be contiguous.
        index: int32 or int64, shape [n], in [0, N), on the device of ``src``.
        threads: see the package.
        check: on a GPU, look for indices out of range, for which the host waits. Without, one that is out of range
            reads foreign memory. In host memory they are found in any case.

    Returns:
        Shape [n, ...], the dtype of ``src``.

    Raises:
        TypeError, ValueError, IndexError: wrong dtype, shape, device or strides, an index out of range, rows of more
            than 512 MiB on a GPU.
    """
    check_tensor("src", src)
    check_tensor("index", index)
    if src.dim() == 0:
        raise ValueError("src: expected at least one dimension, found a scalar")
    if index.device != src.device:
        raise ValueError(f"index: expected it on {src.device} like src, found {index.device}")
    if not has_contiguous_rows(src):
        raise ValueError(f"src: expected contiguous rows, found strides {src.stride()} for shape {tuple(src.shape)}")
    check_row_bytes("src", src, src.device)
    checks_itself = src.device.type == "cpu" and src.numel() > 0  # while it copies
    check_ids("index", index, src.size(0) if check and not checks_itself else None, "rows", threads)
    index, threads = index.contiguous(), resolve_threads(threads)
    if torch.compiler.is_compiling():
        return OPS.gather_rows(src, index, threads)
    try:
        if src.requires_grad:
            return OPS.gather_rows(src, index, threads)
        with torch._C._AutoDispatchBelowAutograd():  # the way through autograd costs more than a small batch's rows
            return OPS.gather_rows(src, index, threads)
    except RuntimeError:
        check_ids("index", index, src.size(0), "rows", threads)  # names the first that is out of range
        raise
