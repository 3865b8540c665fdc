"""Models that say themselves where ranks exchange rows: :func:`exchange` before each layer (GSplit, algorithm 2)."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._private import BatchNorm
from ..comm.mesh import TransportName
from ..comm.row_transport import RowTransport
from ..nn.hops import first_rows, seed_rows
from ..nn.wrapper import Wrapper, title_of
from .agreement import compare_headers, own_header
from .local_rows import OwnHops
from .parallel import OnRanks
from .split_layer import SplitPass, outside_inference_mode, refuse_recomputing


class LayerInput(NamedTuple):
    """What a layer of one rank's share of a batch reads; a bipartite graph, as PyG's layers take it."""

    x: tuple[Tensor, Tensor]
    """(Rows of the sources, those of the destinations). The destinations are own nodes, and the first sources."""
    edge_index: Tensor
    """int64, [2, e]: (source, destination). These are the batch's first e edges, so that ``edge_attr[:e]`` are
    theirs."""


class _Call(NamedTuple):
    """A call of :func:`exchange`, which all ranks make alike."""

    layer: int
    width: tuple[int, ...]
    dtype: torch.dtype


class _ExplicitPass(SplitPass):
    """A forward pass of a model that calls :func:`exchange`.

    Args:
        hops, transport, batch, knows_halo: as of :class:`SplitPass`.
        expected: the calls that the model made on the first such batch; None: this is the first one, in which ranks
            compare their calls.
    """

    def __init__(
        self, hops: OwnHops, transport: RowTransport, batch: Any, knows_halo: bool, expected: list[_Call] | None
    ) -> None:
        super().__init__(hops, transport, batch, [], knows_halo)
        self.expected, self.made = expected, list[_Call]()

    def agree_on(self, call: _Call | None) -> None:
        """Raises an error unless all ranks make this call; None: the forward pass has ended."""
        number = len(self.made)
        if self.expected is None:
            said = self.transport.exchange.objects(call)
            if any(entry != said[0] for entry in said):
                texts = "; ".join(f"{_text(entry)} on part {part}" for part, entry in enumerate(said))
                raise ValueError(f"split.exchange: expected the same call number {number} on all ranks, found {texts}")
        elif call != (wanted := self.expected[number] if number < len(self.expected) else None):
            raise RuntimeError(
                f"split.exchange: expected the calls of the first batch, {_text(wanted)} as number {number}, found "
                f"{_text(call)}"
            )
        if call is not None:
            self.made.append(call)

    def layer_input(self, x: Tensor, layer: int) -> LayerInput:
        """What :func:`exchange` returns for this layer: the rows of its sources and seeds, and its edges."""
        groups = len(self.hops.rows) - layer
        self.returned[None] = min(self.returned.get(None, groups), groups - 1)
        name = f"layer {layer}"
        edges = self.hops.only.edges.prefix(groups)
        self.edges[name] = self.edges.get(name, 0) + edges.num_edges
        sources = first_rows(x, self.hops.rows[groups - 1]) if self.alone else self.mixed(x, groups, name)
        return LayerInput((sources, first_rows(x, self.hops.rows[groups - 2])), edges.index)


def _text(call: _Call | None) -> str:
    return "no call" if call is None else f"rows of {[*call.width]} {call.dtype} for layer {call.layer}"


_PASS: ContextVar[_ExplicitPass | None] = ContextVar("split.exchange", default=None)


def exchange(x: Tensor, batch: Any, layer: int) -> LayerInput:
    """The rows that a layer needs, those of other ranks' nodes included, and the edges into the nodes that it computes.

    Before layer l of a batch of L hops, a rank has rows of its own nodes of the first L - l + 1 groups (group 0 are the
    seeds, group h what hop h found), and computes those of the first L - l. Ranks send one another the rows of sources
    that others own; in the backward pass they send their gradients back, which are added to those of the own rows.
    Layer 0 reads ``batch.x_halo`` instead, if ``x`` is ``batch.x``. All ranks of a batch call it together, also
    without rows.

    Args:
        x: rows of the own nodes of at least the first L - l + 1 groups, in the batch's order: [n, ...]; on all ranks
            of one type and width.
        batch: what the model was called with.
        layer: l, from 0.

    Raises:
        ValueError: ``x`` has too few rows; there is no such layer; the batch is another one; or, on the first batch,
            ranks call it with other arguments.
        RuntimeError: it is called outside of :class:`ExchangingModel`; or not as on the first batch.
        NotImplementedError: it is called within torch.utils.checkpoint.
    """
    current = _PASS.get()
    if current is None:
        raise RuntimeError("split.exchange: expected a call within the model of ExchangingModel(model), found another")
    if batch is not current.batch:
        raise ValueError("batch: expected the one that the model was called with, found another")
    rows = current.hops.rows
    if not 0 <= layer < len(rows) - 1:
        raise ValueError(f"layer: expected one of 0 to {len(rows) - 2}, as the batch has hops, found {layer}")
    if len(x) < rows[-1 - layer]:
        raise ValueError(f"x: expected rows of the {rows[-1 - layer]} nodes that layer {layer} reads, found {len(x)}")
    refuse_recomputing("split.exchange")
    current.agree_on(_Call(layer, tuple(x.shape[1:]), x.dtype))
    return current.layer_input(x, layer)


class ExchangingModel(OnRanks):
    """A model that calls :func:`exchange` before each layer, on the ranks over which batches are cut.

    What :func:`parallelize` finds out by itself, such a model says: it needs no probe, and its tensors are not
    followed. Weights, gradients, errors, ``no_sync``, ``traffic``, ``work`` and ``close`` are as there. Dropout draws
    from the rank's generator. On the first batch in training, and on the first one in evaluation mode, ranks compare
    their calls of ``exchange``; all later batches must have the same.

    Args:
        model: called with a batch of ``NeighborLoader(split=plan)``; it returns rows of the rank's own nodes, its seeds
            first.
        transport, timeout: as of :func:`parallelize`.

    Raises:
        ValueError, NotImplementedError, RuntimeError: as :func:`parallelize`.
    """

    def __init__(self, model: nn.Module, transport: TransportName = "auto", timeout: float = 600.0) -> None:
        self._open(model, transport, timeout, lambda: Wrapper.__init__(self, model))
        self._calls: dict[tuple[int, bool], list[_Call]] = {}

    @outside_inference_mode
    def forward(self, batch: Any) -> Tensor:
        """The model's output for this rank's seeds: [batch_size, ...]; batch_size may be 0.

        Raises:
            ValueError, RuntimeError: as of :class:`Parallelized`; or the model calls :func:`exchange` in another way
                than on other ranks, or than on the first batch.
            NotImplementedError: the model has a BatchNorm that would normalize by the statistics of this rank's rows.
        """
        with self._connection.failing_alone():
            self._check_batch(batch)
            self._refuse_norms()
            mode = len(batch.num_sampled_edges), self.module.training
            header = own_header(self._description, batch, self.world, mode in self._calls)
        agreed = compare_headers(header, self._description, batch.shuffle_index, self._connection.all)
        transport = self._transport_between(agreed.grid, agreed.devices)
        self._connect_sums(agreed)
        with self._connection.failing_alone():
            expected = self._calls[mode] if agreed.knows_calls else None
            forward_pass = _ExplicitPass(OwnHops(batch, verify=False), transport, batch, agreed.knows_halo, expected)
            token = _PASS.set(forward_pass)
            try:
                out = self.module(batch)
            finally:
                _PASS.reset(token)
            forward_pass.agree_on(None)
            self._calls[mode] = forward_pass.made
            out = seed_rows(out, batch, forward_pass.returned)
            self._count(batch, forward_pass)
            self._gradients.watch(self.module, out, self._connection)
        return out

    def _refuse_norms(self) -> None:
        for name, module in self.module.named_modules():
            if isinstance(module, BatchNorm) and (module.training or module.running_mean is None):
                raise NotImplementedError(
                    f"{title_of(name, module)}: expected a norm of each row, such as LayerNorm, found one with "
                    f"statistics of a rank's rows; split.parallelize(model) has those of all ranks"
                )
