"""Arrays on disk: a directory of ``.npy`` files and a manifest, the JSON file ``gnnscale.json``.

The manifest holds the format's version, the kind of directory, the caller's own metadata, for each array its dtype,
shape and the CRC-32 of every block of 64 MiB, and the CRC-32 of all of this. Arrays are opened memory-mapped and
copy-on-write: all processes share the pages of the file, and none can change it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import shutil
import tempfile
import tokenize
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import machine, ops
from ._user import warn

FORMAT = 2
MANIFEST = "gnnscale.json"
_BLOCK = 64 << 20
_PARTIAL = ".partial-"
"""How the names of folders begin in which a save is under way, or was when its process was killed."""
_LOCK = "lock"
"""The file in these folders that is locked while their process is there. It says on which machine that is."""


def block_checksums(data: Tensor) -> list[int]:
    """The CRC-32 of every block of 64 MiB of a tensor in host memory."""
    data = _bytes(data.contiguous())
    if len(data) <= _BLOCK:  # threads would take longer to start than a small block takes
        return [bytes_checksum(data)]
    with ThreadPoolExecutor(machine.cores()) as threads:
        return list(threads.map(bytes_checksum, data.split(_BLOCK)))


def bytes_checksum(data: Tensor, before: int = 0) -> int:
    """The CRC-32 of a tensor's bytes, that go on from those with the CRC-32 ``before``."""
    data = _bytes(data.detach().cpu().contiguous())
    return zlib.crc32(data.numpy().data, before)


def _bytes(data: Tensor) -> Tensor:
    """The bytes of a contiguous tensor. One of a single element is contiguous whatever its stride, but view() refuses
    some strides."""
    return data.as_strided((data.numel(),), (1,)).view(torch.uint8)


def stored_dtype(dtype: torch.dtype) -> np.dtype:
    """The NumPy dtype in the file; for a torch dtype that NumPy lacks, the integer of its size."""
    try:
        return torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return np.dtype(f"i{dtype.itemsize}")


class ArrayWriter:
    """One array's file, written from front to back: rows of ``dtype`` until ``shape`` is full.

    ``entry`` is the array's entry in the manifest, complete after :meth:`close`.
    """

    def __init__(self, file: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        descr = np.lib.format.dtype_to_descr(stored_dtype(dtype))
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
        data = _bytes(rows.detach().resolve_conj().resolve_neg().contiguous())
        head, rest = data.split([min(len(data), _BLOCK - self._block), max(0, len(data) - _BLOCK + self._block)])
        checksums = self.entry["crc32"]
        if len(head):
            before = checksums.pop() if self._block else 0
            checksums.append(bytes_checksum(head, before))
            self._block = (self._block + len(head)) % _BLOCK
        if len(rest):
            checksums += block_checksums(rest)
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


def check_writable(folder: Path) -> None:
    """Raises OSError, which names the folder, unless files can be made in it; if it is not there, in the nearest folder
    above it that is."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from None


def check_unused(folder: Path) -> None:
    """Raises FileExistsError unless a new directory can become ``folder``, and OSError unless it can be written to."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder}: expected a new or an empty directory, found a file")
    if folder.is_dir() and (found := [file.name for file in folder.iterdir() if not file.name.startswith(_PARTIAL)]):
        raise FileExistsError(f"{folder}: expected a new or an empty directory, found {min(found)} in it")
    check_writable(folder)


