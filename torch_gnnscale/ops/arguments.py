"""Checks of arguments that the operators share, and the number of threads that they use."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Collection
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import _library, machine

_library.load()
_NO_ROOM = re.compile(r"\w+: (?:CUDA )?out of memory: ")
"""How the error of an operator begins to which torch gave no memory (``cuda/memory/room.h``)."""
NO_IDS = torch.empty(0, dtype=torch.int64, device="cpu")
"""No ids of nodes or edges."""


class _Operators:
    """The native operators, those of ``torch.ops.gnnscale``. Where torch has no memory for what one writes, it raises
    ``torch.OutOfMemoryError``, which names the operator and how many bytes it asked for: native code itself can raise
    no other type than RuntimeError."""

    def __getattr__(self, name: str) -> Any:
        operator = getattr(torch.ops.gnnscale, name)

        @functools.wraps(operator, updated=())
        def call(*arguments: Any) -> Any:
            if torch.compiler.is_compiling():
                return operator(*arguments)
            try:
                return operator(*arguments)
            except RuntimeError as error:
                if _NO_ROOM.match(str(error)) is None:
                    raise
                text = str(error)
            raise torch.OutOfMemoryError(text)

        call.default = operator.default  # type: ignore[attr-defined]
        setattr(self, name, call)
        return call


OPS = _Operators()

MAX_COUNT = 1 << 40
"""Nodes of a graph, and random numbers of one call."""
ID_DTYPES = (torch.int32, torch.int64)
"""Types that ids may have."""
_LEAST_KEY, _LARGEST_KEY = -(1 << 63), (1 << 63) - 1
_CORES = machine.cores()


class _Limit(threading.local):
    threads = 0
    """What :func:`limit_threads` was given in this Python thread."""


_limit = _Limit()


def limit_threads(threads: int) -> None:
    """Sets what ``threads=0`` means to operators that this Python thread calls; 0 restores the package's default."""
    _limit.threads = check_int("threads", threads)


def resolve_threads(threads: int) -> int:
    """The number of threads that native operators are passed for ``threads``: 0 for ``torch.get_num_threads()``."""
    if type(threads) is not int or threads != 0:
        threads = check_int("threads", threads)
    given = threads or _limit.threads
    return given or (_CORES if torch.get_num_threads() > _CORES else 0)


def to_int(name: str, value: Any) -> int:
    """Python's or NumPy's integer as an int; raises TypeError naming it for anything else, True and False too."""
    if type(value) is int:  # the cheapest test first: this runs several times per batch
        return value
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name}: expected an int, found {type(value).__name__}")
    return int(value)


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Raises ValueError unless an argument is one of some choices."""
    if value not in choices:
        raise ValueError(f"{name}: expected one of {choices}, found {value!r}")


def check_int(name: str, value: int, least: int = 0, most: int = 1 << 62) -> int:
    """Returns an int in [least, most]; raises TypeError or ValueError naming it."""
    value = to_int(name, value)
    if not least <= value <= most:
        raise ValueError(f"{name}: expected {least} <= {name} <= {most}, found {value}")
    return value


def check_flags(**flags: Any) -> None:
    """Raises TypeError, naming it, for the first that is neither true nor false."""
    for name, value in flags.items():
        if not isinstance(value, (bool, np.bool_)) and not (isinstance(value, int) and value in (0, 1)):
            raise TypeError(f"{name}: expected True or False, found {value!r}")


def check_key(key: int) -> int:
    """Returns a key of 64 bits."""
    if type(key) is int and _LEAST_KEY <= key <= _LARGEST_KEY:  # the usual case first: this runs per batch
        return key
    return check_int("key", key, _LEAST_KEY, _LARGEST_KEY)


def check_tensor(name: str, value: Tensor) -> None:
    """Raises TypeError unless it is a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: expected a tensor, found {found_instead(value)}")


