"""Rows that ranks of one machine read in each other's memory."""

from __future__ import annotations

import pickle
import time
from itertools import accumulate

import torch
from torch import Tensor

from ..distributed.exchange import Exchange
from ..memory import HostMemory
from .transport import Transport

_LEAST = 1 << 20
"""Bytes of each of the first buffers."""
_PAGE = 4096
"""Sizes of buffers are multiples of it."""
_HINT = "make batches smaller"


class Peers(Transport):
    """Each rank writes what others need into one of its two buffers, and after a barrier they read it there.

    A rank comes to the barrier of a swap when it has read what it needed of the swap before; so a buffer that is
    written again has been read by all. The barrier carries where each reader's rows begin.

    Args:
        exchange: between the ranks over which batches are cut, all of one machine.
        memories: of all ranks, in their order; each is two buffers of the same size.
    """

    def __init__(self, exchange: Exchange, memories: list[HostMemory]) -> None:
        super().__init__(exchange)
        self._memories = memories
        self._turn = 0

    @classmethod
    def connect(cls, exchange: Exchange) -> Peers | None:
        """The transport, if every rank can read the memory of every other; all ranks call it together."""
        try:
            own = HostMemory(2 * _LEAST, "split", _HINT)
            own._check()[:1] = exchange.place % 251
            given = pickle.dumps(own)
        except (OSError, MemoryError):
            given = b""
        memories = []
        for place, pickled in enumerate(exchange.objects(given)):
            try:
                memory = own if place == exchange.place else pickle.loads(pickled)
                if int(memory._check()[0]) == place % 251:
                    memories.append(memory)
            except (OSError, EOFError, NameError):
                break
        found = all(exchange.objects(len(memories) == exchange.size))
        return cls(exchange, memories) if found else None

    def swap(
        self, rows: Tensor, index: Tensor | None, num_sent: list[int], num_received: list[int], purpose: str
    ) -> list[Tensor]:
        """See :class:`Transport`; the rows are those of the peers' buffers, until the next swap but one."""
        exchange, place, turn = self.exchange, self.exchange.place, self._turn % 2
        self._turn += 1
        begin = time.perf_counter()
        shape, width = rows.shape[1:], rows.shape[1:].numel() * rows.element_size()
        total = width * sum(num_sent)
        before = self._memories[place]  # until others have come to the barrier: they may still have to open it
        grows = total > before.num_bytes // 2
        if grows:
            self._memories[place] = HostMemory(2 * _PAGE * -(-total * 5 // (4 * _PAGE)), "split", _HINT)
        to = _rows_at(self._memories[place], turn, 0, sum(num_sent), rows.dtype, shape)
        if index is None:
            to.copy_(rows)
        else:
            torch.index_select(rows, 0, index, out=to)
        begins = [width * count for count in accumulate(num_sent, initial=0)]
        said = torch.tensor([[begins[rank], int(grows)] for rank in range(exchange.size)])
        heard = exchange.numbers(said, purpose)
        if grows:
            before.close()
        if int(heard[:, 1].sum()):
            given = exchange.objects(self._memories[place] if grows else None)
            self._memories = [
                known if new is None or rank == place else new
                for rank, (known, new) in enumerate(zip(self._memories, given, strict=True))
            ]
        traffic = exchange.traffic[purpose]
        traffic.rounds += 1
        traffic.bytes_sent += total
        traffic.bytes_received += width * sum(num_received)
        traffic.seconds += time.perf_counter() - begin
        return [
            _rows_at(memory, turn, offset, count, rows.dtype, shape)
            for memory, offset, count in zip(self._memories, heard[:, 0].tolist(), num_received, strict=True)
        ]

    def close(self) -> None:
        """Closes the memory."""
        for memory in self._memories:
            memory.close()


def _rows_at(memory: HostMemory, turn: int, offset: int, count: int, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    """``count`` rows of one of the two buffers, from a byte on."""
    if count * shape.numel() == 0:
        return torch.empty((count, *shape), dtype=dtype)
    begin = turn * (memory.num_bytes // 2) + offset
    data = memory._check()[begin : begin + count * shape.numel() * dtype.itemsize]
    return data.view(dtype).view(count, *shape)
