"""What ranks tell one another before they compute a batch together, what their models must have in common, and the
small batch on which they find out how a model calls its layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch_geometric.data import Data

from ..comm.exchange import Exchange
from ..comm.mesh import DTYPES, Grid, dtype_text, kind_of, kind_text
from ..nn.wrapper import modules_of
from ..ops.ranks import cut_batch
from ..random import digest
from .rank_rows import ShuffleIndex


class Description:
    """The entries of a model that ranks compare, and a digest of them.

    Hyperparameters are attributes of plain values that have the name of an argument of the constructor, such as
    ``aggr`` and ``p``; other attributes, such as counters, may differ between ranks. The entries are made anew when a
    module or parameter was replaced, or has another mode, type, hyperparameter or ``requires_grad``. The numbers in
    parameters and buffers are no entries.

    Args:
        model: the model to describe.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._entries: dict[str, str] = {}
        self._digest = 0
        self._state: list[tuple[Any, ...]] = []
        self._described: list[Any] = []  # kept, so that no other object gets the id of one of them

    @property
    def entries(self) -> dict[str, str]:
        """The description by name."""
        self._refresh()
        return self._entries

    @property
    def digest(self) -> int:
        """A number below 2^56 that follows from the entries."""
        self._refresh()
        return self._digest

    def compare(self, exchange: Exchange) -> str | None:
        """The first entry that is not the same on all ranks, and what rank 0 and another one have; None if all agree.
        All ranks call it together, and return the same."""
        said = exchange.objects(self.entries)
        for rank, theirs in enumerate(said):
            for name in (*said[0], *theirs):
                if said[0].get(name) != theirs.get(name):
                    return f"{name} {said[0].get(name, 'none')} and on rank {rank} {theirs.get(name, 'none')}"
        return None

    def _refresh(self) -> None:
        state: list[tuple[Any, ...]] = []
        described: list[Any] = []
        for module in modules_of(self.model):
            kind: Any = type(module)
            fields = vars(module)
            described.append(module)
            plain = [
                value if type(value) in _IMMUTABLE else repr(value) if _is_plain(value) else None
                for value in map(fields.get, _arguments(kind))
            ]
            state.append((id(module), kind, module.training, plain))
            for parameter in module._parameters.values():
                if parameter is not None:
                    described.append(parameter)
                    state.append((id(parameter), type(parameter), parameter.dtype, parameter.requires_grad))
        if state != self._state:
            self._entries = dict(_describe(self.model))
            self._digest = digest(repr(self._entries).encode()) >> 8
            self._state, self._described = state, described


def _describe(model: nn.Module) -> list[tuple[str, str]]:
    found = []
    for name, module in model.named_modules():
        kind: Any = type(module)
        found.append((f"the type of {name or 'the model'}", kind.__name__))
        plain = {key: value for key in _arguments(kind) if _is_plain(value := vars(module).get(key))}
        for key, value in {"training": module.training, **plain}.items():
            found.append((f"{name}.{key}".lstrip("."), repr(value)))
        found.append((f"extra_repr() of {name or 'the model'}", repr(module.extra_repr())))
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        shape = "lazy" if is_lazy(tensor) else str([*tensor.shape])
        learns = "trained" if tensor.requires_grad else "not trained"
        found.append((name, f"{str(tensor.dtype).removeprefix('torch.')} {shape} {learns}"))
    return found


@lru_cache
def _arguments(kind: type) -> tuple[str, ...]:
    """The names of the arguments of the constructors of a class and its bases."""
    return tuple(
        dict.fromkeys(
            name for base in kind.__mro__ if "__init__" in vars(base) for name in inspect.signature(base).parameters
        )
    )


_IMMUTABLE = {bool, int, float, str, type(None)}
"""The types of most plain values, which are recognized faster than by :func:`_is_plain`."""


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return isinstance(value, (bool, int, float, str))


_COMMON: dict[str, Callable[[int], str]] = {
    "parts": str,
    "hops": str,
    "training": lambda number: str(bool(number)),
    "grad mode": lambda number: str(bool(number)),
    "autocast": lambda number: "none" if number < 0 else dtype_text(number),
    "x": kind_text,
    "gradient of x": lambda number: "wanted" if number else "not wanted",
    "model": str,
}
"""The entries of a header that must be equal on all ranks, and for each how its number is shown."""


class Agreed(NamedTuple):
    """What all ranks find in the headers."""

    grid: Grid
    """The grid of all ranks: each column has the shares of one batch."""
    knows_calls: bool
    """Whether all ranks know how the model calls its layers."""
    knows_halo: bool
    """Whether all ranks of this one's column have the halo's rows of ``batch.x``."""
    devices: tuple[int, ...]
    """Where each rank has its batch: -1 for a CPU, else the number of the GPU."""
    on_gpus: bool
    """Whether all ranks have their batches on GPUs, and there all parameters that are trained."""