def found_instead(value: Any) -> str:
    """What an error says was found instead of a tensor. Dates come in a unit that depends on where they come from, so
    none is guessed: it says how they are made numbers."""
    dtype = getattr(value, "dtype", None)
    if getattr(dtype, "kind", None) not in ("m", "M"):
        return type(value).__name__
    return (
        f"{type(value).__name__} of {dtype}; make all times integers of one unit, such as "
        f"torch.from_numpy(numpy.asarray(times).astype('datetime64[s]').astype('int64'))"
    )


def as_tensor(name: str, values: Any) -> Tensor:
    """Numbers or booleans in a tensor, an array or a list, or tensors or arrays in a list, as a tensor.

    An empty list or array becomes int64 (NumPy's default for it is float64), unless its dtype is bool.

    Raises:
        ValueError: rows of several lengths.
        TypeError: anything else.
    """
    if isinstance(values, Tensor):
        return values
    entries = values if isinstance(values, (list, tuple)) else ()
    rows = entries if entries and _is_row(entries[0]) else ()
    try:
        if any(isinstance(row, Tensor) for row in rows):
            given = torch.stack([torch.as_tensor(row) for row in rows])
        elif isinstance(values, np.ndarray) or any(isinstance(row, np.ndarray) for row in rows):
            given = torch.as_tensor(np.ascontiguousarray(values))  # torch would take a list's arrays number by number
        else:
            given = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        lengths = dict.fromkeys(len(row) if _is_row(row) else None for row in entries)
        if len(lengths) > 1:
            found = " and ".join("a number" if n is None else f"a row of {n}" for n in [*lengths][:2])
            raise ValueError(f"{name}: expected rows of one length, found {found}") from None
        raise TypeError(f"{name}: expected numbers in a tensor, array or list, found {values!r}"[:200]) from None
    return given.to(torch.int64) if given.numel() == 0 and given.dtype != torch.bool else given


def _is_row(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, (Tensor, np.ndarray)) and value.ndim > 0)


def as_ids(name: str, ids: Tensor) -> Tensor:
    """Ids of any integer type as int32 or int64; raises TypeError naming them for another type."""
    check_tensor(name, ids)
    if ids.dtype in ID_DTYPES:
        return ids
    if ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        raise TypeError(f"{name}: expected integers, found {ids.dtype}")
    return ids.to(torch.int64)


def check_ids(name: str, ids: Tensor, limit: int | None = None, what: str = "ids", threads: int = 0) -> None:
    """Raises unless it is a vector of int32 or int64, below ``limit`` if that is given."""
    check_tensor(name, ids)
    if ids.dtype not in ID_DTYPES:
        raise TypeError(f"{name}: expected int32 or int64 ids, found {ids.dtype}")
    if ids.dim() != 1:
        raise ValueError(f"{name}: expected a vector, found shape {tuple(ids.shape)}")
    if limit is not None and (at := _first_outside(ids, limit, threads)) >= 0:
        raise IndexError(f"{name}[{at}] = {int(ids[at])} is out of range: expected {what} in [0, {limit})")


def check_vector(name: str, value: Tensor | None, size: int, number: int | None = None) -> None:
    """Raises unless it is an int64 vector of that size; ``number``: its position in a list of this name."""
    if isinstance(value, Tensor) and value.dtype == torch.int64 and value.dim() == 1 and value.numel() == size:
        return
    name = name if number is None else f"{name}[{number}]"
    if not isinstance(value, Tensor) or value.dtype != torch.int64:
        found = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name}: expected an int64 vector, found {found}")
    raise ValueError(f"{name}: expected shape ({size},), found {tuple(value.shape)}")


def check_readable(name: str, value: Tensor, device: torch.device, others: str) -> None:
    """Raises ValueError unless the device, where ``others`` (such as "the seeds are"), can read the tensor."""
    if value.device == device:
        return
    if device.type == "cuda" and value.device.type == "cpu" and (value.numel() == 0 or value.is_pinned()):
        return  # no tensor without entries is pinned
    expected = f"on {device}, where {others}" + (", or pinned" if device.type == "cuda" else "")
    raise ValueError(f"{name}: expected it {expected}, found it on {value.device}")


