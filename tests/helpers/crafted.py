"""Directories as nobody means them: one thing is wrong, and all checksums are right."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_gnnscale import files
from torch_gnnscale.partition import directory

FRIENDLY = (ValueError, TypeError, IndexError, NotImplementedError, OSError, MemoryError, RuntimeError)
"""What may be raised for a directory that is wrong."""
NUMBERS = [
    -1,
    0,
    1,
    2,
    7,
    100,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    -(1 << 31),
    1 << 40,
    1 << 62,
    (1 << 63) - 1,
    -(1 << 63),
]


def seal(folder: Path, manifest: dict[str, Any] | None = None) -> None:
    """Makes the checksum of a manifest that of its content."""
    manifest = json.loads((folder / files.MANIFEST).read_text()) if manifest is None else manifest
    manifest["crc32"] = files._checksum(manifest)
    (folder / files.MANIFEST).write_text(json.dumps(manifest))


def put(folder: Path, name: str, array: Tensor | None) -> None:
    """Replaces an array, and its entry in the manifest; None: both go."""
    manifest = json.loads((folder / files.MANIFEST).read_text())
    del manifest["arrays"][name]
    (folder / f"{name}.npy").unlink()
    if array is not None:
        with files.ArrayWriter(folder / f"{name}.npy", array.dtype, tuple(array.shape)) as writer:
            writer.append(array)
        manifest["arrays"][name] = writer.entry
    seal(folder, manifest)


def seal_all(path: Path) -> None:
    """Makes all of a directory agree: folders with the book, parts and the mark of completion with its fingerprint."""

    def crc(folder: Path) -> int:
        return json.loads((folder / files.MANIFEST).read_text())["crc32"]

    with suppress(KeyError, TypeError, AttributeError, OSError):  # of manifests that are not as they were
        book = json.loads((path / "book" / files.MANIFEST).read_text())
        for name in book["meta"]["folders"]:
            book["meta"]["folders"][name] = crc(path / name)
        seal(path / "book", book)
        fingerprint, parts = directory.fingerprint_of_parts(path), []
        for folder in sorted(path.glob("part-*")):
            manifest = json.loads((folder / files.MANIFEST).read_text())
            manifest["meta"]["fingerprint"] = fingerprint
            seal(folder, manifest)
            parts.append(crc(folder))
        mark = json.loads((path / "complete" / files.MANIFEST).read_text())
        mark["meta"] |= {"fingerprint": fingerprint, "parts": parts}
        seal(path / "complete", mark)


def changed_array(array: Tensor, chance: random.Random) -> Tensor | None:
    """An array with other entries, another length, shape or dtype."""
    how = chance.randrange(12)
    if how < 6 and array.numel():
        flat = array.reshape(-1).clone()
        for _ in range(chance.choice([1, 1, 1, 3, 20])):
            value = chance.choice([*NUMBERS, int(array.numel()), len(array)])
            at = chance.choice([0, -1, chance.randrange(len(flat)), slice(None)])
            with suppress(RuntimeError, OverflowError):  # a number that the dtype has not
                flat[at] = bool(value) if flat.dtype == torch.bool else value
        return flat.view(array.shape)
    if how < 8 and array.dim():
        count = chance.choice([0, 1, len(array) // 2, max(len(array) - 1, 0)])
        return array[:count].clone() if chance.random() < 0.7 else torch.cat([array, array[:count]])
    if how == 8:
        return array.to(chance.choice([torch.int32, torch.int64, torch.float64, torch.uint8, torch.bool, torch.int16]))
    if how == 9:
        return chance.choice([array.unsqueeze(0), array.unsqueeze(-1), array.reshape(-1), array.reshape(-1)[:1].sum()])
    if how == 10:
        return array.flip(0) if array.dim() else array.reshape(1)
    return None


VALUES = [
    None,
    True,
    -1,
    0,
    1,
    1 << 62,
    1.5,
    "x",
    "int32",
    "float64",
    [],
    [1],
    [[0, 0]],
    {},
    "partitioned",
    "replicated",
]


def changed_meta(value: Any, chance: random.Random) -> Any:
    """Plain values in which one entry is another, or is gone."""
    if isinstance(value, (dict, list)) and value and chance.random() < 0.85:
        key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if chance.random() < 0.25:
            del value[key]
        else:
            value[key] = changed_meta(value[key], chance)
        return value
    if isinstance(value, int) and chance.random() < 0.6:
        return value + chance.choice([-1, 1, 100])
    return chance.choice(VALUES)


def craft(path: Path, chance: random.Random) -> str:
    """Changes a directory of arrays and manifests in one place; returns what was changed."""
    folder = chance.choice(sorted(file.parent for file in path.rglob(files.MANIFEST)))
    manifest = json.loads((folder / files.MANIFEST).read_text())
    names, place = sorted(file.stem for file in folder.glob("*.npy")), folder.relative_to(path)
    if names and chance.random() < 0.75:
        name = chance.choice(names)
        with suppress(AttributeError):
            array = files.map_array(folder / f"{name}.npy", manifest["arrays"][name])
            put(folder, name, changed_array(array.clone(), chance))
        seal_all(path)
        return f"{place}/{name}"
    manifest["meta"] = changed_meta(manifest["meta"], chance)
    seal(folder, manifest)
    if folder.name != "complete":
        seal_all(path)
    return f"{place}/{files.MANIFEST}"


def rows_in(file: Path) -> set[bytes]:
    """The rows of an array of a directory, which may be damaged."""
    with suppress(*FRIENDLY, EOFError):
        return {row.tobytes() for row in np.load(file)}
    return set()
