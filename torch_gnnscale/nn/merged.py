"""A batch of types as one graph, of which layers need prefixes: what models of ``to_hetero_with_bases`` make of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from types import FunctionType
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, fx, nn
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.nn import to_hetero_with_bases_transformer as pygs

from .aggregate import sort_edges
from .forward_pass import ForwardPass
from .hops import BatchHops, EdgeType, NodeRows, NodeType, Relation
from .wrapper import Shadow


def merges(module: nn.Module) -> TypeGuard[fx.GraphModule]:
    """Whether it is a traced model that makes one graph of all relations."""
    return isinstance(module, fx.GraphModule) and any(
        node.target is pygs.group_edge_placeholder for node in module.graph.nodes
    )


def forward_with(module: fx.GraphModule, functions: Mapping[Any, Callable[..., Any]]) -> Callable[..., Any]:
    """The module's ``forward``, which calls other functions in place of these."""
    forward: Any = type(module).forward
    names = {
        name: functions.get(value, value) if isinstance(value, FunctionType) else value
        for name, value in forward.__globals__.items()
    }
    return FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__).__get__(module)


class Merged:
    """The types of a batch as one: its nodes hop by hop, and those of a hop by type. With edges sorted by destination,
    a layer needs prefixes, as in a graph of one type.

    Args:
        hops: of the batch; gets the merged nodes and edges as those of the type None.
        types: of the nodes, in the model's order.
    """

    def __init__(self, hops: BatchHops, types: Sequence[NodeType]) -> None:
        self.hops, self.types = hops, types
        of_types = [[end - first for first, end in pairwise([0, *hops.nodes[t].rows])] for t in types]
        self._sizes = [*zip(*of_types, strict=True)]
        """Of each group, the number of nodes by type."""
        self.nodes = hops.nodes[None] = NodeRows(map(sum, self._sizes))
        self._parts: Any = WeakIdKeyDictionary()
        """Of merged rows: (their version, the same rows by type)."""

    def rows(self, by_type: Mapping[NodeType, Tensor]) -> Tensor:
        """The rows of the first groups, as many as there are of each type, as those of one type."""
        found = [self.hops.nodes[t].groups(by_type[t].size(0)) for t in self.types]
        if 0 in found:
            wrong = self.types[found.index(0)]
            raise ValueError(
                f"model: expected input rows of whole hops {self.hops.nodes[wrong].rows} of {wrong!r}, found "
                f"{by_type[wrong].size(0)}"
            )
        sizes = self._sizes[: min(found)]
        split = [
            by_type[t][: sum(of_type)].split(of_type)
            for t, of_type in zip(self.types, zip(*sizes, strict=True), strict=True)
        ]
        merged = torch.cat([rows for of_group in zip(*split, strict=True) for rows in of_group])
        if len(set(found)) == 1:
            self._keep(merged, {t: by_type[t] for t in self.types})
        return merged

    def _keep(self, merged: Tensor, parts: dict[NodeType, Tensor]) -> None:
        if not merged.is_inference():  # it has no version, by which a change would be seen
            self._parts[merged] = merged._version, parts

    def split(self, merged: Tensor) -> tuple[dict[NodeType, Tensor], int]:
        """The rows of each type, and of how many first groups they are."""
        groups = self.nodes.groups(merged.size(0))
        if groups == 0:
            raise ValueError(f"model: expected rows of whole hops {self.nodes.rows}, found {merged.size(0)}")
        version, parts = self._parts.get(merged, (None, {}))
        if version is None or version != merged._version:
            blocks = merged.split([size for sizes in self._sizes[:groups] for size in sizes])
            parts = {t: torch.cat(blocks[number :: len(self.types)]) for number, t in enumerate(self.types)}
            self._keep(merged, parts)
        return parts, groups

    def join(self, keys: Sequence[EdgeType], weights: dict[EdgeType, Tensor] | None) -> MergedRelation:
        """The edges of some relations as those of one, which the hops get; and their weights, as those of None."""
        relations = [self.hops.relations[key] for key in keys]
        sizes = [size for of_group in self._sizes for size in of_group]
        nodes = torch.arange(sum(sizes), device=relations[0].index.device).split(sizes)
        place = {t: torch.cat(nodes[number :: len(self.types)]) for number, t in enumerate(self.types)}
        ends = [(None, None) if key is None else (key[0], key[-1]) for key in keys]
        index = [
            torch.stack([place[src][r.index[0]], place[dst][r.index[1]]])
            for r, (src, dst) in zip(relations, ends, strict=True)
        ]
        found = MergedRelation(self, torch.cat(index, 1), [r.counts for r in relations])
        self.hops.add(found)
        if weights is not None:
            weights[None] = torch.cat([weights[key] for key in keys])[found.order]
        return found


