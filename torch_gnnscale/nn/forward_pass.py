"""What the layers of a model share while it computes a batch: whether narrowing it saves more than it costs, operands
that have rows of different hops, and the pass itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import mul
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from .._private import current_function_mode, get_eval_frame_callback
from .aggregate import sort_edges
from .hops import BatchHops, EdgeType, HopEdges, NodeRows, NodeType, Relation
from .wrapper import Call, Calls, Functions, Shadow, running_here

LEAST_SAVED = 3 << 20
"""Multiply-adds of the forward pass: if narrowing saves fewer, the whole batch is computed. With this constant and the
two below, the way that is chosen is the faster one, or slower by less than a tenth, for GraphSAGE, GIN, GCN and GAT of
two and three layers (benchmarks/bench_narrow.py at commit ad4f2413)."""
EDGE = 1750
"""The cost of an edge in multiply-adds: PyG computes and aggregates its message in the time of that many."""
CHANNEL = 60
"""The cost of a channel of an output row in multiply-adds: its bias, its activation and their gradients take the time
of that many."""


class LayerSize(NamedTuple):
    """What a MessagePassing layer computes per row."""

    parameters: int
    """Multiply-adds per row, about: how many parameters the layer has."""
    of_destinations: bool
    """Whether it multiplies the rows of destinations alone, after the aggregation; else those of sources."""
    channels: int
    """How many numbers it computes per output row, in all heads together; 0 if its attributes do not say."""

    def of_one(self, relations: int) -> LayerSize:
        """What it computes for one of its relations."""
        return self._replace(parameters=self.parameters // relations) if relations > 1 else self


class Place(NamedTuple):
    """A call of a layer on one relation."""

    size: LayerSize
    """Of the layer."""
    relation: EdgeType
    """Whose edges it reads."""
    groups: int
    """The number of first groups whose rows it gets."""


def in_order(sizes: Sequence[LayerSize], depth: int) -> list[Place]:
    """The places of layers of which each reads what the one before it returns, in a graph of a single type; those
    beyond ``depth`` hops are left out."""
    return [Place(size, None, depth + 1 - number) for number, size in enumerate(sizes[:depth])]


class Savings:
    """What narrowing leaves out of a batch, by its numbers of nodes and edges.

    Args:
        places: the calls of a model's layers.
        depth: the number of hops.
        others: how many parameters the model has outside of these layers.
    """

    def __init__(self, places: Sequence[Place], depth: int, others: int) -> None:
        self._of_node: dict[NodeType, list[int]] = {}
        self._of_edge: dict[EdgeType, list[int]] = {}
        self._calls = sum(place.relation is not None for place in places)
        per_layer = others // max(len(places), 1)
        for (parameters, of_destinations, channels), relation, groups in places:
            src, dst = (None, None) if relation is None else (relation[0], relation[-1])
            of_src, of_dst = (self._of_node.setdefault(end, [0] * (depth + 1)) for end in (src, dst))
            of_edge = self._of_edge.setdefault(relation, [0] * depth)
            # The rows of later groups are left out: as destinations those from groups - 1 on, as sources from groups.
            for group in range(groups - 1, depth + 1):
                of_dst[group] += per_layer + CHANNEL * channels + parameters * of_destinations
            for group in range(groups, depth + 1):
                of_src[group] += parameters * (not of_destinations)
            for hop in range(groups - 1, depth):
                of_edge[hop] += EDGE
        of_types = [(key, max(each)) for key, each in (*self._of_node.items(), *self._of_edge.items()) if each]
        merged, by_type = ([most for key, most in of_types if (key is None) == none] for none in (True, False))
        self._most = max(by_type, default=0) + max(merged, default=0)
        """What is left out for a node or an edge, at most."""

    def pay(self, num_nodes: Mapping[NodeType, Sequence[int]], num_edges: Mapping[EdgeType, Sequence[int]]) -> bool:
        """Whether a batch is narrowed; arguments as of :meth:`of`. Each call on a relation of types has costs of its
        own: benchmarks/bench_narrow_typed.py."""
        least = LEAST_SAVED if self._calls == 0 else LEAST_SAVED * self._calls * 2 // 3
        count = sum(map(sum, num_nodes.values())) + sum(map(sum, num_edges.values()))
        return count * self._most >= least and self.of(num_nodes, num_edges) >= least

    def of(self, num_nodes: Mapping[NodeType, Sequence[int]], num_edges: Mapping[EdgeType, Sequence[int]]) -> int:
        """How many multiply-adds narrowing leaves out of a batch, about.

        Args:
            num_nodes, num_edges: ``num_sampled_nodes`` by node type, and ``num_sampled_edges`` by relation.
        """
        if None in self._of_node and None not in num_nodes:  # types that are merged; BatchHops refuses unequal lengths
            num_nodes = {**num_nodes, None: [*map(sum, zip(*num_nodes.values(), strict=False))]}
            num_edges = {**num_edges, None: [*map(sum, zip(*num_edges.values(), strict=False))]}
        nodes = sum(sum(map(mul, num_nodes[key], each)) for key, each in self._of_node.items())
        return nodes + sum(sum(map(mul, num_edges[key], each)) for key, each in self._of_edge.items())


JOINS = {"cat", "concat", "stack"}
"""Functions of a list of tensors."""
_ELEMENTWISE = {"add", "sub", "mul", "div", "truediv", "true_divide", "pow", "maximum", "minimum", "where", "lerp",
                "addcmul", "addcdiv", "max", "min", "gt", "ge", "lt", "le", "eq", "ne", "and", "or", "xor"}  # fmt: skip
NARROWED = JOINS | {
    spelled for name in _ELEMENTWISE for spelled in (name, f"{name}_", f"__{name}__", f"__i{name}__", f"__r{name}__")
}
"""Functions whose operands are cut."""

_OF_SIZES = {"__get__", "__len__", "dim", "size", "numel", "is_floating_point", "is_complex"}
"""Functions that are not noted."""


class CommonRows(TorchFunctionMode):
    """If the operands of an element-wise function or a join have rows of different hops of a batch, cuts them to the
    rows that all of them have. Torch itself would refuse such operands, except for a single row, which it would add to
    all: one that comes from a layer is a node's, and is followed from function to function."""

    everywhere = False
    """Whether it is active also within those layers whose operands have rows of the same hops, so that none is cut."""

    def __init__(self, hops: BatchHops) -> None:
        super().__init__()
        self.hops = hops
        self.called: list[str] = []
        """The functions of tensors with rows, and the layers, that were called so far, in their order."""
        self.compared: Functions | None = None
        """What the model called when it was compared with the model on whole batches, if it was."""
        self.begins = ""
        """The first function that it did not call then, and its module."""
        self.only_notes = False
        """Whether operands are left as they are."""
        self._quiet = False
        self._single = WeakIdKeyDictionary()
        """By tensor that comes from the single row of a layer: the nodes of its type."""

    def returned(self, out: Any, nodes: NodeRows) -> None:
        """Says that a layer returned rows of the first of these nodes; other objects are left alone."""
        if isinstance(out, Tensor) and out.dim() > 0 and out.size(0) == 1 < nodes.rows[-1]:
            self._single[out] = nodes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        self.note(name, args)
        if self.only_notes:
            return func(*args, **kwargs)
        if name in NARROWED:
            args, kwargs = self._cut(name, args, kwargs)
        out = func(*args, **kwargs)
        if self._single:
            nodes = next((self._single[t] for t in _tensors((*args, *kwargs.values())) if t in self._single), None)
            for tensor in _tensors([out]) if nodes is not None else ():
                self._single[tensor] = nodes
        return out

    def note(self, name: str, args: Any) -> None:
        """Notes that a function is called; but not if it reads a size or an attribute, or has a single number."""
        first = args[0] if args else None
        if name in _OF_SIZES or self._quiet or (type(first) is Tensor and first.dim() == 0):
            return
        self.called.append(name)
        if self.compared is not None and not self.begins and name not in self.compared.names:
            self.begins = f"{running_here()}: {name}"

    @contextmanager
    def noting(self) -> Iterator[None]:
        """A context in which operands are left as they are, and functions are noted."""
        before, self.only_notes = self.only_notes, True
        try:
            yield
        finally:
            self.only_notes = before

    @contextmanager
    def noting_one(self, name: str) -> Iterator[None]:
        """A context in which all that is called is noted as one function."""
        self.note(name, ())
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False

    def paused(self) -> _Paused:
        """A context in which operands are left as they are, and functions are not noted: for code of this package.
        Without effect if this is not the innermost mode."""
        return _Paused(self)

    def _cut(self, name: str, args: Any, kwargs: Any) -> Any:
        joins = name in JOINS
        operands = [*(args[0] if joins and args else args)]
        tensors = [value for value in operands if isinstance(value, Tensor)]
        if joins and name != "stack":
            dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            if not tensors or dim in (0, -tensors[0].dim()):
                return args, kwargs
        most = max((t.dim() for t in tensors), default=0)
        # A vector's rows are the columns of a matrix, and a single row is broadcast unless it is a node's.
        of_rows = [t for t in tensors if t.dim() == most and most > 0]
        sizes = {t.size(0) for t in of_rows if joins or t.size(0) != 1}
        if self._single and any(t.size(0) == 1 and self._is_node_of(t, sizes) for t in of_rows):
            sizes.add(1)
        if len(sizes) < 2 or not self.hops.are_rows(sizes):
            return args, kwargs
        rows = min(sizes)
        cut = [
            v[:rows] if isinstance(v, Tensor) and v.dim() == most and v.size(0) in sizes and v.size(0) > rows else v
            for v in operands
        ]
        return ((cut, *args[1:]), kwargs) if joins else (tuple(cut), kwargs)

    def _is_node_of(self, single: Tensor, sizes: Iterable[int]) -> bool:
        """Whether a single row is that of a node of a type of which each size is the number of some first nodes."""
        nodes = self._single.get(single)
        return nodes is not None and nodes.has(sizes)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among values, and in lists and tuples of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


