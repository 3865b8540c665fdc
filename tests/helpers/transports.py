"""Transports between all ranks of a test, and random rows that they swap."""

import torch
from torch import distributed as dist

from torch_gnnscale.comm.exchange import Exchange
from torch_gnnscale.comm.memory_transport import MemoryTransport
from torch_gnnscale.comm.peer_memory import GPUMemories, HostMemories, memories_on
from torch_gnnscale.comm.rendezvous import end_group
from torch_gnnscale.comm.row_transport import NcclTransport, RowTransport
from torch_gnnscale.split.rank_rows import Moves, ShuffleIndex

from .cpu_as_gpu import OnTheCPU

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
DTYPES = [*FLOATS, torch.int64, torch.uint8, torch.bool]


class Staged(RowTransport):
    """Sends rows as if they were on a GPU."""

    _bytes = RowTransport._staged


class Shuffling(HostMemories):
    """Host memory that is read as that of GPUs is."""

    writes_once, joined = GPUMemories.writes_once, GPUMemories.joined


def made(kind):
    """A transport between all ranks."""
    exchange = Exchange(dist.new_group(backend="gloo"), dist.get_world_size(), dist.get_rank())
    if kind == "from gpu to gpu":
        return NcclTransport(exchange, Exchange(dist.new_group(backend="gloo"), exchange.size, exchange.rank))
    if not kind.startswith("peers"):
        return Staged(exchange) if kind == "staged" else RowTransport(exchange, tells=kind == "all_to_all, telling")
    found = MemoryTransport.connect(exchange, Shuffling() if kind == "peers, one kernel" else HostMemories())
    assert isinstance(found, MemoryTransport), found
    return found


def ended(transport):
    """Closes a transport and ends its groups."""
    transport.close()
    if isinstance(transport, NcclTransport):
        end_group(transport._rows.group)
    end_group(transport.exchange.group)


def swaps(kind, steps, most):
    """Random rows, of numbers on which ranks agree: few and many, none, of several types and shapes."""
    with OnTheCPU():  # where no memory can be pinned
        return swapped(made(kind), steps, most)


def swaps_on(device, steps, most):
    """See :func:`swaps`: rows in memory of a device, which peers read there."""
    exchange = Exchange(dist.new_group(backend="gloo"), dist.get_world_size(), dist.get_rank())
    transport = MemoryTransport.connect(exchange, memories_on(torch.empty(0, device=device).device))
    assert isinstance(transport, MemoryTransport), transport
    return swapped(transport, steps, most, device)


def swapped(transport, steps, most, device="cpu"):
    """See :func:`swaps`."""
    rank, world = transport.exchange.rank, transport.exchange.size
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        counts = torch.randint(most + 1, (world, world), generator=generator).fill_diagonal_(0)
        if step % 4 == 3:
            counts[step % world] = 0
        dtype, shape = DTYPES[step % 7], [(3,), (), (2, 4), (0,), (65,)][step % 5]
        tables = [torch.randint(100, (50, *shape), generator=generator).to(dtype) for _ in range(world)]
        index = [torch.randint(50, (int(counts[of].sum()),), generator=generator) for of in range(world)]
        given = counts[rank].tolist(), counts[:, rank].tolist()
        own, sent = tables[rank].to(device), index[rank].to(device)
        if step % 2:
            shuffled = ShuffleIndex(world, rank, sent, *([[count] for count in counts] for counts in given))
            if step % 4 == 3:  # of three ranks one sends nothing, and each of the others has one to read from
                out = transport.rows(own, Moves(shuffled, 1), "test")
            else:
                out = transport.pull(own, Moves(shuffled, 1), "test")
            found = out.split(given[1])
        else:
            found = transport.swap(own[sent], *given, "test")
        for of, block in enumerate(found):
            begin = int(counts[of, :rank].sum())
            expected = tables[of][index[of][begin : begin + int(counts[of, rank])]]
            assert block.dtype == dtype
            assert block.device.type == device
            assert torch.equal(block.cpu(), expected)
    traffic = transport.exchange.traffic["test"]
    assert traffic.rounds == steps
    assert traffic.seconds > 0
    ended(transport)
    return traffic.bytes_sent, traffic.bytes_received
