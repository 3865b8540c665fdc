"""The plan of an inference: which layers are computed in which stage, and which rows are kept between the stages.

The level of a layer's call is 1 more than the highest level of the calls whose outputs it reads. Stage l computes all
calls of level l for all nodes, and goes on with the model until what the calls of level l + 1 get is known.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .._private import TorchDispatchMode
from .staged_graph import Key, StandIn

Marks = frozenset[Hashable]
_NONE: Marks = frozenset()
_TO_PYTHON = (Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__)
"""Methods that give values to others than torch, which :class:`TorchDispatchMode` does not see."""


class Reads(TorchDispatchMode):
    """Within, every tensor bears the marks of all tensors that it was computed from.

    Marks belong to memory: a view bears those of its base, and what is written in place adds to them. If numbers are
    taken out of a tensor to Python, every tensor bears the marks of that tensor from then on.
    """

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[int, tuple[Any, Marks]] = {}  # with the memory, so that its number is not given to another
        self.taken: Marks = _NONE
        """Of tensors whose numbers were taken to Python."""
        self._to_python = _ToPython(self)

    def __enter__(self) -> Reads:
        self._to_python.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._to_python.__exit__(*error)

    def mark(self, tensor: Tensor, marks: Iterable[Hashable]) -> None:
        """Gives a tensor these marks in place of others."""
        storage = tensor.untyped_storage()
        self._of[storage._cdata] = storage, frozenset(marks)

    def marks(self, *values: Any) -> Marks:
        """The marks of all tensors in some values."""
        found = self.taken
        for tensor in _tensors(values):
            found |= self._of.get(_memory(tensor), (None, _NONE))[1]
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        marks = self.marks(args, list(kwargs.values()))
        out = func(*args, **kwargs)
        if func is torch.ops.aten._local_scalar_dense.default:
            self.taken |= marks
        written = [
            kwargs.get(argument.name, args[place] if place < len(args) else None)
            for place, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        if marks:
            for tensor in _tensors([out, written]):
                self.mark(tensor, marks | self.marks(tensor))
        return out


class _ToPython(TorchFunctionMode):
    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _TO_PYTHON:
            self._reads.taken |= self._reads.marks(args)
        return func(*args, **(kwargs or {}))


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else -1


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors with memory of their own in nested lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        if value.layout == torch.strided:
            yield value
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _tensors(entry)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


# The plan #############################################################################################################


class Input(NamedTuple):
    """What a layer gets for nodes."""

    argument: str
    """The name of the argument."""
    place: Any = None
    """Of the rows in it: 0 or 1 in a pair, the type in a dictionary; None if they are the argument."""


DEGREE = "(degree)"
"""The name of a further argument: the weighted degrees by which a layer normalizes."""


class OutputMark(NamedTuple):
    """The mark of what a call returned for a type of nodes."""

    call: int
    node_type: Any


@dataclass(eq=False)
class Table:
    """Rows of all nodes of a type, which are written in one stage and read in later ones."""

    node_type: Any
    shape: tuple[int, ...]
    """Of a row."""
    dtype: torch.dtype
    written: int
    """The stage that writes it."""
    last: int
    """The last stage that reads it."""
    attribute: Key | None = None
    """The attribute of the graph whose rows these are; they are not written then."""

    @property
    def row_bytes(self) -> int:
        """The size of a row."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(eq=False)
class LayerCall:
    """One call of a layer."""

    title: str
    level: int
    outputs: dict[Any, StandIn | None]
    """By node type."""
    refusal: str | None
    """Why it cannot aggregate pieces of a node's edges: :func:`.staged_model.refusal`."""
    inputs: dict[Input, Table] = field(default_factory=dict)
    """The rows that it gets for nodes."""
    kept: dict[Any, Table] = field(default_factory=dict)
    """By type, those of its outputs that later stages read."""


@dataclass
class StagePlan:
    """The calls in the model's order, and what each stage reads and writes."""

    calls: list[LayerCall]
    tables: list[Table]
    """Those that are written, the results' included."""
    results: dict[Any, Table]
    """The model's output, by node type."""
    without: list[dict[Key, StandIn]]
    """Per stage, the attributes that it does not read."""
    stages: list[int]
    """The numbers of the stages that are run: 1 to the highest level, and 0 if something is kept for level 1."""
    sample: dict[Any, Tensor]
    """The model's output on the small graph, by node type."""

    def reads(self, keys: Iterable[Key]) -> list[Key]:
        """Those of some attributes that any stage reads."""
        given = {table.attribute for call in self.calls for table in call.inputs.values()}
        return [key for key in keys if key in given or any(key not in without for without in self.without)]

    def reads_edges(self, stage: int) -> bool:
        """Whether a stage reads edges: all do but 0, which reads them for degrees alone."""
        return stage > 0 or any(key.argument == DEGREE for call in self.calls if call.level == 1 for key in call.inputs)

    def ends(self, stage: int) -> int:
        """The number of calls after which a stage has all that it needs; of the last stage, of all."""
        if stage == self.stages[-1]:
            return len(self.calls)
        wanted = [
            number
            for number, call in enumerate(self.calls, 1)
            if call.level == stage
            or (call.level == stage + 1 and any(table.written == stage for table in call.inputs.values()))
        ]
        return max(wanted, default=0)


