"""Ordinary PyG models that compute, in each layer, no more than the seeds of a batch need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, fx, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.norm import HeteroBatchNorm

from .._private import NormBase
from .._user import warn
from .dictionary_layer import DictionaryLayer, takes_dictionaries
from .forward_pass import (
    CommonRows,
    ForwardPass,
    JoinOfPass,
    LayerOfPass,
    NormOfPass,
    Place,
    Savings,
    in_order,
    refuse_compiled,
)
from .hops import BatchHops, EdgeType, NodeType, SampledNumbers, node_stores, sampled_numbers, seed_rows
from .joins import JoinedHeteroConv, JoinedTrace
from .layered import Layered, default_call
from .merged import MergedTrace, merges
from .pyg_layers import DistinctRows, linear_modules
from .trial import agree, first_difference, has_nodes_as_edges, outputs, with_nodes_in_every_group
from .wrapper import Call, Functions

ALL: Mapping[NodeType, int] = {}
"""Of a model that runs on a whole batch: its layers return the rows of all nodes."""
MOST_ORDERS = 8
"""How often a model may call its layers in another order than before until that is taken for its way."""


class Narrowed(Layered):
    """What :func:`narrow` returns; ``module`` is the model itself, unchanged, or what :func:`weigh` returned.

    Parameters, buffers and submodules have the names that they have in the model, and so has the ``state_dict``: what
    one of the two saves, the other loads. Attributes that this object lacks are the model's.
    """

    _norm_types = NormBase, HeteroBatchNorm

    def __init__(self, module: nn.Module, call: Callable[[Any, Any], Any] = default_call, check: bool = True) -> None:
        self._savings: dict[tuple[int, bool], Savings] = {}
        """What narrowing leaves out, by (number of hops, mode), until other layers or calls of layers are found."""
        self._distinct = DistinctRows([])
        self._to_size = True
        """Whether a layer has not been run yet, so that lazy parameters of it may have no size."""
        super().__init__(module, call)
        self._to_check = {False, True} if check else set()
        """The modes (whether the model is in training) in which no batch with edges in every hop has been compared with
        the whole yet."""
        self._checked: dict[bool, set[Any]] = {False: set(), True: set()}
        """The hops and relations in which the batches that were compared had edges, by mode; "seeds" after the first.
        """
        self._orders: Counter[tuple[int, bool]] = Counter()
        """How often the order of the layers' calls was another than before, by (number of hops, mode)."""
        self._reads_batch = False
        """Whether the model was found to read, in training alone, more than the seeds need."""

    def forward(self, batch: Any) -> Any:
        """The model's output for the batch's seeds: [batch_size, ...], or a dictionary of these by node type.

        In a batch of links the seeds are the links' ends, to whose rows ``edge_label_index`` and the triplets' indices
        point: [num_sampled_nodes[0], ...].

        Raises:
            ValueError: the batch has no hops, or the model cannot be narrowed or returns something else; the message
                says why.
            TypeError: the batch is neither a Data nor a HeteroData, or the model returns neither a tensor nor such a
                dictionary.
            NotImplementedError: within ``torch.compile``.
        """
        refuse_compiled("narrow")
        hops, training, numbers = None, self._model.training, sampled_numbers(batch)
        if training in self._to_check and (numbers is None or self._is_new(numbers.edges, training)):
            hops = self._compare(batch, training)
        elif self._to_size and not self._savings and self._has_lazy():
            hops = BatchHops(batch, verify=False)
            with torch.no_grad(), self._evaluating():
                self._run(batch, hops)  # gives all parameters their sizes
        if self._to_size:  # to set an attribute of a module takes a microsecond
            self._to_size = False
        # Decided by the batch alone, also for the first one: a run that resumes there computes the same.
        if numbers is not None and not self._pays(batch, numbers):
            return seed_rows(self._whole(batch), batch, ALL, numbers.seeds)
        functions = self._functions[training]
        out, rows = self._run(batch, BatchHops(batch, verify=False) if hops is None else hops, functions)
        if functions.known and not functions.knows(rows.called):
            self._compare_again(batch, rows)
        return out

    def _is_new(self, num_edges: Mapping[EdgeType, Sequence[int]], training: bool) -> bool:
        """Whether a batch has edges where those that were compared had none."""
        checked = self._checked[training]
        for key, counts in num_edges.items():
            for hop, count in enumerate(counts):
                if count and not (key in checked and hop in checked):
                    return True
        return not checked

    def _compare(self, batch: Any, training: bool) -> BatchHops:
        """Compares the batch with the whole if it has edges where those before had none; returns its hops."""
        checked = self._checked[training]
        hops = BatchHops(batch, verify=not checked)
        found = {"seeds", *hops.with_edges}
        if hops.has_seeds and not found <= checked:
            self._check(batch, hops)
            checked |= found
        if {"seeds", *range(hops.depth), *hops.relations} <= checked:
            self._to_check.discard(training)
        return hops

    def _compare_again(self, batch: Any, rows: CommonRows) -> None:
        """Compares the narrowed model with the whole one on a batch on which it called something new."""
        training = self._model.training
        functions = self._functions[training]
        self._checked[training].clear()
        self._to_check.add(training)
        self._compare(batch, training)
        if rows.begins and not functions.names.issuperset(rows.called):
            warn(
                f"{rows.begins}: expected a function that is called again where the batch is computed a second time, "
                f"to be compared with the whole batch; found that it is not, so it may read more than the seeds need"
            )
        functions.add(rows.called)

    def _prepare(self, name: str, layer: MessagePassing) -> LayerOfPass:
        return DictionaryLayer(name, layer) if takes_dictionaries(layer) else super()._prepare(name, layer)

    def _joining(self, modules: list[nn.Module]) -> list[JoinOfPass]:
        found: list[JoinOfPass] = []
        for module in modules:
            if merges(module):
                found.append(MergedTrace(module))
            elif isinstance(module, fx.GraphModule):
                found.append(JoinedTrace(module, self._prepared))
            elif type(module).forward is pyg_nn.HeteroConv.forward:
                found.append(JoinedHeteroConv(module, self._prepared))
            elif isinstance(module, (HeteroBatchNorm, pyg_nn.InstanceNorm)):  # others call the same in both modes
                found.append(NormOfPass(module))
        return found

    def _layers_changed(self) -> None:
        self._savings, self._to_size, self._distinct = {}, True, DistinctRows(linear_modules(self.module))

    def _pays(self, batch: Any, numbers: SampledNumbers) -> bool:
        """Whether the batch is narrowed: whether that saves more than it costs, or the model reads statistics of the
        rows that are computed, which must be the same ones in every batch. True for a batch without hops, which
        :class:`BatchHops` refuses, and if parameters have no size even after a run."""
        if self._reads_statistics():
            return True
        depth = len(next(iter(numbers.edges.values())))
        savings = self._savings_of(batch, depth) if depth else None
        return savings is None or savings.pay(numbers.nodes, numbers.edges)

    def _savings_of(self, batch: Any, depth: int) -> Savings | None:
        """What narrowing leaves out of batches of this many hops; None if that cannot be known."""
        key = depth, self._model.training
        if key not in self._savings:
            layers = self._layers()
            if self._has_lazy():
                return None
            sizes = {layer.title: layer.size() for layer in layers}
            others = sum(parameter.numel() for parameter in self.module.parameters())
            others = max(0, others - sum(size.parameters for size in sizes.values()))
            if None in node_stores(batch):
                places = in_order([*sizes.values()], depth)
            else:
                hops = BatchHops(batch, verify=False)
                if not hops.has_seeds or (calls := self._known_calls(batch, hops)) is None:
                    return None
                places = [
                    Place(sizes[call.title].of_one(len(call.relations)), relation, call.groups)
                    for call in calls
                    for relation in call.relations
                ]
            self._savings[key] = Savings(places, depth, others)
        return self._savings[key]

    def _reads_statistics(self) -> bool:
        """Whether the model reads statistics of the rows of a batch in its mode."""
        if self._reads_batch and self._model.training:
            return True
        return bool(self._norms) and any(norm.training for norm in self._norms)

    def _run(self, batch: Any, hops: BatchHops, compared: Functions | None = None) -> tuple[Any, CommonRows]:
        """The narrowed output, and what was noted of the functions that the model called; ``compared``: those that it
        called when it was compared with the model on whole batches."""
        key = hops.depth, self._model.training
        calls = self._known_calls(batch, hops)
        forward_pass = ForwardPass(hops, self._weights(batch), calls)
        forward_pass.common_rows.compared = compared
        with self._distinct.of(batch):
            out = self._compute(batch, forward_pass)
        if calls is None and hops.tell and self._orders[key] < MOST_ORDERS:
            self._calls[key] = forward_pass.calls.calls
        elif forward_pass.differs is not None:
            self._called_otherwise(key, hops, forward_pass.differs)
        return out, forward_pass.common_rows

    def _known_calls(self, batch: Any, hops: BatchHops) -> list[Call] | None:
        """The calls of layers on batches of this many hops in the model's mode, as far as they are known; where the
        batch's numbers of rows do not tell, they are found out on one that has nodes in every group."""
        key = hops.depth, self._model.training
        calls = self._calls.get(key)
        ask = self._orders[key] < MOST_ORDERS and hops.has_seeds
        if calls is not None or not ask or (hops.tell and None in hops.nodes):
            return calls
        try:
            found = self._found_out(batch)
        except Exception as error:
            if has_nodes_as_edges(batch):
                return None  # perhaps a field of edges was taken for one of nodes
            if not isinstance(error, (IndexError, RuntimeError)):
                raise
            found = self._found_out(batch, empty_types=False)  # perhaps a table of a type without nodes
        self._calls[key] = found
        return found

    def _found_out(self, batch: Any, empty_types: bool = True) -> list[Call]:
        """The calls of layers on a larger batch; arguments as of :func:`with_nodes_in_every_group`."""
        with self._trial(batch):
            full = with_nodes_in_every_group(batch, empty_types)
            forward_pass = ForwardPass(BatchHops(full, verify=False), self._weights(full))
            self._compute(full, forward_pass)
        return forward_pass.calls.calls

    def _called_otherwise(self, key: tuple[int, bool], hops: BatchHops, title: str) -> None:
        """Called after a batch on which the model called its layers in another order than before. The next batch is
        asked for the order again; after :data:`MOST_ORDERS` of them, the numbers of rows say which nodes a layer
        computes."""
        self._calls.pop(key, None)
        self._savings.pop(key, None)
        self._orders[key] += 1
        if not hops.tell and self._reads_statistics():
            warn(
                f"{title}: expected layers to be called as in earlier batches, found another order; in this batch, of "
                f"which a hop found no node, norms in training may read more rows than in others"
            )

    def _check(self, batch: Any, hops: BatchHops) -> None:
        """Raises ValueError, naming the first module whose outputs differ, unless the narrowed model gives those of the
        model on the whole batch. Both run in the model's mode, but without dropout and with the running statistics of
        norms. What differs in training alone is a warning, and every batch is then narrowed in training."""
        with self._trial(batch):
            text, found = self._difference(batch, hops)
            if text is None:
                return
            if self._model.training:
                again, _ = self._run(batch, hops)
                with self._evaluating():
                    refused, _ = self._difference(batch, hops)
                if refused is None:
                    self._reads_batch = True
                    if agree(found, again):  # else it is random
                        warn(
                            f"{text}: in training, expected the seeds' rows to be those of the whole batch, found "
                            f"others; like BatchNorm, it is given the rows that layers compute, in every batch"
                        )
                    return
                text = refused
        raise ValueError(
            f"{text}: expected the seeds' rows to be those of the whole batch, found others; it reads more than a node "
            f"and its sampled neighbors (the degrees of sources, several hops, statistics of all rows), so the model "
            f"cannot be narrowed"
        )

    def _difference(self, batch: Any, hops: BatchHops) -> tuple[str | None, Any]:
        """The name and kind of the first module whose outputs are not those on the whole batch, if any, and the
        narrowed output."""
        # First: its layers refuse by their names what PyG would not.
        with self._naming_modules(batch):
            self._known_calls(batch, hops)  # found out on other rows than the batch's
            found, rows = self._run(batch, hops)
        self._functions[self._model.training].add(rows.called)
        expected = seed_rows(self._whole(batch), batch, ALL)
        if isinstance(expected, Tensor) and isinstance(found, Tensor) and len(expected) != len(found):
            raise ValueError(
                f"model: expected as many rows as for the whole batch, {len(expected)}, found {len(found)}; where "
                f"several types have seeds, let it return a dictionary by node type, or scores of links"
            )
        if agree(expected, found):
            return None, found
        with outputs(self.module) as narrowed:  # again: a layer that is watched is computed by itself
            self._run(batch, hops)
        with outputs(self.module) as whole:
            self._whole(batch)
        return first_difference(self.module, whole, narrowed), found