class MergedRelation(Relation):
    """The edges of several relations as those of one.

    Args:
        merged: the nodes.
        index: the edges of one relation after another, between merged nodes.
        counts: ``num_sampled_edges`` of each relation.
    """

    def __init__(self, merged: Merged, index: Tensor, counts: Sequence[Sequence[int]]) -> None:
        num_nodes = merged.nodes.rows[-1]
        edges, self.order = sort_edges(index, num_nodes, num_nodes)
        """The places of the edges in ``index``."""
        super().__init__(None, edges.index, merged.nodes, merged.nodes, map(sum, zip(*counts, strict=True)))
        self.merged = merged


class MergedTrace:
    """A GraphModule that :func:`merges` relations, and does so between :meth:`enter` and :meth:`leave` as
    :class:`Merged` does.

    Args:
        module: the GraphModule; before :meth:`enter` and after :meth:`leave` it is unchanged.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self._methods = Shadow(module)

    def enter(self, forward_pass: ForwardPass) -> None:
        """From now on the module computes on the batch of this forward pass."""
        if "forward" in vars(self.module):
            return
        common_rows = forward_pass.common_rows

        def paused(function: Callable[..., Any], *args: Any) -> Any:
            with common_rows.paused():
                return function(*args)

        def forward(*args: Any, **kwargs: Any) -> Any:
            functions = _Merging(self.module, forward_pass).functions()
            return forward_with(self.module, {of: partial(paused, each) for of, each in functions.items()})(
                *args, **kwargs
            )

        self._methods.set("forward", forward)

    def leave(self) -> None:
        """The module is again what it was before :meth:`enter`."""
        self._methods.restore()


class _Merging:
    """What takes the place of PyG's functions in one call of the module."""

    def __init__(self, module: fx.GraphModule, forward_pass: ForwardPass) -> None:
        self._title, self._forward_pass = type(module).__name__, forward_pass
        types = next(node.args[1] for node in module.graph.nodes if node.target is pygs.group_node_placeholder)
        self._merged = Merged(forward_pass.hops, [*cast("Mapping[NodeType, int]", types)])
        self._relation: MergedRelation | None = None
        """Made when its order or its edges are first needed."""

    def functions(self) -> dict[Any, Callable[..., Any]]:
        """By function of PyG's."""
        return {
            pygs.get_edge_type: self.numbers,
            pygs.group_node_placeholder: self.rows,
            pygs.group_edge_placeholder: self.edges,
            pygs.split_output: self.output,
        }

    def rows(self, by_type: Mapping[NodeType, Tensor], _: Any) -> Tensor:
        """The rows of all types."""
        return self._merged.rows(by_type)

    def _joined(self, keys: Iterable[EdgeType]) -> MergedRelation:
        if self._relation is None:
            keys, first = [*keys], self._merged.types[0]
            relations = self._forward_pass.hops.relations
            if (missing := next((key for key in keys if key not in relations), None)) is not None:
                raise ValueError(f"{self._title}: expected a batch with edges of {keys}, found none of {missing}")
            if len(keys) == 1 and keys[0] is not None and {keys[0][0], keys[0][-1]} != {first}:
                raise ValueError(
                    f"{self._title}: expected several relations, or one within the first type, {first!r}; found "
                    f"{keys[0]} alone, whose edges PyG's to_hetero_with_bases leads between nodes of {first!r}"
                )
            self._relation = self._merged.join(keys, self._forward_pass.weights)
        return self._relation

    def numbers(self, _: Any, numbers: Mapping[EdgeType, int]) -> Tensor:
        """The numbers of the merged edges' relations."""
        order = self._joined(numbers).order
        counts = torch.tensor([self._forward_pass.hops.relations[key].ends[-1] for key in numbers], device=order.device)
        return torch.arange(len(counts), device=order.device).repeat_interleave(counts)[order]

    def edges(self, values: Mapping[EdgeType, Tensor], numbers: Mapping[EdgeType, int], _: Any) -> Tensor:
        """The merged edges, or rows of them."""
        hops, joined = self._forward_pass.hops, self._joined(numbers)
        others = [key for key in numbers if values[key] is not hops.relations[key].index]
        if not others:
            return joined.index
        changed = next((key for key in others if values[key].size(0) != hops.relations[key].ends[-1]), None)
        if changed is not None:
            raise ValueError(
                f"{self._title}: expected the batch's edge_index of {changed} itself, or a row for each "
                f"of its edges, found others; a model that changes the edges cannot be narrowed"
            )
        return torch.cat([values[key] for key in numbers])[joined.order]

    def output(self, rows: Tensor, places: Mapping[Any, int]) -> dict[Any, Tensor]:
        """Rows by type, or those of edges by relation."""
        if self._relation is not None and not {*places}.isdisjoint(self._forward_pass.hops.relations):
            return pygs.split_output(rows[self._relation.order.argsort()], places)
        by_type, groups = self._merged.split(rows)
        returned = self._forward_pass.returned
        returned.update({t: min(returned.get(t, groups), groups) for t in by_type})
        return by_type
