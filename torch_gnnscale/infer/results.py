"""The results of an inference over ranks: a folder for each part, and what puts them together."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import files, ops
from ..ops.arguments import as_ids, as_tensor
from .disk import KIND, difference, ids_name

_OWN = ("partition", "graph", "rows")
"""Entries of a fingerprint that are a part's own."""


def part_folder(out: Path, number: int) -> Path:
    """The folder of a part's results."""
    return out / f"part-{number}"


def check_folder(out: Path, count: int) -> None:
    """Raises FileExistsError if ``out`` holds something else than the folders of ``count`` parts."""
    if out.exists() and not out.is_dir():  # in this order: other ranks may make the directory meanwhile
        raise FileExistsError(f"{out}: expected a new or an empty directory, found a file")
    if out.is_dir():
        known = {part_folder(out, part).name for part in range(count)}
        found = sorted({file.name for file in out.iterdir()} - known)
        if found:
            raise FileExistsError(
                f"{out}: expected a new or an empty directory, or one of an inference over {count} parts, found "
                f"{found[0]} in it"
            )


def _of_all(meta: dict[str, Any]) -> dict[str, Any]:
    """What the results of all parts of an inference depend on."""
    return {name: value for name, value in meta["of"].items() if name not in _OWN}


class Results:
    """The results of nodes of one type in the folders of all parts, memory-mapped.

    Args:
        ids: of each part, the user's ids of its rows, rising: int64, [m].
        rows: of each part: [m, ...].
    """

    def __init__(self, ids: Sequence[Tensor], rows: Sequence[Tensor]) -> None:
        self.parts = list(zip(ids, rows, strict=True))
        """Of each part, the user's ids of its rows, rising, int64, [m], and the rows, [m, ...]."""
        self.shape: tuple[int, ...] = tuple(rows[0].shape[1:])
        """Of a row."""
        self.dtype = rows[0].dtype

    def __len__(self) -> int:
        return sum(len(ids) for ids, _ in self.parts)

    def __getitem__(self, ids: Any) -> Tensor:
        """The rows of nodes.

        Args:
            ids: the user's ids, repeats allowed: [n].

        Returns:
            [n, ...], in memory.

        Raises:
            IndexError: a node without a row.
        """
        wanted = as_ids("ids", as_tensor("ids", ids)).to(torch.int64)
        if wanted.dim() != 1:
            raise ValueError(f"ids: expected a vector, found shape {tuple(wanted.shape)}")
        found = torch.empty(len(wanted), *self.shape, dtype=self.dtype)
        left = torch.ones(len(wanted), dtype=torch.bool)
        for known, rows in self.parts:
            if len(known) == 0:
                continue
            at = torch.searchsorted(known, wanted).clamp_(max=len(known) - 1)
            here = (known[at] == wanted).nonzero().view(-1)
            found[here] = ops.gather_rows(rows, at[here]) if ops.can_gather_rows(rows) else rows[at[here]]
            left[here] = False
        if bool(left.any()):
            missing = int(left.nonzero()[0])
            raise IndexError(f"ids[{missing}] = {int(wanted[missing])}: expected a node with a result, found none")
        return found

    @property
    def ids(self) -> Tensor:
        """The user's ids of all nodes with a result, rising: int64, [n]."""
        return torch.cat([ids for ids, _ in self.parts]).sort().values

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} rows of shape {list(self.shape)} in {len(self.parts)} parts)"


def open_results(out: str | os.PathLike, verify: bool = True) -> Any:
    """Opens what :func:`infer` left in a folder over the parts of several ranks.

    Args:
        out: the folder of all parts' folders.
        verify: read everything once and compare checksums.

    Returns:
        A :class:`Results`; by node type in a graph with types.

    Raises:
        FileNotFoundError, ValueError: a part is missing or not finished, or a file is missing, truncated or corrupt; or
            the parts are not of one inference.
    """
    folder = Path(out)
    named = ((re.fullmatch(r"part-(\d+)", path.name), path) for path in folder.glob("part-*"))
    known = sorted((int(match[1]), path) for match, path in named if match is not None)
    if not known:
        raise FileNotFoundError(f"{folder}: expected the folders part-0, part-1, ..., found none")
    opened = {number: files.load(path, KIND, verify) for number, path in known}
    _, first = opened[known[0][0]]
    with files.described(known[0][1] / files.MANIFEST, "the results of a part"):
        (_, count, book), names = first["of"]["partition"], first["types"]
    if missing := [number for number in range(count) if number not in opened]:
        raise FileNotFoundError(f"{folder}: expected the folders of {count} parts, found none of part {missing[0]}")
    for number, (_, meta) in opened.items():
        with files.described(part_folder(folder, number) / files.MANIFEST, "the results of a part"):
            if meta["of"]["partition"] != [number, count, book] or meta["types"] != names:
                raise ValueError(f"part {meta['of']['partition'][:2]}, expected {[number, count]} and types {[*names]}")
            if (name := difference(_of_all(first), _of_all(meta))) is not None:
                raise ValueError(f"another {name} than of part {known[0][0]}")
    each = [opened[number][0] for number in range(count)]
    found = {
        node_type: Results([arrays[ids_name(name)] for arrays in each], [arrays[name] for arrays in each])
        for name, node_type in names.items()
    }
    return found[None] if list(found) == [None] else found