def check_device(name: str, value: Tensor) -> None:
    """Raises NotImplementedError unless the tensor is in host memory or on a GPU."""
    if value.device.type not in ("cpu", "cuda"):
        raise NotImplementedError(
            f"{name}: expected a tensor in host memory or on a GPU, found one on {value.device}; move it"
        )


def check_on_host(name: str, value: Tensor) -> None:
    """Raises NotImplementedError unless the tensor is in host memory."""
    if value.device.type != "cpu":
        raise NotImplementedError(f"{name}: expected a tensor in host memory, found one on {value.device}; move it")


def check_same(given: dict[str, Tensor | None], device: torch.device, others: str) -> None:
    """Raises ValueError unless all tensors are on the device, where ``others`` (such as "ids are")."""
    for name, value in given.items():
        if isinstance(value, Tensor) and value.device != device:
            raise ValueError(f"{name}: expected it on {device}, where {others}, found it on {value.device}")


def first_outside(ids: Tensor, limit: int, threads: int = 0) -> int:
    """The position of the first id outside [0, limit), or -1.

    Args:
        ids: int32 or int64, shape [n].
        limit: the number of valid ids.
        threads: see the package.

    Raises:
        TypeError, ValueError: not a vector of int32 or int64, a negative limit.
    """
    check_ids("ids", ids)
    return _first_outside(ids, check_int("limit", limit), threads)


def _first_outside(ids: Tensor, limit: int, threads: int) -> int:
    if ids.device.type != "cpu":
        inside = ids >= 0 if limit > torch.iinfo(ids.dtype).max else (ids >= 0) & (ids < limit)
        outside = (~inside).nonzero()
        return int(outside[0]) if len(outside) else -1
    return int(OPS.first_outside(ids.contiguous(), limit, resolve_threads(threads)))


def check_permutation(name: str, order: Tensor, count: int, threads: int = 0) -> Tensor:
    """The inverse of a permutation of [0, count): int64, shape [count].

    Raises:
        TypeError, ValueError, IndexError: not int64 of that shape, with every number once.
    """
    check_tensor(name, order)
    if order.dtype != torch.int64 or order.shape != (count,):
        raise ValueError(f"{name}: expected int64 of shape ({count},), found {order.dtype} {tuple(order.shape)}")
    check_ids(name, order, count, "nodes", threads)
    inverse = torch.full((count,), -1, dtype=torch.int64)
    inverse[order] = torch.arange(count)
    if (at := _first_outside(inverse, count, threads)) >= 0:
        raise ValueError(f"{name}: expected every node once, found {at} not at all")
    return inverse


def checked_device(device: torch.device | str | int | None) -> torch.device:
    """The CPU, or a CUDA device, the current one if none is numbered.

    Raises:
        ValueError: another device, or one that torch or the native library does not see.
    """
    try:
        found = torch.device("cpu" if device is None else f"cuda:{device}" if type(device) is int else device)
    except RuntimeError as error:
        raise ValueError(f"device: expected 'cpu' or 'cuda', found {device!r}") from error
    if found.type == "cpu":
        return torch.device("cpu")
    if found.type != "cuda":
        raise ValueError(f"device: expected 'cpu' or 'cuda', found {device!r}")
    if (count := torch.cuda.device_count() if torch.cuda.is_available() else 0) <= (found.index or 0):
        raise ValueError(f"device: expected one that torch sees (it sees {count} CUDA devices), found {str(device)!r}")
    if (state := _library.status["_CUDA"]) != "loaded":
        raise ValueError(f"device: the library's CUDA part is {state}: expected 'cpu', found {str(device)!r}")
    return torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)
