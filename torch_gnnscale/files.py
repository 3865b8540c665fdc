"""Arrays on disk: a directory of ``.npy`` files and one JSON that says what they are and what they sum to.

The JSON holds the format's version, the kind of directory, the caller's own metadata, and for each array its dtype,
shape and the CRC-32 of every block of 64 MiB. Arrays are opened memory-mapped and copy-on-write: all processes share
the pages of the file, and none can change it.
"""

from __future__ import annotations

import json
import math
import os
import tokenize
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import ops

FORMAT = 1
MANIFEST = "gnnscale.json"
_BLOCK = 64 << 20


def _checksums(data: Tensor) -> list[int]:
    data = data.reshape(-1).view(torch.uint8)
    with ThreadPoolExecutor(max(1, torch.get_num_threads())) as threads:
        return list(threads.map(lambda block: zlib.crc32(block.numpy()), data.split(_BLOCK)))


def _stored(dtype: torch.dtype) -> np.dtype:
    """NumPy's type of the items in a file: integers of their size for those that it does not know."""
    try:
        return torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return np.dtype(f"i{dtype.itemsize}")


class ArrayWriter:
    """One array's file, written from front to back: rows of ``dtype`` until ``shape`` is full.

    ``entry`` is then what the manifest says of it.
    """

    def __init__(self, file: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        descr = np.lib.format.dtype_to_descr(_stored(dtype))
        self.entry: dict[str, Any] = {"dtype": str(dtype).removeprefix("torch."), "shape": list(shape), "crc32": []}
        self._dtype = dtype
        self._left = math.prod(shape) * dtype.itemsize  # bytes
        self._block = 0  # bytes of the last block that were written
        self._stream = file.open("wb")
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._stream, header)

    def append(self, rows: Tensor) -> None:
        """Writes the next rows."""
        assert rows.dtype == self._dtype
        assert rows.nbytes <= self._left
        self._left -= rows.nbytes
        # contiguous() leaves a single element its stride, which view() does not take
        data = rows.detach().contiguous().as_strided((rows.numel(),), (1,)).view(torch.uint8)
        head, rest = data.split([min(len(data), _BLOCK - self._block), max(0, len(data) - _BLOCK + self._block)])
        checksums = self.entry["crc32"]
        if len(head):
            before = checksums.pop() if self._block else 0
            checksums.append(zlib.crc32(head.numpy(), before))
            self._block = (self._block + len(head)) % _BLOCK
        if len(rest):
            checksums += _checksums(rest)
            self._block = len(rest) % _BLOCK
        self._stream.write(data.numpy().data)

    def close(self) -> None:
        """Ends the file."""
        self._stream.close()
        self.entry["crc32"] = self.entry["crc32"] or [zlib.crc32(b"")]

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, error: Any, *_: Any) -> None:
        self.close()
        assert error is not None or self._left == 0, f"{self._left} bytes were not written"


def create(path: str | os.PathLike) -> Path:
    """Makes the directory that arrays are written into; FileExistsError if it is there and not empty."""
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder}: expected a new or an empty directory")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def finish(folder: Path, kind: str, entries: dict[str, dict[str, Any]], meta: dict[str, Any]) -> None:
    """Writes the manifest: without it the directory is none."""
    manifest = {"format": FORMAT, "kind": kind, "meta": meta, "arrays": entries}
    partial = folder / f"{MANIFEST}.partial"
    partial.write_text(json.dumps(manifest, indent=1))
    partial.replace(folder / MANIFEST)


def save(path: str | os.PathLike, kind: str, arrays: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Writes ``arrays`` (name to CPU tensor) into the directory ``path``, the manifest last.

    Raises:
        FileExistsError: ``path`` exists and is not an empty directory.
    """
    folder = create(path)
    entries = {}
    for name, tensor in arrays.items():
        with ArrayWriter(folder / f"{name}.npy", tensor.dtype, tuple(tensor.shape)) as writer:
            writer.append(tensor)
        entries[name] = writer.entry
    finish(folder, kind, entries, meta)


def _manifest(folder: Path) -> dict[str, Any]:
    file = folder / MANIFEST
    if not file.is_file():
        raise FileNotFoundError(
            f"{file}: not found; is {folder} a directory saved by torch_gnnscale, saved to its end?"
        )
    try:
        manifest = json.loads(file.read_text())
        version = manifest["format"]
        _ = manifest["kind"], manifest["meta"], manifest["arrays"].items()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{file}: expected the manifest of a saved directory, found something else ({error})"
        ) from None
    if version != FORMAT:
        raise ValueError(f"{file}: expected format {FORMAT}, found {version}")
    return manifest


def _map(file: Path, entry: dict[str, Any]) -> Tensor:
    """The array of ``file`` as a copy-on-write tensor over the mapped file."""
    if not file.is_file():
        raise FileNotFoundError(f"{file}: not found")
    try:
        dtype = getattr(torch, entry["dtype"])
        stored = _stored(dtype)
        shape = tuple(int(size) for size in entry["shape"])
        with file.open("rb") as stream:
            major, _ = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
            found_shape, fortran, found_dtype = read(stream)
            offset = stream.tell()
    except (
        ValueError, KeyError, TypeError, AttributeError, EOFError, SyntaxError, tokenize.TokenError, RecursionError
    ) as error:  # fmt: skip
        raise ValueError(f"{file}: expected a .npy file as its manifest describes it, found {error}") from None
    itemsize = stored.itemsize
    if found_shape != shape or fortran or found_dtype != stored:
        raise ValueError(f"{file}: expected {entry['dtype']} {shape}, found {found_dtype} {found_shape}")
    count = int(np.prod(shape, dtype=np.int64))
    expected, found = offset + count * itemsize, file.stat().st_size
    if found != expected:
        raise ValueError(f"{file}: expected {expected} bytes, found {found}: the file is truncated or corrupt")
    if offset % itemsize:
        raise ValueError(f"{file}: expected the data at a multiple of {itemsize} bytes, found it at {offset}")
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return ops.map_file(file, offset, count * itemsize).view(dtype).view(shape)


def load(path: str | os.PathLike, kind: str, verify: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Opens a directory written by :func:`save`.

    Args:
        path: the directory.
        kind: the kind it must be of.
        verify: read everything once and compare checksums; sizes and headers are always compared.

    Returns:
        The arrays by name, memory-mapped, and the caller's metadata.

    Raises:
        FileNotFoundError, ValueError: names the file that is missing, truncated, corrupt or foreign.
    """
    folder = Path(path)
    manifest = _manifest(folder)
    if manifest["kind"] != kind:
        raise ValueError(f"{folder / MANIFEST}: expected a directory of kind {kind!r}, found {manifest['kind']!r}")
    arrays = {}
    for name, entry in manifest["arrays"].items():
        file = folder / f"{name}.npy"
        tensor = arrays[name] = _map(file, entry)
        if not verify:
            continue
        expected, found = entry.get("crc32"), _checksums(tensor)
        if not isinstance(expected, list) or len(expected) != len(found):
            raise ValueError(f"{folder / MANIFEST}: expected {len(found)} checksums of {file.name}, found {expected}")
        for block, (recorded, actual) in enumerate(zip(expected, found, strict=True)):
            if recorded != actual:
                raise ValueError(f"{file}: checksum of block {block} (64 MiB each) differs: the file is corrupt")
    return arrays, manifest["meta"]
