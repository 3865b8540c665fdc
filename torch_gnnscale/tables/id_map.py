"""The users' ids of nodes: sorted, in mapped files, found by binary search."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import files
from ..ops import first_outside
from ..ops.arguments import as_ids, as_tensor

KIND = "tables"


@dataclass(frozen=True)
class Ids:
    """The ids of a type of nodes, in mapped files: node i has the i-th of them in their order.

    Strings are in the order of their bytes in UTF-8, integers in that of their values. The files' pages are the only
    memory that they take.
    """

    node_type: str
    offsets: Tensor | None
    """Of strings: where each begins in ``keys``, int64, shape [N + 1]."""
    keys: Tensor
    """The bytes of strings one after the other, uint8; or integers, int64, shape [N]."""

    def __len__(self) -> int:
        return len(self.keys) if self.offsets is None else len(self.offsets) - 1

    def names(self, nodes: Any) -> Any:
        """The ids of nodes, as an Arrow array of strings or int64.

        Args:
            nodes: numbers of nodes, such as ``batch["user"].n_id``: a tensor, array or list of integers.

        Raises:
            IndexError: names the first that is no node.
            ValueError: the files are damaged.
        """
        import pyarrow

        found = as_tensor("nodes", nodes) if not isinstance(nodes, list) or nodes else torch.empty(0, dtype=torch.int64)
        number = as_ids("nodes", found).reshape(-1).cpu().to(torch.int64)
        if (at := first_outside(number, len(self))) >= 0:
            raise IndexError(f"nodes[{at}] = {int(number[at])}: expected nodes of {self.node_type} in [0, {len(self)})")
        if self.offsets is None:
            return pyarrow.array(self.keys[number].numpy())
        return self._taken(self._strings(), number.numpy())

    def of(self, keys: Any, missing: int | None = None) -> Tensor:
        """The nodes with these ids: int64, shape [len(keys)].

        Args:
            keys: a list, array or Arrow array of strings; of integers, a tensor, too.
            missing: what stands for an id that no node has; None: it is an error.

        Raises:
            ValueError: names the first id that no node has; or the files are damaged.
            TypeError: ids of another kind than those of the nodes.
        """
        asked = self._asked(keys)
        found = self._search(asked) if self.offsets is not None else self._search_integers(asked)
        known = found >= 0
        if missing is not None:
            return torch.where(known, found, missing)
        if not bool(known.all()):
            at = int((~known).nonzero()[0])
            raise ValueError(f"keys[{at}]: expected an id of {self.node_type}, found {asked[at].as_py()!r}")
        return found

    def _asked(self, keys: Any) -> Any:
        """The keys as an Arrow array of large strings, or of integers."""
        import pyarrow

        expected = "strings" if self.offsets is not None else "integers"
        if isinstance(keys, (str, bytes)):
            raise TypeError(f"keys: expected several {expected}, found {type(keys).__name__}")
        if isinstance(keys, Tensor):
            keys = keys.cpu().numpy()
        try:
            found = keys if isinstance(keys, (pyarrow.Array, pyarrow.ChunkedArray)) else pyarrow.array(keys)
        except (pyarrow.ArrowException, TypeError) as error:
            raise TypeError(f"keys: expected {expected}, found {error}") from None
        if isinstance(found, pyarrow.ChunkedArray):
            found = found.combine_chunks()
        if pyarrow.types.is_dictionary(found.type):
            found = found.dictionary_decode()
        kinds = pyarrow.types
        fits = (
            kinds.is_string(found.type) or kinds.is_large_string(found.type) or str(found.type) == "string_view"
            if self.offsets is not None
            else kinds.is_integer(found.type)
        )
        if (not fits and len(found)) or found.null_count:
            raise TypeError(f"keys: expected {expected}, found {'nothing' if found.null_count else found.type}")
        if self.offsets is None and kinds.is_integer(found.type):
            return found
        return found.cast(pyarrow.large_string() if self.offsets is not None else pyarrow.int64())

    def _strings(self) -> Any:
        """All ids, as an Arrow array over the mapped files."""
        import pyarrow

        assert self.offsets is not None
        buffers = [None, pyarrow.py_buffer(self.offsets.numpy()), pyarrow.py_buffer(self.keys.numpy())]
        try:
            return pyarrow.Array.from_buffers(pyarrow.large_string(), len(self), buffers)
        except pyarrow.ArrowInvalid as error:  # the last one leads outside
            raise self._damaged() from error

    def _damaged(self) -> ValueError:
        return ValueError(
            f"ids of {self.node_type}: expected offsets that rise from 0 to {len(self.keys)}, found others"
        )

    def _taken(self, strings: Any, at: np.ndarray) -> Any:
        """Some of all ids; Arrow looks at the first and the last offset alone."""
        assert self.offsets is not None
        offsets = self.offsets.numpy()
        begin, end = offsets[at], offsets[at + 1]
        if bool(((begin < 0) | (end < begin) | (end > len(self.keys))).any()):
            raise self._damaged()
        return strings.take(at)

    def _search(self, asked: Any) -> Tensor:
        """The node of each string, or -1: a step of all searches at a time."""
        from pyarrow import compute

        strings, count = self._strings(), len(self)
        low, high = np.zeros(len(asked), np.int64), np.full(len(asked), count, np.int64)
        for _ in range(count.bit_length()):  # halves until low == high
            middle = (low + high) // 2
            at = np.minimum(middle, max(count - 1, 0))
            less = compute.less(self._taken(strings, at), asked).to_numpy(zero_copy_only=False).astype(bool)
            searching = low < high
            low, high = np.where(searching & less, middle + 1, low), np.where(searching & ~less, middle, high)
        if not count:
            return torch.full((len(asked),), -1)
        at = np.minimum(low, count - 1)
        equal = compute.equal(self._taken(strings, at), asked).to_numpy(zero_copy_only=False).astype(bool)
        return torch.from_numpy(np.where(equal, at, -1))

    def _search_integers(self, asked: Any) -> Tensor:
        values = asked.to_numpy(zero_copy_only=False)
        number = torch.from_numpy(values.astype(np.int64))
        if not len(self):
            return torch.full_like(number, -1)
        at = torch.searchsorted(self.keys, number).clamp(max=len(self) - 1)
        same_sign = torch.from_numpy((values < 0) == (number.numpy() < 0))  # not of uint64 that int64 lacks
        return torch.where((self.keys[at] == number) & same_sign, at, -1)


class IdWriter:
    """The directory of the ids of all types.

    Args:
        folder: a new one.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._types: list[dict[str, Any]] = []
        self._entries: dict[str, dict[str, Any]] = {}

    @contextmanager
    def writing(self, node_type: str, key: str, count: int, size: int | None) -> Iterator[Callable[[Any], Any]]:
        """A block in which the ids of a type are written.

        Args:
            node_type: the type.
            key: ``integer`` or ``string``.
            count: number of ids.
            size: bytes of all strings.

        Yields:
            A function that writes the next ids, an Arrow array, and returns the first that stands there twice, or None.
        """
        number = len(self._types)
        self._types.append({"name": node_type, "key": key})
        if key == "integer":
            shapes: dict[str, tuple[torch.dtype, int]] = {"keys": (torch.int64, count)}
        else:
            shapes = {"offsets": (torch.int64, count + 1), "keys": (torch.uint8, size or 0)}
        writers = {
            name: files.ArrayWriter(self._folder / f"{number}_{name}.npy", dtype, (length,))
            for name, (dtype, length) in shapes.items()
        }
        try:
            yield _Put(writers)
        finally:
            for name, writer in writers.items():
                writer.close()
                self._entries[f"{number}_{name}"] = writer.entry

    def close(self, meta: dict[str, Any]) -> None:
        """Writes the manifest; ``meta``: what is known of the tables besides."""
        files.finish(self._folder, KIND, self._entries, {"types": self._types} | meta)


