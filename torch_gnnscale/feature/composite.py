"""Attributes whose rows are several tensors: TensorFrames of torch_frame, and what these contain.

A store keeps each tensor as an attribute of its own, with one row of fixed width for each node, so that memory, files,
tiers and parts treat it like any other. Only the finished rows of a batch are put together.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import TensorAttr
from torch_geometric.typing import TensorFrame

from .. import files, ops
from .._user import warn

Key = tuple[Any, str]
_SIZES, _CELLS = "sizes", "cells"
_WIDE = 8  # times the values' bytes, from which on padding is warned of
_MUCH = 64 << 20  # bytes of padding that are not worth a warning


@dataclass(frozen=True)
class Composite:
    """How an attribute is made of tensors.

    A row of a nested tensor with C columns has ``sizes``, [C], the number of values of each cell, and ``cells``, [W]:
    all values of the row, cell after cell, then zeros, where W is the most values of any row.
    """

    name: str
    """Of the attribute. Its tensors are attributes named ``NAME.SEMANTIC_TYPE``, nested ones ``....sizes`` and
    ``....cells``."""
    form: Mapping[str, Any]
    """What it is besides its rows, in values that JSON keeps."""

    @classmethod
    def of(cls, name: str, value: Any) -> tuple[Composite, dict[str, Tensor]]:
        """An attribute and its tensors by name, each with a row for each of the value's.

        Args:
            name: of the attribute.
            value: a TensorFrame; its tensors are shared where they have rows of fixed width.

        Raises:
            ValueError: one without columns, or with columns of unequal lengths.
        """
        found: dict[str, Tensor] = {}
        form = _taken_apart(name, value, found)
        if not found:
            raise ValueError(f"{name}: expected a TensorFrame with columns, found one of {len(value)} rows without any")
        if len(sizes := {len(rows) for rows in found.values()}) > 1:
            raise ValueError(f"{name}: expected as many rows of all of a TensorFrame's columns, found {sorted(sizes)}")
        return cls(name, form), found

    @property
    def parts(self) -> list[str]:
        """The names of its tensors."""
        return _names(self.name, self.form)

    def joined(self, rows: Mapping[str, Tensor]) -> Any:
        """The rows as a value of the attribute's type; ``rows``: by the names of its tensors, [n, ...] each."""
        return _joined(self.name, self.form, rows)

    def entry(self, group: Any) -> dict[str, Any]:
        """What JSON keeps of it; ``group``: of the attribute."""
        return {"group": files.check_name(group), "name": self.name, "form": self.form}


Composites = Mapping[Key, Composite]
"""By the group and the name of the attributes."""


def is_composite(value: Any) -> bool:
    """Whether a value is stored as several tensors."""
    return isinstance(value, TensorFrame)


def read_composites(entries: Sequence[Mapping[str, Any]], stored: Iterable[Key]) -> dict[Key, Composite]:
    """The composites that :meth:`Composite.entry` wrote; ValueError for one whose tensors are not ``stored``."""
    found, there = {}, set(stored)
    for entry in entries:
        group, composite = files.read_name(entry["group"]), Composite(entry["name"], entry["form"])
        if missing := [name for name in composite.parts if (group, name) not in there]:
            raise ValueError(f"composite {composite.name!r} without {missing[0]!r}")
        found[group, composite.name] = composite
    return found


def with_composites(
    composites: Composites, rows: Sequence[tuple[TensorAttr, Any]], missing: Any
) -> list[tuple[TensorAttr, Any]]:
    """Rows of attributes, in which those of a composite's tensors are put together, in the place of the first.

    Args:
        composites: of the store.
        rows: (attribute, rows) as they were read; all tensors of a composite, or none.
        missing: stands for rows that are read later: a composite one of whose tensors has them has them, too.
    """
    composites = dict(composites)  # at one moment: another thread may put or remove an attribute
    if not composites:
        return list(rows)
    of_part = {(group, part): (group, whole) for (group, _), whole in composites.items() for part in whole.parts}
    read: dict[Key, dict[str, Any]] = {}
    for attr, value in rows:
        if (of := of_part.get((attr.group_name, attr.attr_name))) is not None:
            read.setdefault((of[0], of[1].name), {})[attr.attr_name] = value
    found, done = [], set[Key]()
    for attr, value in rows:
        if (of := of_part.get((attr.group_name, attr.attr_name))) is None:
            found.append((attr, value))
        elif (key := (of[0], of[1].name)) not in done:
            done.add(key)
            tensors = read[key]
            late = any(tensor is missing for tensor in tensors.values())
            whole = copy.copy(attr)
            whole.attr_name = of[1].name
            found.append((whole, missing if late else of[1].joined(tensors)))
    return found


