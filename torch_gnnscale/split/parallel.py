"""Ordinary PyG models whose batches are cut over ranks: each row of a layer is computed by one of them (GSplit)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch_geometric.data import HeteroData

from .._private import BatchNorm, active_ddp_module, is_compiled
from .._user import warn
from ..comm.exchange import Exchange, Moved, Traffic
from ..comm.memory_transport import MemoryTransport
from ..comm.mesh import Grid, TransportName, transport_named, transport_of
from ..comm.peer_memory import HostMemories, memories_on
from ..comm.rendezvous import rank_and_world
from ..comm.row_transport import ENDED, NcclTransport, RowTransport
from ..nn.forward_pass import refuse_compiled
from ..nn.layered import Layered, default_call
from ..nn.trial import agree, first_difference, outputs
from ..nn.wrapper import Call, Wrapper, modules_of
from ..ops.ranks import MAX_TABLES
from .agreement import SEEDS, Agreed, Description, compare_headers, cut_probe, fields_of, own_header, probe_batch
from .connection import Connection, GradientSum, nccl_exchange
from .local_rows import OwnHops, OwnNodeRows, Work
from .rank_rows import ShuffleIndex
from .split_layer import SplitLayer, SplitNorms, SplitPass, outside_inference_mode, refuse_recomputing


class OnRanks(Wrapper):
    """A model whose batches are cut over ranks: what connects the ranks, and sums their gradients."""

    def _open(self, module: nn.Module, transport: TransportName, timeout: float, wrap: Callable[[], None]) -> None:
        """Connects the ranks. ``wrap`` initializes this object with the model; an error of it is told to all ranks."""
        rank, world = rank_and_world()
        connection = Connection(rank, world, timeout)
        with connection.failing_alone():
            _refuse(module)
            transport = transport_named(transport)
            if transport == "nccl" and world > 1:
                transport_of(transport)
            wrap()
        self.transport, self.timeout, self.rank, self.world = transport, timeout, rank, world
        self._connect(connection)
        self._done = Work()
        self._share_weights()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which backward passes add up this rank's gradients alone; the next backward pass outside of it
        sums them over the ranks. Until then, ``grad`` is the gradient of this rank alone, without what was summed
        before. It may be set to zero, to None or to another tensor, which drops what was summed before, too. What is
        done to it in place otherwise, such as scaling or clipping it, is done to this rank's gradient alone.
        """
        with self._gradients.held():
            yield

    @property
    def traffic(self) -> dict[str, Traffic]:
        """What was exchanged, by purpose: ``forward NAME`` and ``backward NAME`` are shuffles of the rows that the
        layer NAME reads, or, with ``degrees`` as NAME, of the degrees that GCN layers read; ``header``; ``gradients``.
        It counts the small batch, too, on which the first call runs the model.
        """
        found: dict[str, Traffic] = {}
        connection = self._connection
        transports = (*connection.transports.values(), *connection.of_all.values())
        for exchange in (*(transport.exchange for transport in transports), connection.all):
            for purpose, traffic in exchange.traffic.items():
                found[purpose] = found.get(purpose, Traffic()) + traffic
        return found

    @property
    def work(self) -> Work:
        """What this rank has loaded and computed in all calls, and exchanged, the latter counted as ``traffic`` is."""
        edges, moved = dict(self._done.edges), dict[str, Moved]()
        for transport in self._connection.transports.values():
            for purpose, entry in transport.moved.items():
                known = moved.get(purpose, Moved())
                moved[purpose] = Moved(known.sent + entry.sent, known.received + entry.received)
        return replace(self._done, edges=edges, shuffled=moved)

    def _count(self, batch: Any, split_pass: SplitPass) -> None:
        done = self._done
        done.batches += 1
        done.rows += split_pass.hops.rows[-1]
        done.halo += len(batch.x_halo) if "x_halo" in batch else 0
        for name, count in split_pass.edges.items():
            done.edges[name] = done.edges.get(name, 0) + count

    def close(self) -> None:
        """Ends the groups of this model, which cannot be called any more. A model that is dropped ends them, too."""
        self._gradients.close()
        self._connection.end()

    def _connect(self, connection: Connection) -> None:
        self._connection, sums = connection, connection.sums
        memory: MemoryTransport | str = self.transport
        if self.world > 1 and self.transport in ("auto", "memory"):
            memory = MemoryTransport.connect(sums, HostMemories())
        in_host = memory if isinstance(memory, MemoryTransport) else RowTransport(sums)
        connection.of_all[()] = self._of_all = in_host
        self._gradients = GradientSum(in_host)
        self._description = Description(self.module)

    @torch.no_grad()
    def _share_weights(self) -> None:
        """Gives all ranks the parameters and buffers of rank 0, except for lazy ones, which have no size yet."""
        if found := self._description.compare(self._connection.all):
            raise ValueError(f"model: expected the same on all ranks, found {found}")
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            if not is_lazy(tensor):
                there = tensor.detach().cpu().contiguous()
                self._connection.all.broadcast(there.view(-1).view(torch.uint8))
                tensor.copy_(there)

    def _check_batch(self, batch: Any) -> None:
        refuse_compiled("split")
        refuse_recomputing("split")
        _refuse_compiled(self.module)
        if self._connection.ended:
            raise RuntimeError(f"split: {ENDED}")
        if active_ddp_module() is not None:
            raise ValueError(
                "split: expected parallelize(model) by itself, found it within DistributedDataParallel, which would "
                "sum the gradients of all ranks a second time"
            )
        if isinstance(batch, HeteroData):
            raise NotImplementedError("split: expected a batch of a homogeneous graph, found a HeteroData")
        for name in ("shuffle_index", "batch_key", "global_batch_size"):
            if getattr(batch, name, None) is None:
                raise ValueError(f"batch: expected one of NeighborLoader(split=plan) with {name}, found none")

    def _transport_between(self, grid: Grid, devices: tuple[int, ...]) -> RowTransport:
        """The transport to the ranks over which the batch is cut: this rank's column of ``grid``.

        Args:
            grid: of the ranks.
            devices: where each rank has its rows: see :class:`torch_gnnscale.split.agreement.Agreed`.
        """
        if (grid, devices) not in self._connection.transports:
            if grid.parts > MAX_TABLES:
                raise ValueError(f"batch: expected at most {MAX_TABLES} parts, found {grid.parts}")
            columns = [grid.column(copy) for copy in range(grid.copies)]
            exchange = self._connection.exchange(columns)
            with self._connection.failing_alone():
                self._connection.transports[grid, devices] = self._connected(exchange, columns, devices)
        return self._connection.transports[grid, devices]

    def _connect_sums(self, agreed: Agreed) -> None:
        """Decides how gradients of this batch and statistics of its norms travel between all ranks: from GPU to GPU if
        each trains on one, else in host memory."""
        connection, from_gpus = self._connection, agreed.on_gpus and self.transport != "gloo"
        devices = agreed.devices if from_gpus else ()
        if devices not in connection.of_all:
            ranks = [[*range(self.world)]]
            exchange = connection.exchange(ranks)
            with connection.failing_alone():
                connection.of_all[devices] = self._connected(exchange, ranks, devices)
        self._of_all = connection.of_all[devices]
        self._gradients.transports = {"cpu": connection.of_all[()], **({"cuda": self._of_all} if devices else {})}

    def _connected(self, exchange: Exchange, columns: list[list[int]], devices: tuple[int, ...]) -> RowTransport:
        """The transport over ``exchange``. All ranks call it together, and all raise ValueError if what the user asked
        for cannot be had."""
        wanted, own = self.transport, devices[self.rank]
        if exchange.size == 1 or wanted == "gloo":
            return RowTransport(exchange)
        device = torch.device("cpu") if own < 0 else torch.device("cuda", own)
        memory: MemoryTransport | str = wanted
        if wanted in ("auto", "memory"):
            memory = MemoryTransport.connect(exchange, memories_on(device))
        by_memory = isinstance(memory, MemoryTransport)
        if wanted == "memory":
            problems = self._connection.all.objects(None if by_memory else memory)
            if found := [text for text in problems if text is not None]:
                raise ValueError(
                    f"transport='memory': expected ranks that can read each other's memory, found {found[0]}"
                )
        rows = nccl_exchange(self._connection, columns, device, not by_memory) if max(devices) >= 0 else None
        if isinstance(memory, MemoryTransport):
            return memory
        if rows is None and wanted == "nccl":
            raise ValueError(
                f"transport='nccl': expected torch.distributed with NCCL and a GPU of its own for each rank's batches, "
                f"found backends {dist.get_backend_config()} and batches on devices {list(devices)} (-1: CPU)"
            )
        return RowTransport(exchange) if rows is None else NcclTransport(exchange, rows)

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            "_gradients": None,
            "_connection": None,
            "_description": None,
            "_of_all": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._connect(Connection(self.rank, self.world, self.timeout))