class _Put:
    """Writes ids."""

    def __init__(self, writers: dict[str, files.ArrayWriter]) -> None:
        self._writers, self._last, self._at = writers, None, 0
        if "offsets" in writers:
            writers["offsets"].append(torch.zeros(1, dtype=torch.int64))

    def __call__(self, keys: Any) -> Any:
        import pyarrow
        from pyarrow import compute

        equal = compute.equal(keys[1:], keys[:-1])
        first = keys[0].as_py()
        if self._last is not None and first == self._last:
            return first
        if (at := compute.index(equal, True).as_py()) >= 0:
            return keys[at].as_py()
        self._last = keys[-1].as_py()
        if "offsets" not in self._writers:
            self._writers["keys"].append(torch.from_numpy(keys.to_numpy().copy()))
            return None
        text = keys.cast(pyarrow.large_binary())
        _, offsets, data = text.buffers()
        bounds = np.frombuffer(offsets, np.int64)[text.offset : text.offset + len(text) + 1]
        begin, end = int(bounds[0]), int(bounds[-1])
        self._writers["offsets"].append(torch.from_numpy(bounds[1:] - begin + self._at))
        self._at += end - begin
        if end > begin:
            self._writers["keys"].append(torch.from_numpy(np.frombuffer(data, np.uint8)[begin:end].copy()))
        return None


def about(path: str | os.PathLike) -> dict[str, Any]:
    """What is stored of the tables beside their arrays; errors as of :func:`torch_gnnscale.files.load`."""
    return files.load(Path(path) / "tables", KIND, verify=False)[1]


def ids(path: str | os.PathLike, node_type: str, verify: bool = True) -> Ids:
    """The ids of a type of nodes of a graph of tables.

    Args:
        path: the directory that ``gnnscale tables`` wrote.
        node_type: the type.
        verify: compare checksums.

    Raises:
        FileNotFoundError, ValueError: names the file that is missing, corrupt or foreign; no such type.
    """
    arrays, meta = files.load(Path(path) / "tables", KIND, verify)
    manifest = Path(path) / "tables" / files.MANIFEST
    with files.described(manifest, "the ids of nodes"):
        names = [entry["name"] for entry in meta["types"]]
    if node_type not in names:
        raise ValueError(f"node_type: expected one of {names}, found {node_type!r}")
    number = names.index(node_type)
    with files.described(manifest, f"the ids of {node_type!r}"):
        offsets, keys = arrays.get(f"{number}_offsets"), arrays[f"{number}_keys"]
        for array, dtype in ((keys, torch.int64 if offsets is None else torch.uint8), (offsets, torch.int64)):
            if array is not None and (array.dim() != 1 or array.dtype != dtype):
                raise ValueError(f"{array.dtype} of shape {tuple(array.shape)}")
        if offsets is not None and len(offsets) == 0:
            raise ValueError("offsets without an entry")
    return Ids(node_type, offsets, keys)