def own_header(model: Description, batch: Any, world: int, knows_calls: bool) -> list[int]:
    """The header that this rank sends to all others: as many numbers on every rank.

    Args:
        model: the description of this rank's model.
        batch: of this rank.
        world: the number of ranks.
        knows_calls: whether this rank knows how the model calls its layers on such a batch.
    """
    index: ShuffleIndex = batch.shuffle_index
    x, hops, device = getattr(batch, "x", None), len(batch.num_sampled_edges), index.sent.device
    kind, gpu = device.type, -1 if device.index is None else device.index
    autocast = DTYPES.index(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else -1
    knows_halo = "x_halo" in batch and index.knows_halo_of(x)
    digest = model.digest if world > 1 else 0
    wanted = isinstance(x, Tensor) and x.requires_grad
    trains_there = gpu >= 0 and all(entry.is_cuda for entry in model.model.parameters() if entry.requires_grad)
    said = [index.parts, hops, model.model.training, torch.is_grad_enabled(), autocast, kind_of(x), wanted, digest,
            index.part, batch.batch_key, index.balance, knows_calls, knows_halo, gpu, trains_there]  # fmt: skip
    return [int(value) for value in said]


def compare_headers(own: list[int], model: Description, index: ShuffleIndex, exchange: Exchange) -> Agreed:
    """Exchanges headers between all ranks, in one round. All ranks get the same numbers, so all decide alike.

    Args:
        own: what :func:`own_header` returned.
        model: the description of this rank's model.
        index: of this rank's batch.
        exchange: between all ranks.

    Raises:
        ValueError: on all ranks, unless each column has shares of one batch, and all run one model in one way.
    """
    said = [own]
    if exchange.size > 1:
        said = exchange.numbers(torch.tensor(own).expand(exchange.size, -1), "header").tolist()
    parts = [of_rank[0] for of_rank in said]
    if len(set(parts)) > 1:
        raise ValueError(f"batch: expected as many parts on all ranks, found {parts}")
    for rank, theirs in enumerate(said):
        for (name, text), first, their in zip(_COMMON.items(), said[0], theirs, strict=False):
            if first != their:
                words = f"{text(first)} and on rank {rank} {text(their)}"
                found = model.compare(exchange) or words if name == "model" else words
                raise ValueError(f"split: {name}: expected the same on all ranks, found {found}")
    part_of, keys, balances, know_calls, know_halo, devices, train_there = zip(
        *(theirs[len(_COMMON) :] for theirs in said), strict=True
    )
    grid = _grid_of(list(part_of), parts[0])
    for copy in range(grid.copies):
        column = grid.column(copy)
        _compare_keys(keys, column)
        index.check_balances([balances[rank] for rank in column], exchange, column)
    column = grid.column(grid.copy(exchange.rank))
    return Agreed(grid, all(know_calls), all(know_halo[rank] for rank in column), devices, all(train_there))


def _grid_of(part_of: list[int], parts: int) -> Grid:
    grids = [Grid(len(part_of), parts), Grid(len(part_of), parts, consecutive="parts")]
    expected = [[grid.part(rank) for rank in range(grid.ranks)] for grid in grids]
    if part_of not in expected:
        raise ValueError(f"batch: expected ranks of the parts {expected[0]} or {expected[1]}, found {part_of}")
    return grids[expected.index(part_of)]


def _compare_keys(keys: Sequence[int], column: list[int]) -> None:
    """Raises ValueError unless the ranks of a column have batches of one key; ``keys``: of all ranks."""
    for rank in column:
        if keys[rank] != keys[column[0]]:
            raise ValueError(
                f"split: batch_key: expected the same on all ranks of a batch, found {keys[column[0]]} on rank "
                f"{column[0]} and {keys[rank]} on rank {rank}"
            )


SEEDS = 32
_NEW = 11
"""How many nodes a group has more than the one before, so that all groups differ in size."""
_DEGREE = 3
_SHOWN = 64
"""How many rows of a real batch are taken, from which the rows of the probe are made."""
_OWN_FIELDS = {"edge_index", "n_id", "e_id", "input_id", "x_halo", "shuffle_index", "num_nodes"}


@dataclass
class Field:
    """A tensor of batches."""

    of_edges: bool
    """Whether it has a row for each edge; else for each own node."""
    rows: Tensor
    """Some of its rows."""


@dataclass
class Fields:
    """What the batches of a rank look like."""

    hops: int
    num_nodes: int
    tensors: dict[str, Field]
    others: dict[str, Any]
    """Fields without rows, which the probe gets unchanged."""
    has_halo: bool
    """Whether the loader exchanges the rows of ``x``."""


def fields_of(batch: Data) -> Fields:
    """The fields of a batch, in a form that can be pickled."""
    num_nodes, num_edges = int(batch.num_nodes or 0), batch.edge_index.size(1)
    tensors, others = {}, {}
    for name, value in batch.to_dict().items():
        if name in _OWN_FIELDS or name.startswith(("num_sampled", "batch", "global")):
            continue
        if (
            isinstance(value, Tensor)
            and value.dim() > 0
            and value.size(0) == (num_edges if "edge" in name else num_nodes)
        ):
            tensors[name] = Field("edge" in name, value[:_SHOWN].detach().cpu().clone())
        elif isinstance(value, Tensor) and value.dim() > 0 and value.size(0) == num_edges:
            tensors[name] = Field(True, value[:_SHOWN].detach().cpu().clone())
        elif isinstance(value, (int, float, str, bool, Tensor)):
            others[name] = value.cpu() if isinstance(value, Tensor) else value
    has_halo = isinstance(getattr(batch, "x_halo", None), Tensor)
    return Fields(len(batch.num_sampled_edges), num_nodes, tensors, others, has_halo)


def probe_batch(fields: Fields, device: torch.device) -> Data:
    """A batch of SEEDS seeds with these fields; equal fields give equal batches.

    The nodes of all groups but the last have _DEGREE - 1 edges each from random nodes of the groups up to the next one;
    every fifth node also has an edge from itself. Each node of a later group has an edge into the group before.
    """
    generator = torch.Generator().manual_seed(0)
    sizes = [SEEDS + _NEW * g for g in range(fields.hops + 1)]
    ends = list(accumulate(sizes))
    src, dst = [], []
    for group in range(fields.hops):
        first, last, most = ends[group] - sizes[group], ends[group], ends[group + 1]
        nodes = torch.arange(first, last)
        news = torch.arange(last, most)
        src += [torch.randint(most, (len(nodes) * (_DEGREE - 1),), generator=generator), nodes[::5], news]
        into = torch.randint(first, last, (len(news),), generator=generator)
        dst += [nodes.repeat(_DEGREE - 1), nodes[::5], into]
    sources, destinations = torch.cat(src), torch.cat(dst)
    order = torch.argsort(destinations, stable=True)
    batch = Data(edge_index=torch.stack([sources[order], destinations[order]]))
    into = torch.bincount(batch.edge_index[1], minlength=ends[-1]).cumsum(0)
    edges = into[[end - 1 for end in ends[:-1]]]
    batch.num_sampled_nodes = sizes
    batch.num_sampled_edges = edges.diff(prepend=edges.new_zeros(1)).tolist()
    batch.num_nodes, batch.batch_size, batch.global_batch_size = ends[-1], SEEDS, SEEDS
    batch.n_id, batch.batch_key = torch.arange(ends[-1]), 0
    for name, field in fields.tensors.items():
        count = len(order) if field.of_edges else ends[-1]
        rows = field.rows if len(field.rows) else field.rows.new_zeros((1, *field.rows.shape[1:]))
        values = rows[torch.randint(len(rows), (count,), generator=generator)]
        if values.is_floating_point():  # noise, so that no two values are equal; signs stay
            noise = torch.rand(values.shape, generator=generator).to(values.dtype)
            values = values * (1 + 0.5 * noise) if bool(rows.any()) else noise
        batch[name] = values
    for name, value in fields.others.items():
        batch[name] = value
    return batch.to(device)


def cut_probe(whole: Data, parts: int, part: int, with_halo: bool) -> tuple[Data, Tensor]:
    """One rank's cut of the probe by random owners, and the positions of its own nodes in ``whole``: int64."""
    owner = torch.randint(parts, (whole.num_nodes,), generator=torch.Generator().manual_seed(1))
    columns, device = sum(whole.num_sampled_nodes[:-1]), whole.edge_index.device
    index = whole.edge_index.cpu()
    colptr = torch.bincount(index[1], minlength=columns).cumsum(0)
    colptr = torch.cat([colptr.new_zeros(1), colptr])
    cut = cut_batch(whole.n_id.cpu(), whole.num_sampled_nodes, colptr, index[0], owner, parts, part)
    batch = Data()
    for name, value in whole.to_dict().items():
        if isinstance(value, Tensor) and value.dim() > 0 and name != "edge_index":
            if value.size(0) == whole.num_nodes:
                value = value[cut.local.to(device)]
            elif value.size(0) == index.size(1):
                value = value[cut.edge.to(device)]
        batch[name] = value
    degrees = cut.colptr.diff()
    col = torch.arange(len(degrees)).repeat_interleave(degrees)
    batch.edge_index = torch.stack([cut.row, col]).to(device)
    batch.num_nodes, batch.batch_size = len(cut.local), cut.num_nodes[0]
    batch.num_sampled_nodes, batch.num_sampled_edges = cut.num_nodes, cut.num_edges
    batch.shuffle_index = ShuffleIndex(parts, part, cut.sent.to(device), cut.num_sent, cut.num_received)
    if with_halo:
        batch.x_halo = whole.x[cut.halo.to(device)]
        batch.shuffle_index = batch.shuffle_index.with_halo_of(batch.x)
    return batch, cut.local.to(device)