class Parallelized(OnRanks, Layered):
    """What :func:`parallelize` returns; ``module`` is the model itself, unchanged, or what ``nn.weigh`` returned.

    Parameters, buffers and submodules have the names that they have in the model, and so has the ``state_dict``.
    Attributes that this object lacks are the model's. All ranks call it together, forward and backward, one thread at a
    time.
    """

    layer_type = SplitLayer
    _norm_types = (BatchNorm,)

    def __init__(
        self,
        module: nn.Module,
        call: Callable[[Any, Any], Any] = default_call,
        transport: TransportName = "auto",
        timeout: float = 600.0,
    ) -> None:
        self._open(module, transport, timeout, lambda: Layered.__init__(self, module, call))
        self._of_nodes: set[str] = set()
        """The fields of batches that have a row for each node."""

    @outside_inference_mode
    def forward(self, batch: Any) -> Tensor:
        """The model's output for this rank's seeds: [batch_size, ...]; batch_size may be 0.

        Raises:
            ValueError: the batch is not one of a loader with ``split=``, or is of another plan, key or mode than on
                other ranks; or the model cannot be split, which all ranks raise, naming the module.
            NotImplementedError: the model does what split models cannot: the message names it.
            RuntimeError: another rank failed, is gone or does not come; the message names it. A backward pass raises
                this, too. After it, and after an error of this rank alone, the model cannot be called any more.
        """
        with self._connection.failing_alone():
            self._check_batch(batch)
            self._layers()  # the model may have other layers than in the last call
            mode = len(batch.num_sampled_edges), self._model.training
            header = own_header(self._description, batch, self.world, mode in self._calls)
        agreed = compare_headers(header, self._description, batch.shuffle_index, self._connection.all)
        transport = self._transport_between(agreed.grid, agreed.devices)
        self._connect_sums(agreed)
        with self._connection.failing_alone():
            refused = None if agreed.knows_calls else self._probe(batch, transport)
        if refused is not None:
            raise ValueError(refused)
        with self._connection.failing_alone():
            own_hops = OwnHops(batch, verify=False)
            weights = self._weights(batch)
            split_pass = SplitPass(own_hops, transport, batch, self._calls[mode], agreed.knows_halo, weights)
            functions = split_pass.own_rows.compared = self._functions[self._model.training]
            out = self._run(batch, split_pass)
            if not functions.knows(split_pass.own_rows.called):
                self._try_again(split_pass.own_rows)
            self._count(batch, split_pass)
            self._gradients.watch(self.module, out, self._connection)
        return out

    def _run(self, batch: Any, split_pass: SplitPass) -> Tensor:
        norms = SplitNorms(self.module if self.world > 1 or split_pass.own_rows.finds_out else None)
        norms.enter(self._of_all, split_pass.own_rows)
        try:
            for name in self._of_nodes:
                split_pass.own_rows.mark(getattr(batch, name, None), len(split_pass.hops.rows))
            return self._compute(batch, split_pass)
        finally:
            norms.leave()

    def _try_again(self, own_rows: OwnNodeRows) -> None:
        """Called after a batch on which the model called other functions than on the probe, or in another order. As
        this rank then does not know its calls, all ranks run the probe before the next batch."""
        training = self._model.training
        self._calls = {mode: calls for mode, calls in self._calls.items() if mode[1] != training}
        self._functions[training].add(own_rows.called)
        if own_rows.begins:
            warn(
                f"{own_rows.begins}: expected a function that the model called when it was compared with the model on "
                f"whole batches, found that it begins now; before the next batch, all ranks compare it again"
            )

    def _probe(self, batch: Any, transport: RowTransport) -> str | None:
        """Finds out how the model calls its layers in its mode, on a batch that all ranks have in common, without
        dropout and with the running statistics of BatchNorm.

        Its outputs for the whole batch are compared with those for the batch cut into a single part, on this rank
        alone, and then cut over the ranks.

        Returns:
            None; or, on all ranks, the text by which the model is refused, because its outputs differ.
        """
        said = transport.exchange.objects(fields_of(batch))
        fields = max(said, key=lambda entry: entry.num_nodes)
        self._of_nodes = {"n_id", *(name for name, field in fields.tensors.items() if not field.of_edges)}
        index: ShuffleIndex = batch.shuffle_index
        whole, had_lazy = probe_batch(fields, batch.edge_index.device), self._has_lazy()
        has_halo, alone = fields.has_halo, (1, 0, RowTransport(Exchange(None, 1, 0)))
        with self._trial(batch):
            if had_lazy:
                self._run_probe(whole, *alone, has_halo, None)
                self._share_weights()
            calls: list[Call] = []
            for parts, part, to in (alone, (index.parts, index.part, transport)):
                found, local, of_share, its_calls = self._run_probe(whole, parts, part, to, has_halo, calls or None)
                if not calls:  # after the layers, which refuse by their names what PyG, on the whole batch, would not
                    with outputs(self.module) as of_whole:
                        expected = self._whole(whole)[:SEEDS]
                calls = its_calls
                text = None
                if not agree(expected[local[: len(found)]], found):
                    rows = {n: out[local] for n, out in of_whole.items() if len(out) == whole.num_nodes}
                    text = first_difference(self.module, rows, of_share)
                text = next((entry for entry in to.exchange.objects(text) if entry is not None), None)
                if text is not None:
                    return (
                        f"{text}: expected the seeds' rows to be those of the whole batch, found others; it reads more "
                        f"than a node and its sampled neighbors (the degrees of sources, several hops, statistics of "
                        f"all rows), so the model cannot be split"
                    )
        self._calls[fields.hops, self._model.training] = calls
        return None

    def _run_probe(
        self, whole: Any, parts: int, part: int, to: RowTransport, has_halo: bool, calls: list[Call] | None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], list[Call]]:
        """Runs the model on one part of the probe; ``calls`` is as of :class:`SplitPass`.

        Returns:
            The output for the part's seeds; the positions of its own nodes in ``whole``; what each module returned; the
            calls of layers.
        """
        share, local = cut_probe(whole, parts, part, has_halo)
        split_pass = SplitPass(OwnHops(share, True), to, share, calls, has_halo, self._weights(share))
        split_pass.own_rows.keeps_all = True
        with outputs(self.module) as of_share, self._naming_modules(whole):
            found = self._run(share, split_pass)
        self._functions[self._model.training].add(split_pass.own_rows.called)
        return found, local, of_share, split_pass.calls.calls