def narrow(model: nn.Module, call: Callable[[Any, Any], Any] = default_call, check: bool = True) -> Narrowed:
    """Makes a PyG model compute only what the seeds of a mini-batch need.

    The nodes of a batch are numbered hop by hop, so what a layer needs is a prefix of the batch's rows and edges: of L
    layers, the first computes rows for all nodes but those of the last hop, the last layer for the seeds alone. Outputs
    and gradients are those of the model on the whole batch. Residuals and JumpingKnowledge are computed on the rows
    that all of their operands have. Where a layer's message is its source's row, or that row times a weight, messages
    are not stored: they are aggregated over the CSC, on a CPU and on a GPU.

    Where narrowing would save less than it costs (:mod:`torch_gnnscale.nn.forward_pass`), the whole batch is computed.

    Gradients can be taken once, not gradients of gradients. Modules between the layers may be compiled; the model, a
    layer and what calls the narrowed model may not.

    BatchNorm in training normalizes over the rows that are computed: after the first of L layers, those of all nodes
    but the last hop's. So a model in training with BatchNorm, InstanceNorm or HeteroBatchNorm is narrowed in every
    batch.

    Layers that read more than a node and its sampled neighbors are refused: the first batch's outputs are compared with
    those of the model on the whole batch. If it has no edges in some hop or relation, so are those of each later batch
    that has edges where those before had none. This is done in training and in evaluation mode. Where only a model in
    training reads more, as a norm of one's own does, there is a warning, and every batch is narrowed in training.

    Args:
        model: any module with MessagePassing layers that get the batch's ``edge_index``; or :func:`weigh` of it.
        call: how the model is called with a batch; the default of a weighed model is what :func:`weigh` was given.
        check: compare the first batch of each mode; this costs a forward pass of the model on the whole batch, and one
            of the narrowed model. Without it, a model with lazy parameters is run on the first batch twice: their
            sizes decide how that batch is computed. Either way, a model of a typed graph runs once more in each mode,
            on the batch with further nodes, which shows how its layers are called.

    Returns:
        A module to be called with a batch; it shares the model's parameters.

    Raises:
        ValueError: the model has no MessagePassing layers, or narrowed or weighed ones within.
    """
    return Narrowed(model, call, check)