class _Paused:
    def __init__(self, mode: CommonRows) -> None:
        self.mode = mode
        self.left = False

    def __enter__(self) -> None:
        self.left = current_function_mode() is self.mode
        if self.left:
            self.mode.__exit__(None, None, None)

    def __exit__(self, *_: Any) -> None:
        if self.left:
            self.mode.__enter__()


def refuse_compiled(title: str) -> None:
    """Raises NotImplementedError within ``torch.compile``: the sizes of layers change with each batch."""
    if get_eval_frame_callback() not in (None, False):  # also where a function was left to Python
        raise NotImplementedError(f"{title}: expected a model that is not compiled, found it within torch.compile")


class Given(NamedTuple):
    """Rows of the nodes of one type that a layer gets."""

    number: int
    """How many there are."""
    rows: Sequence[int]
    """``rows[g - 1]`` is the number of those that are used in a call on the first g groups."""


class ForwardPass:
    """What the layers of a model share while it computes one batch.

    Args:
        hops: of the batch.
        weights: by relation, a number for each of its edges, by which its message is multiplied; or None.
        calls: the calls of layers; None: they are found out by numbers of rows, which must tell groups.
    """

    def __init__(
        self, hops: BatchHops, weights: dict[EdgeType, Tensor] | None = None, calls: list[Call] | None = None
    ) -> None:
        self.hops = hops
        self.weights = weights
        self.calls = Calls(calls)
        self.differs: str | None = None
        """The title of the first layer that was not called as in ``calls``; from then on, numbers of rows decide."""
        self.returned: dict[NodeType, int] = {}
        """By type of nodes, of how many first groups a layer has returned rows, at least."""
        self.common_rows = CommonRows(hops)
        self._normalized: dict[Any, tuple[Tensor | None, HopEdges, Tensor]] = {}

    def groups(self, title: str, found: int, relations: tuple[EdgeType, ...], given: Sequence[Given]) -> int:
        """The number of first groups whose rows a layer gets in the call that comes next; it returns those of one less.

        Args:
            title: the layer's.
            found: that number by the numbers of its input's rows.
            relations: whose edges it reads.
            given: the rows that it gets, of each type.
        """
        groups = self._groups(title, found, relations, given)
        for relation in relations:
            node_type = None if relation is None else relation[-1]
            self.returned[node_type] = min(self.returned.get(node_type, groups), groups - 1)
        return groups

    def _groups(self, title: str, found: int, relations: tuple[EdgeType, ...], given: Sequence[Given]) -> int:
        calls = self.calls
        if calls.finds_out:
            calls.calls.append(Call(title, found, relations=relations))
            return found
        call = None if self.differs else calls.next(title)
        if call is not None and call.relations == relations:
            expected = [rows[call.groups - 1] for _, rows in given]
            fewest = min(number - least for (number, _), least in zip(given, expected, strict=True))
            # Types may have rows of more groups, of which the layer uses the fewest; a single row may have been
            # broadcast to them in a module that is compiled.
            if fewest == 0 or (fewest > 0 and 1 in expected):
                return call.groups
        self.differs = self.differs or title
        return found

    def normalized(
        self, relation: Relation, weight: Tensor | None, improved: bool, loops: bool, flow: str, dtype: torch.dtype
    ) -> tuple[HopEdges, Tensor]:
        """A relation's edges with self loops, and their weights [e], after PyG's ``gcn_norm``; computed once."""
        key = (relation.key, id(weight), improved, loops, dtype)
        if key not in self._normalized:
            rows = relation.dst.rows
            index, norm = gcn_norm(relation.edges.edges.index, weight, rows[-1], improved, loops, flow, dtype)
            edges, order = sort_edges(index, rows[-1], rows[-1])
            ends = relation.ends_in(edges.forward.ptr)
            # The weight is kept, because its id may be reused when it is freed.
            self._normalized[key] = weight, HopEdges(edges, rows, rows, ends), norm[order]
        return self._normalized[key][1:]


