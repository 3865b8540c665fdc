"""Memory of a rank that the other ranks of its machine read, or write; and the order in which ranks do so where the
work that a rank queues is done later."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from .. import ops
from .._private import share_on_gpu, shared_on_gpu
from ..memory import HostMemory
from .exchange import keep_for_ever

BUFFERS = 2
"""Of each rank; they take turns."""


class PeerEvents(ABC):
    """Events of the ranks that share memory: points in what a rank has queued, for which others wait."""

    @abstractmethod
    def handles(self) -> Any:
        """What other processes need to open this rank's events; pickle takes it."""

    @abstractmethod
    def open(self, rank: int, handles: Any) -> None:
        """Opens the events of another rank."""

    @abstractmethod
    def record(self, event: int) -> None:
        """This rank's event becomes the point after all that it has queued so far."""

    @abstractmethod
    def wait(self, rank: int, event: int) -> None:
        """What this rank queues from now on is done after the point that another rank's event is now."""


class Turns:
    """When each rank may write its buffers and read those of the others. In a turn, each rank writes rows for the
    others into one of its two buffers, meets them, and reads theirs. Turn s uses buffer s mod 2:

    1. A rank records that it has read what it wanted of turn s - 1.
    2. It waits until all others have read what it wrote in turn s - 2, and writes; it records that it has written.
    3. All ranks meet: a rank goes on when all others have come, whatever is still queued.
    4. It waits until those that it reads have written, and reads, until its next turn begins.

    An event that a rank waits for was recorded before the last meeting, and is recorded again after the next one at the
    earliest. So it is the same point for all ranks, whichever is faster.

    Args:
        events: 2 * BUFFERS of each rank, those of the other ranks open.
        rank, ranks: the number of this one, and how many there are.
    """

    def __init__(self, events: PeerEvents, rank: int, ranks: int) -> None:
        self._events = events
        self._others = [other for other in range(ranks) if other != rank]

    def begin(self, turn: int) -> None:
        """Begins a turn, whose buffer this rank may then write (steps 1 and 2)."""
        if turn >= 1:
            self._events.record(BUFFERS + (turn - 1) % BUFFERS)
        if turn >= BUFFERS:
            for other in self._others:
                self._events.wait(other, BUFFERS + turn % BUFFERS)

    def written(self, turn: int) -> None:
        """Called when this rank has queued all that it writes, before it meets the others (step 2)."""
        self._events.record(turn % BUFFERS)

    def read(self, turn: int, senders: Iterable[int]) -> None:
        """Called after the ranks have met, before this one reads what ``senders`` wrote (step 4)."""
        for sender in senders:
            self._events.wait(sender, turn % BUFFERS)


class GPUEvents(PeerEvents):
    """Of ranks on GPUs: events of CUDA that other processes open. The host waits for none of them.

    Args:
        device: the GPU of this rank. Points are those of its current stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own = [torch.cuda.Event(interprocess=True) for _ in range(2 * BUFFERS)]
        self._of: dict[int, list[torch.cuda.Event]] = {}

    @override
    def handles(self) -> list[bytes]:
        keep_for_ever(self._own)  # when this rank has ended, another one may be about to wait for them
        with torch.cuda.device(self._device):
            return [event.ipc_handle() for event in self._own]

    @override
    def open(self, rank: int, handles: list[bytes]) -> None:
        self._of[rank] = [torch.cuda.Event.from_ipc_handle(self._device, handle) for handle in handles]

    @override
    def record(self, event: int) -> None:
        self._own[event].record(torch.cuda.current_stream(self._device))

    @override
    def wait(self, rank: int, event: int) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._of[rank][event])


LEAST = 1 << 20
"""Bytes of the smallest memory, or of each of its two buffers."""
PAGE = 4096
"""Sizes are multiples of it."""
_HINT = "make batches smaller"


class Offered(NamedTuple):
    """Rows that one rank wrote for another one."""

    rows: Tensor
    """Those that the rank reads, in its order; or, with ``places``, those that any ranks read, each once: [m, ...]."""
    places: Tensor | None
    """Which of them the rank reads, in its order: int64, shape [t]; None: all."""
    num_rows: int
    """How many the rank reads, t."""


class PeerMemory(ABC):
    """Memory of one rank, as that rank or another one has it."""

    bytes: Tensor
    """uint8, shape [n], on the device of :class:`PeerMemories`."""

    @abstractmethod
    def handle(self) -> Any:
        """What another process needs to open this process's memory; pickle takes it. One for each process."""

    @abstractmethod
    def close(self) -> None:
        """Gives the memory up. It is freed when every rank has closed it, and no tensor over it is left."""


