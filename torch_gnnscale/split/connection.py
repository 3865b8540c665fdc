"""The process groups of a split model: which ranks compute together, which failed and why, and how the groups end."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary
from typing_extensions import override

from .. import machine
from .._private import current_graph_task_id, queue_callback
from ..comm.exchange import Broken, Exchange, keep_for_ever
from ..comm.mesh import Grid
from ..comm.rendezvous import Rendezvous, end_group
from ..comm.row_transport import ENDED, RowTransport

_ENDED: Any = object()
"""Stands for a group that has ended. None would not do: it stands for the missing group of a single rank."""


class Connection:
    """What connects one split model to those of the other ranks; without a process group, nothing.

    One thread at a time issues its collectives: the one that calls the model, or autograd's thread while the
    former waits for it.

    It ends with the last reference to this object, and with the program at the latest: groups, memory and threads are
    then freed, and ranks that wait for this one fail.

    Args:
        rank, world: of torch.distributed.
        timeout: seconds after which a rank that does not answer is an error.
    """

    def __init__(self, rank: int, world: int, timeout: float) -> None:
        self.rank, self.world = rank, world
        self._held = _Held(Rendezvous(rank, world, timeout))
        self._end = weakref.finalize(self, self._held.end)
        self.all = self.exchange([list(range(world))])
        """Between all ranks: headers, and what they say when the model is made."""
        self.sums = self.exchange([list(range(world))])
        """Between all ranks, in a group of its own: what ``of_all[()]`` carries."""
        self.transports: dict[tuple[Grid, tuple[int, ...]], RowTransport] = self._held.transports
        """Keyed by (grid, devices). Each column of the grid makes one batch; ``devices[r]``: where rank r has its
        batch."""
        self.of_all: dict[tuple[int, ...], RowTransport] = self._held.of_all
        """What carries gradients of parameters and statistics of norms between all ranks. The key is the number of each
        rank's GPU, or () for values in host memory."""

    def exchange(self, of_ranks: list[list[int]], backend: str = "gloo") -> _Connected:
        """Makes a group for each list of ranks, of which this rank is in one; all ranks call it alike.

        A collective of it that fails is a RuntimeError that names the rank which failed, is gone, or did not come.
        """
        own = next(number for number, ranks in enumerate(of_ranks) if self.rank in ranks)
        ranks, group = of_ranks[own], self._held.rendezvous.groups(of_ranks, backend)[own]
        made = _Connected(group, len(ranks), ranks.index(self.rank), self._held, backend)
        if backend == "gloo":
            made.board = self._held.rendezvous.board(of_ranks)
        self._held.exchanges.append(made)
        return made

    @property
    def ended(self) -> bool:
        """Whether the model cannot be called any more."""
        return self._held.ended

    @contextmanager
    def failing_alone(self) -> Iterator[None]:
        """Within, an error is this rank's alone: the others are told, and the model ends."""
        try:
            yield
        except BaseException as error:
            self.fail(f"{type(error).__name__}: {error}")
            raise

    def fail(self, why: str) -> None:
        """Ends the model on all ranks: the others, which may wait for this one, raise an error that says why."""
        if self.world > 1:
            self._held.end(why, failed=True)

    def end(self) -> None:
        """Ends the model on this rank."""
        self._end()


@dataclass
class _Held:
    """What ends with the connection."""

    rendezvous: Rendezvous
    exchanges: list[_Connected] = field(default_factory=list)
    transports: dict[tuple[Grid, tuple[int, ...]], RowTransport] = field(default_factory=dict)
    of_all: dict[tuple[int, ...], RowTransport] = field(default_factory=dict)
    ended: bool = False

    def end(self, why: str = "its model was closed or dropped", failed: bool = False) -> None:
        """Frees everything, the first time it is called; any thread may call it. The other ranks are told ``why``,
        unless it is empty. ``failed``: whether a rank failed; others may then still wait in a collective."""
        if self.ended:
            return
        self.ended = True
        if why:
            self.rendezvous.fail(why)
        for transport in (*self.transports.values(), *self.of_all.values()):
            transport.close()
        for exchange in self.exchanges:  # the others notice it when the last reference to a group is gone
            group, exchange.group, exchange.board = exchange.group, None, None
            if group is None:
                continue
            exchange.group = _ENDED
            if exchange.waits or (failed and exchange.backend == "nccl"):  # a collective may not end
                keep_for_ever(group)  # its end would wait, too
            else:
                end_group(group)
            del group
        self.rendezvous.close()