def parallelize(
    model: nn.Module,
    call: Callable[[Any, Any], Any] = default_call,
    transport: TransportName = "auto",
    timeout: float = 600.0,
) -> Parallelized:
    """Makes a PyG model compute mini-batches that are cut over ranks: of each layer, a rank computes its own nodes.

    Before a layer, ranks send one another the rows of nodes from which edges lead to other ranks' nodes; in the
    backward pass, they send the gradients of these rows back (GSplit, algorithm 2). Outputs are those of
    :func:`torch_gnnscale.nn.narrow` for this rank's seeds. The loss of a batch is the sum of the ranks' losses, each of
    which is of the rank's own seeds. After a backward pass, the parameters have the gradient of this sum on all ranks,
    without DistributedDataParallel. All ranks call this function, the model and its backward pass together, one after
    another and in the same order, also if a rank's batch has no seeds; whether they do so must not depend on a rank's
    batch. The weights are those of rank 0. Whoever changes weights or buffers later, other than by training, does so on
    all ranks: these are not compared. Modules, modes and hyperparameters, such as ``p`` of dropout, are compared before
    each batch.

    BatchNorm in training has statistics of the rows of all ranks. Dropout of rows of nodes draws masks by (the batch's
    key, the number of the call, node, column), so that they do not depend on the number of ranks; dropout of rows of
    edges, as in attention, draws from the rank's generator.

    On the first batch in training, and on the first one in evaluation mode, the model is first run on a batch of 32
    seeds that is equal on all ranks, both whole and cut, without dropout and with BatchNorm's running statistics. If
    the results differ, all ranks refuse the model, and name the first module that differs.

    Args:
        model: any module with MessagePassing layers that get the batch's ``edge_index``; or ``nn.weigh`` of it.
        call: how the model is called with a batch; the default of a weighed model is what ``nn.weigh`` was given.
        transport: how rows travel between the ranks that share a batch. ``memory``: they read rows in each other's
            memory, that of the host or of GPUs, of which several ranks may share one. ``nccl``: from GPU to GPU;
            torch.distributed was initialized with NCCL, and each rank has a GPU of its own. ``gloo``: over Gloo, from
            GPUs through host memory. ``auto``: memory where these ranks can read each other's, which they try at the
            first batch, else NCCL where it can be had, else Gloo. All ranks have the same. The earlier names ``peers``
            (now ``auto``) and ``all_to_all`` (NCCL where it can be had, else Gloo) warn with a FutureWarning.
        timeout: seconds after which a rank that does not answer is an error, in this call and in every forward and
            backward pass.

    Returns:
        A module to be called with a batch of ``NeighborLoader(split=plan)``; it shares the model's parameters.

    Raises:
        ValueError: the model has no MessagePassing layers, or is wrapped by DistributedDataParallel or this package; or
            the ranks have other models. At the first batch, on all ranks: the transport cannot be had, and why.
        NotImplementedError: it, or a module of it, is compiled.
        RuntimeError: another rank refuses its model, is gone or does not come; the message names it.
    """
    return Parallelized(model, call, transport, timeout)


def _refuse(model: nn.Module) -> None:
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise ValueError("model: expected one without DistributedDataParallel, found one; parallelize sums gradients")
    _refuse_compiled(model)


def _refuse_compiled(model: nn.Module) -> None:
    if any(map(is_compiled, modules_of(model))):
        name = next(name for name, module in model.named_modules() if is_compiled(module))
        raise NotImplementedError(f"{name or 'model'}: expected a module that is not compiled, found a compiled one")