@dataclass
class SeenAttribute:
    """An attribute of the small graph, before the model ran."""

    rows: Tensor
    of_edges: bool
    identity: tuple[int, int]
    """Of these rows: :func:`identity`."""


@dataclass
class SeenInput:
    """Rows that a call got, as they were seen when the model ran on a small graph."""

    rows: Tensor
    node_type: Any
    identity: tuple[int, int]
    """Of these rows: :func:`identity`."""
    marks: Marks
    """What they were computed from."""


@dataclass
class SeenCall:
    """A call as it was seen when the model ran on a small graph."""

    title: str
    refusal: str | None
    """Why it cannot aggregate pieces of a node's edges."""
    inputs: dict[Input, SeenInput]
    others: Marks
    """What its other arguments were computed from."""
    outputs: dict[Any, Tensor | None]
    """By node type."""
    identities: dict[Any, tuple[int, int]]
    """Of the outputs."""

    @property
    def reads(self) -> Marks:
        """What all of its arguments were computed from."""
        return self.others.union(*(seen.marks for seen in self.inputs.values()))


def identity(tensor: Tensor) -> tuple[int, int]:
    """Two tensors that are alive and have the same identity are one, and were not written to in between."""
    return id(tensor), tensor._version


def stand_in(tensor: Tensor, of_edges: bool = False) -> StandIn:
    """What stands in for the rows of a tensor."""
    return StandIn(tuple(tensor.shape[1:]), tensor.dtype, of_edges)


def make_plan(
    seen: list[SeenCall], results: dict[Any, Tensor], attributes: dict[Key, SeenAttribute], reads: Reads
) -> StagePlan:
    """The plan by what was seen.

    Args:
        seen: the calls; their outputs bore an :class:`OutputMark`.
        results: the model's output, by node type.
        attributes: the batch's; each bore its key as a mark.
        reads: knows the marks of the results.
    """
    levels: list[int] = []
    for of_seen in seen:
        levels.append(1 + max((levels[mark.call] for mark in _outputs(of_seen.reads)), default=0))
    last = max(levels)
    calls = [
        LayerCall(
            of.title,
            level,
            {t: None if rows is None else stand_in(rows) for t, rows in of.outputs.items()},
            of.refusal,
        )
        for of, level in zip(seen, levels, strict=True)
    ]
    tables = _Tables(calls, seen, attributes)
    targets: list[Marks] = [frozenset()] * (last + 1)
    """Per stage, the marks of what it writes and computes with."""
    for level in range(1, last + 1):
        for number in [number for number, of in enumerate(levels) if of == level]:
            targets[level] |= seen[number].others
            targets[level - 1] |= tables.add_inputs(number)
    for rows in results.values():
        targets[last] |= reads.marks(rows)
    for stage, marks in enumerate(targets):
        for mark in sorted(_outputs(marks), key=lambda mark: (mark.call, str(mark.node_type))):
            if levels[mark.call] < stage:
                tables.keep(mark, stage)
    outputs = {t: Table(t, tuple(rows.shape[1:]), rows.dtype, last, last) for t, rows in results.items()}
    without = [
        {key: stand_in(of.rows, of.of_edges) for key, of in attributes.items() if key not in marks} for marks in targets
    ]
    first = 0 if any(table.written == 0 for table in tables.written) else 1
    return StagePlan(
        calls, [*tables.written, *outputs.values()], outputs, without, list(range(first, last + 1)), results
    )


def _outputs(marks: Marks) -> list[OutputMark]:
    return [mark for mark in marks if isinstance(mark, OutputMark)]


class _Tables:
    """Finds the tables of a plan: one for each tensor, whatever calls get or return it.

    ``written``: those that stages write.
    """

    def __init__(self, calls: list[LayerCall], seen: list[SeenCall], attributes: dict[Key, SeenAttribute]) -> None:
        self._calls, self._seen = calls, seen
        self._known = {
            of.identity: Table(key[0], tuple(of.rows.shape[1:]), of.rows.dtype, -1, -1, key)
            for key, of in attributes.items()
            if not of.of_edges and key[1] != "n_id"  # which the graph need not have
        }
        self.written: list[Table] = []

    def _add(self, of: tuple[int, int], table: Table) -> Table:
        self._known[of] = table
        self.written.append(table)
        return table

    def add_inputs(self, number: int) -> Marks:
        """Adds the tables that a call reads, whose level is not below those of calls before; returns the marks of rows
        that the stage before it has to write."""
        call, marks = self._calls[number], Marks()
        for key, seen in self._seen[number].inputs.items():
            table = self._known.get(seen.identity)
            if table is None:
                shape, dtype = tuple(seen.rows.shape[1:]), seen.rows.dtype
                table = self._add(seen.identity, Table(seen.node_type, shape, dtype, call.level - 1, call.level))
                marks |= seen.marks
            table.last = call.level
            call.inputs[key] = table
        return marks

    def keep(self, mark: OutputMark, stage: int) -> None:
        """Keeps the output of a call for a later stage."""
        call, seen, of = self._calls[mark.call], self._seen[mark.call], mark.node_type
        table = call.kept.get(of) or self._known.get(seen.identities[of])
        if table is None:
            row = call.outputs[of]
            assert row is not None
            table = self._add(seen.identities[of], Table(of, row.shape, row.dtype, call.level, stage))
        table.written = call.level
        table.last = max(table.last, stage)
        call.kept[of] = table
