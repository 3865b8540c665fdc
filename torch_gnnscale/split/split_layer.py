"""Layers of a model on a rank's share of a batch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch_geometric.utils import add_remaining_self_loops, scatter

from .. import ops
from .._private import BatchNorm
from ..comm.row_transport import RowTransport
from ..nn.aggregate import Apart, Bipartite, sort_edges
from ..nn.forward_pass import ForwardPass
from ..nn.hops import EdgeType, HopEdges, Relation, first_rows
from ..nn.narrowed_layer import NarrowedLayer
from ..nn.wrapper import Call, Read, Shadow
from ..random import Purpose, batch_key
from .local_rows import OwnHops, OwnNodeRows, apart, mixed, of_all_ranks
from .rank_rows import Moves

_CHECKPOINT = "/".join(("torch", "utils", "checkpoint.py"))


def outside_inference_mode(forward: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    """The ``forward`` of a split model, without gradients where its caller is in inference mode, whose tensors have no
    versions that tell whether rows of the halo are still those that came."""

    @wraps(forward)
    def run(self: Any, batch: Any) -> Tensor:
        if not torch.is_inference_mode_enabled():
            return forward(self, batch)
        with torch.inference_mode(False), torch.no_grad():
            return forward(self, batch)

    return run


class SplitPass(ForwardPass):
    """What the layers of a model share while it computes one rank's share of a batch.

    Args:
        hops: of the batch.
        transport: to the other ranks of the split.
        batch: the batch.
        calls: the calls of layers, the same on all ranks, even if their numbers of rows differ; None: they are found
            out by numbers of rows.
        knows_halo: whether ``batch.x_halo`` has the halo's rows of ``batch.x``, on all ranks.
        weights: see :class:`torch_gnnscale.nn.forward_pass.ForwardPass`.
    """

    hops: OwnHops

    def __init__(
        self, hops: OwnHops, transport: RowTransport, batch: Any, calls: list[Call] | None, knows_halo: bool,
        weights: dict[EdgeType, Tensor] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(hops, weights, calls)
        self.transport, self.batch, self.knows_halo = transport, batch, knows_halo
        self.common_rows = self.own_rows = OwnNodeRows(hops, self._drop)
        self.own_rows.finds_out = calls is None
        self.alone = hops.index.parts == 1
        self.edges: dict[str, int] = {}
        """How many edges each layer computed, by its name."""
        self._dropouts = 0
        self._mixed: dict[int, tuple[Tensor, int, int, Tensor]] = {}
        self._readers: dict[int, tuple[Tensor, list[int]]] = {}

    def next_call(self, title: str) -> Call:
        """What the layer that is called now reads.

        Raises:
            RuntimeError: the model calls its layers in another order than on the first batch.
        """
        calls = self.calls
        if (call := calls.next(title)) is None:
            raise RuntimeError(
                f"split: expected the calls of layers that the first batch had, {calls.expected()} as number "
                f"{calls.number}, found {title}; layers that are called depending on the batch cannot be split"
            )
        return call

    def note_reader(self, value: Tensor) -> None:
        """Notes that the last call reads a tensor; called while it is found out how a model calls its layers."""
        readers = self._readers.setdefault(id(value), (value, []))[1]  # keeps the tensor, so that its id is not reused
        calls = self.calls.calls
        readers.append(len(calls) - 1)
        if len(readers) > 1:
            for number in readers:
                calls[number] = calls[number]._replace(shares=True)

    def apart(self, value: Tensor, groups: int, name: str) -> tuple[Tensor, Apart]:
        """As :meth:`mixed`, but own rows and halo are two tensors; for a layer that is the only reader of ``value``."""
        own, moves = first_rows(value, self.hops.rows[groups - 1]), self.hops.moves(groups - 1)
        if (came := self._known_halo(value, moves)) is None:
            return own, apart(self.transport, own, moves, name)

        def receive(meanwhile: Callable[[], None]) -> Tensor:
            meanwhile()
            return came

        return own, Apart(receive, None)

    def _known_halo(self, value: Tensor, moves: Moves) -> Tensor | None:
        """The halo's rows of ``value``, if the loader has exchanged them: if it is ``batch.x`` without a gradient."""
        if not self.knows_halo or value is not self.batch.x or value.requires_grad:
            return None
        came: Tensor = self.batch.x_halo
        return came if len(moves.halo) == len(came) else came.index_select(0, moves.halo)

    def mixed(self, value: Tensor, groups: int, name: str) -> Tensor:
        """The own rows of the first ``groups`` groups of a tensor, and after them the halo's rows, which come from
        other ranks once."""
        hops = self.hops
        known, version = self._mixed.get(id(value)), 0 if value.is_inference() else value._version
        if known is not None and known[0] is value and known[1] == version and known[2] >= groups:
            _, _, most, found = known
            if most == groups:
                return found
            return found[hops.places(groups, most)]
        own, moves = first_rows(value, hops.rows[groups - 1]), hops.moves(groups - 1)
        if (came := self._known_halo(value, moves)) is None:
            found = mixed(self.transport, own, moves, name)
        else:
            found = torch.cat([own, came], out=ops.empty_rows(len(own) + len(came), own))
        self._mixed[id(value)] = value, version, groups, found
        return found

    def normalized(
        self, relation: Relation, weight: Tensor | None, improved: bool, loops: bool, flow: str, dtype: torch.dtype
    ) -> tuple[HopEdges, Tensor]:
        """As PyG's ``gcn_norm``. A node's degree is computed by its owner; those of the halo come by one shuffle."""
        if self.alone:
            return super().normalized(relation, weight, improved, loops, flow, dtype)
        key = (relation.key, id(weight), improved, loops, dtype)
        if key not in self._normalized:
            hops, count = self.hops, self.hops.rows[-1]
            index, norm = relation.edges.edges.index, weight
            if loops:
                index, norm = add_remaining_self_loops(index, norm, 2.0 if improved else 1.0, count)
            if norm is None:
                norm = torch.ones(index.size(1), dtype=dtype, device=index.device)
            inverse = scatter(norm, index[1], 0, count, reduce="sum").pow(-0.5)
            inverse = inverse.masked_fill(inverse == float("inf"), 0.0)
            scale = mixed(self.transport, inverse.unsqueeze(1), hops.moves(len(hops.rows) - 1), "degrees").squeeze(1)
            norm = scale[index[0]] * norm * scale[index[1]]
            edges, order = sort_edges(index, count + hops.index.num_halo, count)
            self._normalized[key] = weight, hops.mixed_edges(edges, relation.ends_in(edges.forward.ptr)), norm[order]
        return self._normalized[key][1:]

    def _drop(self, x: Tensor, p: float, rows: int) -> Tensor:
        """Dropout by (the batch's key, the number of the call, the node, the column), alike on any number of ranks."""
        key = batch_key(int(self.batch.batch_key), 0, self._dropouts, Purpose.TRAIN)
        self._dropouts += 1
        flat = x if x.dim() == 2 else x.unsqueeze(1) if x.dim() == 1 else x.flatten(1)
        return ops.dropout_rows(flat, self.batch.n_id[:rows], key, p).view(x.shape)