class _Connected(Exchange):
    """An exchange whose errors name the rank that failed."""

    def __init__(self, group: dist.ProcessGroup | None, size: int, rank: int, held: _Held, backend: str) -> None:
        super().__init__(group, size, rank)
        self._held, self.backend = weakref.ref(held), backend
        self._purpose = ""  # of the collective that this rank is in

    def broadcast(self, tensor: Tensor) -> None:
        """Overwrites ``tensor`` on all ranks with that of the first one."""
        if self.group is not None:
            with self._named("parameters"):
                try:
                    dist.broadcast(tensor, dist.get_global_rank(self.group, 0), self.group)
                except RuntimeError as error:
                    raise Broken(str(error)) from error

    @override
    def numbers(self, sent: Tensor, purpose: str, *args: Any, **options: Any) -> Tensor:
        with self._named(purpose):
            return super().numbers(sent, purpose, *args, **options)

    @override
    def bytes(
        self, sent: Tensor, lengths: Sequence[int], sizes: Sequence[int], purpose: str, *args: Any, **options: Any
    ) -> Tensor:
        with self._named(purpose):
            return super().bytes(sent, lengths, sizes, purpose, *args, **options)

    def _all_to_all(self, *args: Any, **options: Any) -> None:
        with self._named(self._purpose):
            super()._all_to_all(*args, **options)

    @contextmanager
    def _named(self, purpose: str) -> Iterator[None]:
        held = self._held()
        if held is None or held.ended:
            raise RuntimeError(f"split: {ENDED}")
        before, self._purpose = self._purpose, purpose
        try:
            yield
        except Broken as error:
            why = held.rendezvous.lost(error, waited_for=purpose)
            held.end("", failed=True)
            raise RuntimeError(f"split: {why}") from error
        finally:
            self._purpose = before


def nccl_exchange(
    connection: Connection, columns: list[list[int]], device: torch.device, wanted: bool
) -> Exchange | None:
    """An exchange over NCCL between the ranks of this one's column; None without. All ranks call it alike.

    There is one if torch.distributed was initialized with NCCL, any rank wants one, and each rank has a GPU of its own:
    NCCL refuses two ranks on one.

    Args:
        connection: between all ranks.
        columns: of ranks.
        device: of this rank's rows.
        wanted: whether this rank's column needs one.
    """
    has_nccl = device.type == "cuda" and "cuda:nccl" in dist.get_backend_config().split(",")
    gpu = machine.identity(), str(torch.cuda.get_device_properties(device).uuid) if has_nccl else ""
    wants, have, gpus = zip(*connection.all.objects((wanted, has_nccl, gpu)), strict=True)
    if any(wants) and all(have) and len(set(gpus)) == len(gpus):
        return connection.exchange(columns, "nccl")
    return None


# Gradients ############################################################################################################