@contextmanager
def creating(path: str | os.PathLike) -> Iterator[Path]:
    """A folder to write arrays into, which becomes the directory ``path`` when the block ends.

    Where the block raises, the folder and the parents that were made for it are deleted, and ``path`` is as before.
    What a killed process of this machine left beside it is removed, with a warning that names it; of other machines
    it stays, and does not hinder.

    Raises:
        FileExistsError: ``path`` exists and is not an empty directory.
        OSError: of the block, too; it names the directory or a file in it, as the user knows them.
    """
    folder = Path(path).resolve()
    check_unused(folder)
    made = [parent for parent in folder.parents if not parent.exists()]  # the nearest first
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # On the disk of ``path``: an empty directory may be a mount point, so files are written and moved within it.
        where = folder if folder.is_dir() else folder.parent
        _remove_left(where)
        with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=where) as beside, _marked(Path(beside)):
            partial = Path(beside) / "saved"  # made as any directory is, where the temporary one is private
            partial.mkdir()
            yield partial
            check_unused(folder)
            if folder.is_dir():
                for file in sorted(partial.iterdir(), key=lambda file: file.name == MANIFEST):
                    file.rename(folder / file.name)
            else:
                partial.rename(folder)
    except BaseException as error:
        with suppress(OSError):  # until one in which somebody else has put something
            for parent in made:
                parent.rmdir()
        if isinstance(error, OSError) and (named := _file_of_user(error, folder)) is not None:
            raise OSError(error.errno, error.strerror, named) from error
        raise


def _file_of_user(error: OSError, folder: Path) -> str | None:
    """What an error of a save calls the file, if that is one in the folder in which the save is under way, or none."""
    if error.filename is None:  # of a write; other errors may be of what the caller reads meanwhile
        return str(folder) if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG) else None
    for where in (folder, folder.parent):
        if (name := str(error.filename)).startswith(begin := f"{where}{os.sep}{_PARTIAL}"):
            *_, below = ["", *name.removeprefix(begin).split(os.sep, 2)[2:]]  # after the folder's name, and "saved"
            return str(folder / below)
    return None


@contextmanager
def _marked(partial: Path) -> Iterator[None]:
    """A context in which the folder of a save has a lock, which ends with the process, however that ends."""
    new = partial / f"{_LOCK}.new"
    with new.open("w") as lock:
        with suppress(OSError):  # a file system without locks: nobody removes the folder
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.write(machine.identity())
            lock.flush()
            os.replace(new, partial / _LOCK)  # so that there is never one that is not locked
        try:
            yield
        finally:
            (partial / _LOCK).unlink(missing_ok=True)