class SplitLayer(NarrowedLayer):
    """A layer that computes, between :meth:`enter` and :meth:`leave`, on a rank's share of a batch."""

    forward_pass: SplitPass

    @property
    def name(self) -> str:
        """Of the layer in the model."""
        return self.title.rpartition(" (")[0]

    def computed(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's ``forward``: the own rows of its destinations."""
        refuse_recomputing(self.title)
        own_rows = self.forward_pass.own_rows
        own_rows.in_layer = True
        try:
            out = super().computed(*args, **kwargs)
        finally:
            own_rows.in_layer = False
        groups = self._call.groups
        own_rows.mark(out[0] if isinstance(out, tuple) else out, groups - 1)
        return out

    def groups(self, given: dict[str, Any]) -> int:
        """The groups of a call: for a batch, of which a rank may have no rows, as many as in the same call
        on the probe."""
        calls = self.forward_pass.calls
        if calls.finds_out:
            if isinstance(given.get("x"), tuple):
                raise ValueError(f"{self.title}: expected a tensor of rows, found a pair, which cannot be split")
            super().groups(given)
            self._call = calls.calls[-1]
        else:
            self._call = self.forward_pass.next_call(self.title)
        return self._call.groups

    def read(self, given: dict[str, Any], num_edges: int) -> Read:
        """What the layer reads: for a batch, what it was in the same call on the probe."""
        calls = self.forward_pass.calls
        if calls.finds_out:
            self._call = calls.calls[-1] = self._call._replace(read=super().read(given, num_edges))
        for name in (*self._call.read.nodes, *self._call.read.edges):
            if not isinstance(given.get(name), Tensor):
                raise RuntimeError(f"{self.title}: expected the arguments that the first batch had, found no {name}")
        return self._call.read

    def sources(self, value: Tensor, groups: int, edges: Bipartite) -> Tensor:
        """The own rows, and after them the halo's, which other ranks send. If the layer needs only sums of its sources,
        the own rows alone; the halo's are kept in ``_apart``."""
        forward_pass, name = self.forward_pass, self.name
        if forward_pass.calls.finds_out:
            forward_pass.note_reader(value)
        if self._sums_apart:
            own, self._apart = forward_pass.apart(value, groups, name)
            forward_pass.own_rows.mark(own, groups)
            return own
        found = super().sources(value, groups, edges) if forward_pass.alone else forward_pass.mixed(value, groups, name)
        if forward_pass.calls.finds_out and found is value:
            found = value.view_as(value)  # so that the model's own tensor is not marked
        forward_pass.own_rows.mark(found, groups, mixed=True)
        return found

    def _cut(self, given: dict[str, Any], read: Read, groups: int, edges: Bipartite) -> None:
        forward_pass, x = self.forward_pass, given.get("x")
        forward_pass.edges[self.name] = forward_pass.edges.get(self.name, 0) + edges.num_edges
        self._sums_apart = (
            read.nodes == ("x",)
            and not (forward_pass.alone or forward_pass.calls.finds_out or self._call.shares)
            and self._reads_sum_alone(x, None if self.weight is None else given.get(self.weight))
        )
        super()._cut(given, read, groups, edges)
        for name in read.nodes:
            if isinstance(given[name], tuple):
                self.forward_pass.own_rows.mark(given[name][1], groups - 1)

    def _aggregate_first(self, given: dict[str, Any], edges: Bipartite) -> None:
        super()._aggregate_first(given, edges)
        if isinstance(given.get("x"), tuple):
            self.forward_pass.own_rows.mark(given["x"][1], self._call.groups - 1)

    def aggregated(self, edge_index: Any, size: Any = None, **kwargs: Any) -> Tensor:
        """``propagate``; what it computes with are rows of edges, so rows of nodes are not followed meanwhile."""
        own_rows, edges = self.forward_pass.own_rows, self._edges
        with own_rows.noting():
            out = super().aggregated(edge_index, size, **kwargs)
        if edges is not None:
            pairs = any(isinstance(value, tuple) for value in kwargs.values())
            is_own = pairs or out.size(0) == edges.num_dst
            own_rows.mark(out, self._call.groups - is_own, mixed=not is_own)
        return out


def refuse_recomputing(title: str) -> None:
    """Raises NotImplementedError within ``torch.utils.checkpoint``, which runs the layer again in the backward pass."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.replace("\\", "/").endswith(_CHECKPOINT):
            raise NotImplementedError(
                f"{title}: expected each layer to run once, found it within torch.utils.checkpoint, which "
                f"would shuffle its rows again on the way back"
            )
        frame = frame.f_back  # type: ignore[assignment]


# Norms over the nodes of all ranks ####################################################################################


class SplitNorms:
    """The BatchNorm modules of a model, which between :meth:`enter` and :meth:`leave` have statistics of all ranks.

    In training, the mean and variance of a column of x are those of the rows of all ranks, where each row belongs to
    one rank; so are the running statistics. If rank p has n_p rows of mean m_p whose squared deviations add up to s_p,
    then N = sum n_p, m = sum n_p m_p / N, v = sum (s_p + n_p (m_p - m)^2) / N (Chan, Golub & LeVeque, 1979).

    Args:
        model: the model; None: no module is changed.
    """

    def __init__(self, model: nn.Module | None) -> None:
        named = [] if model is None else list(model.named_modules())
        for name, module in named:
            if isinstance(module, pyg_nn.BatchNorm) and module.allow_single_element:
                raise NotImplementedError(
                    f"{name} (BatchNorm): expected allow_single_element=False, found True: a rank with one row would "
                    f"leave out an exchange"
                )
        self.modules = [(name, module, Shadow(module)) for name, module in named if isinstance(module, BatchNorm)]

    def enter(self, transport: RowTransport, own_rows: OwnNodeRows) -> None:
        """From now on the modules normalize by the rows of all ranks."""
        for name, module, shadow in self.modules:
            shadow.set("forward", partial(_normalize, name, module, module.forward, transport, own_rows))

    def leave(self) -> None:
        """The modules are again what they were."""
        for _, _, shadow in self.modules:
            shadow.restore()


def _normalize(
    name: str, module: BatchNorm, forward: object, transport: RowTransport, own_rows: OwnNodeRows, x: Tensor
) -> Tensor:
    by_batch = module.training or module.running_mean is None
    rows = own_rows.rows_of(x)
    if rows is not None and rows.mixed and (by_batch or own_rows.finds_out):
        raise NotImplementedError(
            f"{name} ({type(module).__name__}): expected rows that are one rank's own, found it within a layer on rows "
            f"of sources, of which several ranks have copies"
        )
    if not by_batch:
        return forward(x)  # type: ignore[operator]
    if x.dim() != 2:
        raise NotImplementedError(
            f"{name} ({type(module).__name__}): expected a matrix of rows, found {tuple(x.shape)}"
        )
    with own_rows.noting_one("batch_norm"):
        return _normalized(name, module, transport, x)


def _normalized(name: str, module: BatchNorm, transport: RowTransport, x: Tensor) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    wide_x, count = x.to(wide), len(x)
    mean = wide_x.sum(0) / max(count, 1)
    spread = (wide_x - mean).square().sum(0)
    of_ranks = of_all_ranks(torch.cat([mean.new_full((1,), count), mean, spread]), transport, f"{name} statistics")
    counts, means, spreads = of_ranks.split([1, x.size(1), x.size(1)], 1)
    counts = counts.detach()
    total = counts.sum()
    # With two rows here there are two: only a rank with fewer waits for a GPU to say how many.
    if module.training and count < 2 and (found := int(total)) < 2:
        raise ValueError(f"Expected more than 1 value per channel when training, got {found} rows over all ranks")
    mean = (counts * means).sum(0) / total
    variance = (spreads + counts * (means - mean).square()).sum(0) / total
    if module.training and module.track_running_stats:
        _track(module, mean.detach(), variance.detach(), total)
    out = (wide_x - mean) * (variance + module.eps).rsqrt()
    if module.affine:
        out = out * module.weight.to(wide) + module.bias.to(wide)
    return out.to(x.dtype)


@torch.no_grad()
def _track(module: BatchNorm, mean: Tensor, variance: Tensor, total: Tensor) -> None:
    """Updates the running statistics as torch does: the variance is the unbiased one. No host waits for ``total``."""
    momentum: float | Tensor = module.momentum or 0.0
    if module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
        if module.momentum is None:
            momentum = module.num_batches_tracked.double().reciprocal()
    for running, value in ((module.running_mean, mean), (module.running_var, variance * (total / (total - 1)))):
        if running is not None:
            wide = torch.promote_types(running.dtype, torch.float32)
            weight = momentum.to(wide) if isinstance(momentum, Tensor) else momentum
            running.copy_(running.to(wide).lerp(value.to(running.dtype).to(wide), weight))