def keys_of_parts(composites: Composites, keys: Iterable[Key]) -> list[Key]:
    """The keys, and of each that is a composite's tensor those of its other tensors, too."""
    keys = list(keys)
    wanted = dict.fromkeys(keys)
    for (group, _), composite in composites.items():
        parts = [(group, part) for part in composite.parts]
        if not wanted.keys().isdisjoint(parts):
            wanted.update(dict.fromkeys(parts))
    return list(wanted)


def plain_tensors(frame: Any) -> list[Tensor]:
    """The tensors of a TensorFrame with a row for each of its rows, of fixed width."""

    found = []
    for value in (*frame.feat_dict.values(), frame.y):
        if isinstance(value, Tensor):
            found.append(value)
        elif value is not None and not isinstance(value, dict) and value.values.dim() == 2:
            found.append(value.values)
    return found


def composite_rows(frame: Any, ids: Tensor, take: Callable[[Tensor], Tensor]) -> Any:
    """``frame[ids]``, for rows that are in no store: a TensorFrame of the same columns.

    Args:
        frame: a TensorFrame.
        ids: int64, shape [n], on its device.
        take: returns the rows ``ids`` of a tensor with a row for each of the frame's.
    """
    found = _copied(frame)
    found.feat_dict = {of: _rows_of(value, ids, take) for of, value in frame.feat_dict.items()}
    found.col_names_dict = frame.col_names_dict.copy()
    found.y = None if frame.y is None else _rows_of(frame.y, ids, take)
    if frame._num_rows is not None:
        found._num_rows = ids.numel()
    return found


def _copied(value: Any) -> Any:
    """``copy.copy(value)`` of a class of torch_frame's, in a third of the time."""
    found = object.__new__(type(value))
    found.__dict__.update(value.__dict__)
    return found


def _rows_of(value: Any, ids: Tensor, take: Callable[[Tensor], Tensor]) -> Any:
    """The rows of a TensorFrame's value. No function within :func:`composite_rows`: one that calls itself is a cycle of
    references, which would keep the ids until they are collected."""
    if isinstance(value, Tensor):
        return take(value)
    if isinstance(value, dict):  # tokens of text: one nested tensor for each kind
        return {name: _rows_of(nested, ids, take) for name, nested in value.items()}
    found = _copied(value)
    found.num_rows = ids.numel()
    if value.values.dim() == 2:  # MultiEmbeddingTensor: offsets are of columns
        found.values = take(value.values)
    elif value.values.is_cpu and value.values.is_contiguous() and not value.values.requires_grad:
        found.values, found.offset = ops.gather_nested(value.values, value.offset, value.num_cols, ids)
    else:
        found.values, found.offset = _nested_rows(value, ids, take)
    return found