class GradientSum:
    """Leaves in each parameter's ``grad`` what one process would: what was there plus the sum over the ranks.

    The gradients of a backward pass are kept apart until it ends, then summed rank by rank, ((g_0 + g_1) + g_2) + ...,
    so that they are equal bit for bit on all ranks. A parameter without a gradient on all ranks keeps none.

    Args:
        transport: between the ranks that train the model, of values in host memory.
    """

    def __init__(self, transport: RowTransport) -> None:
        self.size = transport.exchange.size
        self.transports = {"cpu": transport}
        """By type of device, between these ranks. Gradients on a device that has none travel in host memory."""
        self.holds = False
        """Whether backward passes leave the sum over ranks to a later backward pass."""
        self._hooked: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._before: WeakIdKeyDictionary = WeakIdKeyDictionary()
        """For each parameter whose ``grad`` is the gradient of this rank alone: its ``grad`` before."""
        self._left: WeakIdKeyDictionary = WeakIdKeyDictionary()
        """For each of these parameters: the ``grad`` that the last pass without a sum left, and its version."""
        self._awaited: list[int] = []
        """The numbers of the parameters that had a gradient on any rank when they were summed last."""
        self._pass = -1

    @contextmanager
    def held(self) -> Iterator[None]:
        """A context in which backward passes add up each rank's own gradients; the next one outside of it sums them
        over the ranks."""
        before, self.holds = self.holds, True
        try:
            yield
        finally:
            self.holds = before

    def watch(self, model: nn.Module, out: Tensor, connection: Connection) -> None:
        """Makes a backward pass through ``out`` sum the gradients of the model's parameters; ``out`` keeps the
        connection."""
        if self.size == 1 or not torch.is_grad_enabled() or not out.requires_grad:
            return
        for parameter in model.parameters():
            if parameter.requires_grad and parameter not in self._hooked:
                self._hooked[parameter] = parameter.register_hook(_Aside(self, parameter))
        out.register_hook(lambda _: self._begin(model, connection))  # runs first: all gradients follow from that of out

    def close(self) -> None:
        """Leaves the parameters' gradients alone from now on."""
        for handle in self._hooked.values():
            handle.remove()
        self._hooked.clear()

    def _begin(self, model: nn.Module, connection: Connection) -> None:
        """Called when a backward pass begins: once for each output of the model that is in the pass."""
        current = current_graph_task_id()
        if current != self._pass:
            self._pass = current
            self._forget_cleared()
            queue_callback(_Pass(self, model, connection))

    def _forget_cleared(self) -> None:
        """Drops the entries of ``_before`` of parameters whose ``grad`` the user zeroed or replaced since the last
        pass."""
        for parameter, (left, version) in self._left.items():
            grad = parameter.grad
            if grad is not None and (left() is not grad or (grad._version != version and not grad.any())):
                self._before.pop(parameter, None)
        self._left.clear()

    def set_aside(self, parameter: nn.Parameter) -> None:
        """Called before a gradient is added to ``parameter.grad``: moves the old ``grad`` to ``_before``, so that the
        new one is the gradient of this rank alone."""
        if current_graph_task_id() != self._pass:
            return  # the gradient of a loss that does not come from this model's output
        if parameter.grad is None or parameter not in self._before:
            self._before[parameter], parameter.grad = parameter.grad, None

    @torch.no_grad()
    def finish(self, model: nn.Module) -> None:
        """Called when a backward pass has ended: sums the gradients over the ranks, unless ``holds``."""
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in parameters:
            if parameter.grad is None and parameter in self._before:  # it was asked for by torch.autograd.grad
                parameter.grad = self._before.pop(parameter)
        if self.holds:
            for parameter in parameters:
                if parameter.grad is not None and parameter in self._before:
                    self._left[parameter] = TensorWeakRef(parameter.grad), parameter.grad._version
            return
        own = [parameter.grad if parameter in self._before else None for parameter in parameters]
        for parameter, grad in zip(parameters, own, strict=True):
            if grad is not None and grad.layout != torch.strided:
                name = next(name for name, entry in model.named_parameters() if entry is parameter)
                raise NotImplementedError(
                    f"{name}: expected dense gradients, found sparse ones; make Embedding(sparse=False)"
                )
        for parameter, total in zip(parameters, self._totals(parameters, own), strict=True):
            before = self._before.pop(parameter, parameter.grad)
            if total is not None:
                parameter.grad = total if before is None else before.add_(total)
            else:
                parameter.grad = before

    def _totals(self, parameters: list[nn.Parameter], own: list[Tensor | None]) -> list[Tensor | None]:
        """The sums over ranks; None where no rank has a gradient. The first exchange carries the gradients of the
        parameters that had one last time, and a mask of those that have one now; if others have one now, a second
        exchange follows."""
        has = torch.tensor([grad is not None for grad in own])
        awaited = [number for number in self._awaited if number < len(parameters)]
        found, having = self._sums(parameters, own, awaited, has)
        self._awaited = having.nonzero()[:, 0].tolist()
        if late := [number for number in self._awaited if number not in found]:
            found |= self._sums(parameters, own, late, has[:0])[0]
        return [found[number] if there else None for number, there in enumerate(having.tolist())]

    def _sums(
        self, parameters: list[nn.Parameter], own: list[Tensor | None], numbers: list[int], has: Tensor
    ) -> tuple[dict[int, Tensor], Tensor]:
        """The sums over ranks of the gradients of ``parameters[n]``, n in ``numbers``; and for each entry of ``has``,
        whether it is true on any rank."""
        kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for number in numbers:
            kinds.setdefault((parameters[number].dtype, parameters[number].device), []).append(number)
        # What the host asks of ``has`` goes with gradients in host memory, or alone: it would wait for a GPU.
        first = next((kind for kind in kinds if kind[1].type == "cpu"), (torch.float32, torch.device("cpu")))
        found: dict[int, Tensor] = {}
        having = has
        alone = [first] if first not in kinds and len(has) else []
        for kind in [*alone, *sorted(kinds, key=first.__ne__)]:
            (dtype, device), members = kind, kinds.get(kind, [])
            pieces = [torch.zeros_like(parameters[n]) if (grad := own[n]) is None else grad for n in members]
            pieces += [has.to(dtype)] if kind == first else []
            total = self._sum(torch.cat([piece.reshape(-1) for piece in pieces])).to(device)
            *sums, rest = total.split([*(parameters[number].numel() for number in members), len(has) * (kind == first)])
            having = rest != 0 if kind == first else having
            for number, piece in zip(members, sums, strict=True):
                found[number] = piece.view(parameters[number].shape).clone()
        return found, having

    def _sum(self, flat: Tensor) -> Tensor:
        """The sum over ranks, in their order: each rank adds up one share of ``flat``, and sends it to all. Two ranks
        send each other the whole: as many bytes, in one round instead of two."""
        transport = self.transports.get(flat.device.type, self.transports["cpu"])
        exchange, flat = transport.exchange, transport.to_device(flat)
        whole = exchange.size == 2
        shares = [flat, flat] if whole else list(flat.tensor_split(exchange.size))
        own = len(shares[exchange.rank])
        total, *others = transport.tensors(shares, [own] * exchange.size, "gradients")
        total = total.clone()
        for other in others:
            total += other
        if whole:
            return total
        lengths = [len(share) for share in shares]
        return torch.cat(transport.tensors([total] * exchange.size, lengths, "gradients"))


class _Aside:
    """A hook of a parameter. It holds weak references to the parameter and the GradientSum."""

    def __init__(self, of: GradientSum, parameter: nn.Parameter) -> None:
        self.of, self.parameter = weakref.ref(of), weakref.ref(parameter)

    def __call__(self, grad: Tensor) -> None:
        of, parameter = self.of(), self.parameter()
        if of is not None and parameter is not None:
            of.set_aside(parameter)


class _Pass:
    """Called when a backward pass has ended. If the pass fails, this object is dropped without a call, and tells the
    other ranks."""

    def __init__(self, of: GradientSum, model: nn.Module, connection: Connection) -> None:
        self.of, self.model, self.connection = of, model, connection
        self.has_ended = False

    def __call__(self) -> None:
        with self.connection.failing_alone():
            self.of.finish(self.model)
        self.has_ended = True

    def __del__(self) -> None:
        if not self.has_ended:
            self.connection.fail("its backward pass failed")