class JoinOfPass(Protocol):
    """What computes a module during a forward pass."""

    def enter(self, forward_pass: ForwardPass) -> None:
        """From now on the module computes on the batch of this forward pass."""

    def leave(self) -> None:
        """The module is again what it was before :meth:`enter`."""


class LayerOfPass(JoinOfPass, Protocol):
    """What computes a MessagePassing layer during a forward pass."""

    title: str
    """The layer's name and kind, for errors."""

    def size(self) -> LayerSize:
        """What the layer computes per row."""


class NormOfPass:
    """Notes all that a norm calls as one function: a norm with running statistics takes another way in training than
    when it is compared with the whole batch.

    Args:
        module: the norm.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self._methods = module, Shadow(module)

    def enter(self, forward_pass: ForwardPass) -> None:
        """From now on the norm is one function of this forward pass."""
        self._noting, self._forward = forward_pass.common_rows.noting_one, self.module.forward
        self._methods.set("forward", self.computed)

    def leave(self) -> None:
        """The norm is again what it was before :meth:`enter`."""
        self._methods.restore()
        del self._noting, self._forward

    def computed(self, *args: Any, **kwargs: Any) -> Any:
        """The norm's ``forward``."""
        with self._noting(type(self.module).__name__):
            return self._forward(*args, **kwargs)