def _nested_rows(value: Any, ids: Tensor, take: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """(values, offset) of a MultiNestedTensor's rows: cell (i, j) has values[offset[i * C + j]:offset[i * C + j + 1]],
    with C columns."""
    offset, columns = value.offset, value.num_cols
    begins = take(offset[:-1].view(-1, columns)).view(-1)
    sizes = take(offset[1:].view(-1, columns)).view(-1) - begins
    found = offset.new_zeros(sizes.numel() + 1)
    torch.cumsum(sizes, 0, out=found[1:])
    cell = torch.repeat_interleave(begins - found[:-1], sizes)
    return value.values.index_select(0, cell.add_(torch.arange(cell.numel(), device=cell.device))), found


# Kinds of values #####################################################################################################


def _taken_apart(name: str, value: Any, found: dict[str, Tensor]) -> dict[str, Any]:
    """Adds a value's tensors to ``found``; returns its form."""
    if isinstance(value, Tensor):
        found[name] = value
        return {"kind": "tensor"}
    if isinstance(value, dict):  # tokens of text: one nested tensor for each kind
        entries = {key: _taken_apart(f"{name}.{key}", entry, found) for key, entry in value.items()}
        return {"kind": "dict", "entries": entries}
    if isinstance(value, TensorFrame):
        types = {of.value: _taken_apart(f"{name}.{of.value}", entry, found) for of, entry in value.feat_dict.items()}
        columns = {of.value: list(names) for of, names in value.col_names_dict.items()}
        y = None if value.y is None else _taken_apart(f"{name}.y", value.y, found)
        return {"kind": "frame", "types": types, "columns": columns, "y": y}
    if value.values.dim() == 2:  # MultiEmbeddingTensor: offsets are of columns
        found[name] = value.values
        return {"kind": "embeddings", "offset": value.offset.tolist()}
    found[f"{name}.{_SIZES}"], found[f"{name}.{_CELLS}"] = _padded(name, value)
    return {"kind": "nested", "columns": value.num_cols}


def _padded(name: str, value: Any) -> tuple[Tensor, Tensor]:
    """(sizes, cells) of a MultiNestedTensor's rows: int64 [N, C], and [N, W]."""
    sizes = value.offset.diff().view(-1, value.num_cols)
    of_row = sizes.sum(1)
    width = int(of_row.max()) if len(of_row) else 0
    cells = value.values.new_zeros(len(of_row), width)
    padded, needed = cells.numel() * cells.element_size(), value.values.numel() * cells.element_size()
    if padded > max(_MUCH, _WIDE * needed):
        warn(
            f"{name}: rows of fixed width take {padded >> 20} MiB where their values take {needed >> 20}, because the "
            f"longest row has {width} values; shorten long lists"
        )
    cells[_filled(of_row, width)] = value.values
    return sizes, cells


def _filled(of_row: Tensor, width: int) -> Tensor:
    """Which cells hold values: bool, shape [n, width]; ``of_row``: how many do in each row."""
    return torch.arange(width, device=of_row.device) < of_row.unsqueeze(1)


def _names(name: str, form: Mapping[str, Any]) -> list[str]:
    """The names of the tensors of a form."""
    of: dict[str, Callable[[], list[str]]] = {
        "tensor": lambda: [name],
        "embeddings": lambda: [name],
        "nested": lambda: [f"{name}.{_SIZES}", f"{name}.{_CELLS}"],
        "dict": lambda: _names_of(name, form["entries"]),
        "frame": lambda: _names_of(name, form["types"] | ({} if form["y"] is None else {"y": form["y"]})),
    }
    return of[form["kind"]]()


def _names_of(name: str, forms: Mapping[str, Any]) -> list[str]:
    return [part for key, form in forms.items() for part in _names(f"{name}.{key}", form)]


def _joined(name: str, form: Mapping[str, Any], rows: Mapping[str, Tensor]) -> Any:
    """The value of a form; torch_frame is there, since it made one."""
    kind = form["kind"]
    if kind == "tensor":
        return rows[name]
    if kind == "dict":
        return {key: _joined(f"{name}.{key}", entry, rows) for key, entry in form["entries"].items()}
    from torch_frame import stype
    from torch_frame.data import MultiEmbeddingTensor, MultiNestedTensor

    if kind == "embeddings":
        values = rows[name]
        offset = torch.tensor(form["offset"], device=values.device)
        return MultiEmbeddingTensor(len(values), len(offset) - 1, values, offset)
    if kind == "nested":
        sizes, cells = rows[f"{name}.{_SIZES}"], rows[f"{name}.{_CELLS}"]
        offset = sizes.new_zeros(sizes.numel() + 1)
        torch.cumsum(sizes.view(-1), 0, out=offset[1:])
        return MultiNestedTensor(len(sizes), form["columns"], cells[_filled(sizes.sum(1), cells.size(1))], offset)
    frame = TensorFrame.__new__(TensorFrame)  # its own __init__ looks at every column again
    types = {stype(of): entry for of, entry in form["types"].items()}
    frame.feat_dict = {of: _joined(f"{name}.{of.value}", entry, rows) for of, entry in types.items()}
    frame.col_names_dict = {stype(of): list(columns) for of, columns in form["columns"].items()}
    frame.y = None if form["y"] is None else _joined(f"{name}.y", form["y"], rows)
    frame._num_rows = None
    frame._col_to_stype_idx = {
        column: (of, place) for of, names in frame.col_names_dict.items() for place, column in enumerate(names)
    }
    return frame