class PeerMemories(ABC):
    """How the ranks of a machine read each other's memory.

    Each rank allocates its own and gives the others a handle, which they open. To replace memory, the ranks
    meet, then the others close what they have opened; when they meet next, the rank closes what it has allocated. At
    the end of a transport, each rank closes what it has opened, then its own, without meeting the others.
    """

    device: torch.device
    """Where rows are, before and after they travel."""
    writes_once: bool
    """Whether a row that several ranks read is written once, beside the places where each of them reads. How many rows
    that are, the host has to know, which would wait for a GPU."""

    @abstractmethod
    def allocated(self, num_bytes: int) -> PeerMemory:
        """New memory. Raises MemoryError, OSError or RuntimeError if there is none."""

    @abstractmethod
    def opened(self, handle: Any) -> PeerMemory:
        """The memory of another rank. Raises OSError, MemoryError or RuntimeError if it cannot be opened."""

    @abstractmethod
    def events(self) -> PeerEvents | None:
        """New events of this rank, by which the others know when it has written and read. None if all is done when its
        call returns."""

    @abstractmethod
    def settle(self) -> None:
        """Waits until all reading and writing of this rank that was queued has ended; called before memory is closed
        that is replaced."""

    @abstractmethod
    def joined(self, own: Tensor, offered: Sequence[Offered]) -> Tensor:
        """[own; the rows of each rank that were offered to this one], in memory of their own.

        Args:
            own: contiguous, [n, ...].
            offered: by each rank, of the type and width of ``own``.
        """


def memories_on(device: torch.device) -> PeerMemories:
    """How a rank whose rows are on this device shares memory with others."""
    return GPUMemories(device) if device.type == "cuda" else HostMemories()


# In host memory ######################################################################################################


class HostPeerMemory(PeerMemory):
    """A :class:`torch_gnnscale.memory.HostMemory`."""

    def __init__(self, memory: HostMemory) -> None:
        self.memory, self.bytes = memory, memory._check()

    @override
    def handle(self) -> bytes:
        return pickle.dumps(self.memory)

    @override
    def close(self) -> None:
        self.memory.close()
        self.bytes = torch.empty(0, dtype=torch.uint8)


class HostMemories(PeerMemories):
    """Ranks whose rows are in host memory share some of it."""

    device = torch.device("cpu")
    writes_once = True

    @override
    def allocated(self, num_bytes: int) -> HostPeerMemory:
        return HostPeerMemory(HostMemory(num_bytes, "split", _HINT))

    def opened(self, handle: bytes) -> HostPeerMemory:
        """Opens another rank's memory, without a descriptor (:meth:`PeerMemories.opened`)."""
        memory: HostMemory = pickle.loads(handle)
        found = HostPeerMemory(memory)
        memory.close()  # its pages stay as long as a tensor over them
        return found

    @override
    def events(self) -> None:
        return None

    def settle(self) -> None:
        """Returns at once, for nothing is queued."""

    def joined(self, own: Tensor, offered: Sequence[Offered]) -> Tensor:
        """[own; the rows offered], copied rank by rank."""
        counts = [entry.num_rows for entry in offered]
        out = ops.empty_rows(len(own) + sum(counts), own)
        out[: len(own)] = own
        for to, (rows, places, _) in zip(out[len(own) :].split(counts), offered, strict=True):
            if places is None:
                to.copy_(rows)
            else:
                torch.index_select(rows, 0, places, out=to)
        return out


# On GPUs #############################################################################################################


class GPUPeerMemory(PeerMemory):
    """Memory of torch's allocator, which keeps it as long as another process has it open.

    Args:
        bytes: the memory.
    """

    def __init__(self, bytes: Tensor) -> None:
        self.bytes = bytes

    def handle(self) -> tuple[Any, ...]:
        """What other ranks open (:meth:`PeerMemory.handle`): what torch says of a storage that another process opens,
        but for the number of its device, which need not be the other's."""
        return share_on_gpu(self.bytes.untyped_storage())[1:]

    @override
    def close(self) -> None:
        self.bytes = torch.empty(0, dtype=torch.uint8)  # not on the GPU, which may have failed


class GPUMemories(PeerMemories):
    """Ranks whose rows are on GPUs open each other's memory by CUDA's IPC; several of them may be on one GPU.

    Args:
        device: the GPU of this rank. All reading and writing is queued on its current stream.
    """

    writes_once = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @override
    def allocated(self, num_bytes: int) -> GPUPeerMemory:
        return GPUPeerMemory(torch.empty(num_bytes, dtype=torch.uint8, device=self.device))

    def opened(self, handle: tuple[Any, ...]) -> GPUPeerMemory:
        """Opens another rank's memory, which this rank's GPU reads wherever it lies."""
        storage = shared_on_gpu(self.device.index, *handle)
        return GPUPeerMemory(torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage))

    @override
    def events(self) -> GPUEvents:
        return GPUEvents(self.device)

    @override
    def settle(self) -> None:
        torch.cuda.current_stream(self.device).synchronize()

    def joined(self, own: Tensor, offered: Sequence[Offered]) -> Tensor:
        """[own; the rows offered]: one kernel reads the memory of all ranks."""
        return torch.cat([own, *(entry.rows for entry in offered)])