def _remove_left(where: Path) -> None:
    """Removes the folders of saves that processes of this machine began in ``where``, and that ended before them."""
    for partial in where.glob(f"{_PARTIAL}*"):
        with suppress(OSError, UnicodeDecodeError), (partial / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an error if its process is still writing
            if lock.read() == machine.identity():
                shutil.rmtree(partial)
                warn(f"{partial}: removed, because the process that was writing it has ended")


def finish(folder: Path, kind: str, entries: dict[str, dict[str, Any]], meta: dict[str, Any]) -> None:
    """Writes the manifest of the arrays in ``folder``; ``entries`` are those of their writers, by name."""
    manifest = {"format": FORMAT, "kind": kind, "meta": meta, "arrays": entries}
    (folder / MANIFEST).write_text(json.dumps({**manifest, "crc32": _checksum(manifest)}, indent=1))


def _checksum(manifest: dict[str, Any]) -> int:
    """The CRC-32 of a manifest without the entry that holds it, in the one way of writing it."""
    content = {name: value for name, value in manifest.items() if name != "crc32"}
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def save(
    path: str | os.PathLike,
    kind: str,
    arrays: dict[str, Tensor],
    meta: dict[str, Any],
    called: Mapping[str, str] | None = None,
) -> None:
    """Writes arrays and their manifest into the new directory ``path``, or nothing at all (see :func:`creating`).

    Args:
        path: the directory.
        kind: what :func:`load` expects it to be.
        arrays: tensors by name; each becomes the file NAME.npy.
        meta: what :func:`load` returns beside the arrays; made of what JSON gives back as it was.
        called: what errors call the arrays; by default their names.

    Raises:
        FileExistsError: ``path`` exists and is not an empty directory.
        ValueError: a tensor that is sparse, nested or quantized, or not in host memory.
        OSError: a file that cannot be written.
    """
    names = {name: name if called is None else called[name] for name in arrays}
    for name, tensor in arrays.items():
        if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized or tensor.device.type != "cpu":
            kinds = [kind for kind in ("nested", "quantized") if getattr(tensor, f"is_{kind}")]
            found = ", ".join([*kinds, str(tensor.layout), str(tensor.device)])
            raise ValueError(f"{names[name]}: expected a dense tensor in host memory, found {found}")
    with creating(path) as folder:
        entries = {}
        for name, tensor in arrays.items():
            try:
                with ArrayWriter(folder / f"{name}.npy", tensor.dtype, tuple(tensor.shape)) as writer:
                    writer.append(tensor)
            except OSError as error:
                raise OSError(error.errno, f"{error.strerror}, while {names[name]} was written", str(path)) from error
            entries[name] = writer.entry
        finish(folder, kind, entries, meta)


def check_name(name: Any) -> Any:
    """Returns what a user calls a type or an attribute; ValueError unless :func:`read_name` gives it back from JSON."""
    try:
        if read_name(json.loads(json.dumps(name))) == name:
            return name
    except (TypeError, ValueError):
        pass
    raise ValueError(f"{name!r}: expected a str, or a tuple of them, as the name that is saved")


def read_name(value: Any) -> Any:
    """A name as it was before JSON made a list of a tuple."""
    return tuple(value) if isinstance(value, list) else value


@contextmanager
def described(file: Path, what: str) -> Iterator[None]:
    """A block that reads what a saved directory says: a manifest that is right may lack what its reader needs.

    Raises:
        ValueError: names the file, and says that ``what`` was expected, in place of what the block raises for an entry
            that is missing, or of another type or value.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        found = f"no entry {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{file}: expected {what}, found {found}") from error


def _manifest(folder: Path) -> dict[str, Any]:
    file = folder / MANIFEST
    if not file.is_file():
        raise FileNotFoundError(
            f"{file}: not found; is {folder} a directory saved by torch_gnnscale, saved to its end?"
        )
    try:
        manifest = json.loads(file.read_text())
        version = manifest["format"]
        _ = manifest["kind"], manifest["meta"].items(), manifest["arrays"].items()
        intact = manifest.get("crc32") == _checksum(manifest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{file}: expected the manifest of a saved directory, found something else ({error})"
        ) from None
    if version != FORMAT:
        raise ValueError(f"{file}: expected format {FORMAT}, found {version}")
    if not intact:
        raise ValueError(f"{file}: the checksum of its content differs: the file was edited or is corrupt")
    return manifest


def checksum(path: str | os.PathLike) -> int:
    """The checksum of a saved directory's manifest, which holds those of its arrays; errors as of :func:`load`."""
    return _manifest(Path(path))["crc32"]


def map_array(file: Path, entry: dict[str, Any]) -> Tensor:
    """The array of ``file`` as a copy-on-write tensor over the mapped file.

    Args:
        file: a .npy file.
        entry: its dtype and shape, as in a manifest.

    Raises:
        FileNotFoundError, ValueError: names the file that is missing, truncated or another array.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file}: not found")
    try:
        dtype = getattr(torch, entry["dtype"])
        stored = stored_dtype(dtype)
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
    count = math.prod(shape)
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
        tensor = arrays[name] = map_array(file, entry)
        if not verify:
            continue
        expected, found = entry.get("crc32"), block_checksums(tensor)
        if not isinstance(expected, list) or len(expected) != len(found):
            raise ValueError(f"{folder / MANIFEST}: expected {len(found)} checksums of {file.name}, found {expected}")
        for block, (recorded, actual) in enumerate(zip(expected, found, strict=True)):
            if recorded != actual:
                raise ValueError(f"{file}: checksum of block {block} (64 MiB each) differs: the file is corrupt")
    return arrays, manifest["meta"]


def verify(path: str | os.PathLike) -> None:
    """Reads a directory of any kind once and compares checksums; errors as of :func:`load`."""
    load(path, _manifest(Path(path))["kind"])
