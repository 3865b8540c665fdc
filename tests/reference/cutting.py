"""A batch, cut over ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_gnnscale.ops.ranks import Cut


def cut_batch(
    node: Tensor, num_nodes: Sequence[int], colptr: Tensor, row: Tensor, owner: Tensor, parts: int, part: int
) -> Cut:
    """Every rank's halo is listed from its definition; a node that is a repeated seed has one row per occurrence.

    Args:
        node: the batch's nodes in order of first occurrence, seeds first: int64, shape [n].
        num_nodes: how many of them each group has: L + 1 numbers.
        colptr: edges colptr[i]..colptr[i+1]-1 lead to node i: int64, shape [nodes of groups 0..L-1, + 1].
        row: sources, as numbers in the batch: int64, shape [e].
        owner: owner[i]: the rank of node i of the batch; int64, shape [n].
        parts: the number of ranks.
        part: the number of this one.
    """
    ids, owners, sources, pointer = node.tolist(), owner.tolist(), row.tolist(), colptr.tolist()
    group = [g for g, count in enumerate(num_nodes) for _ in range(count)]
    hops = len(num_nodes) - 1
    own = sorted(
        (i for i, rank in enumerate(owners) if rank == part), key=lambda i: (group[i], ids[i] if group[i] else 0, i)
    )
    place = {i: at for at, i in enumerate(own)}

    levels: list[dict[int, int]] = [{} for _ in range(parts)]  # of the halo of each rank
    for dst in range(len(pointer) - 1):
        for src in sources[pointer[dst] : pointer[dst + 1]]:
            if owners[src] != owners[dst]:
                level = levels[owners[dst]]
                level[src] = min(level.get(src, hops), group[dst] + 1)
    halos = [[i for *_, i in sorted((owners[i], level[i], ids[i], i) for i in level)] for level in levels]

    def counted(nodes: list[int], of: dict[int, int]) -> list[int]:
        return [sum(of[i] == g + 1 for i in nodes) for g in range(hops)]

    halo = halos[part]
    place.update({i: len(own) + j for j, i in enumerate(halo)})
    columns = [i for i in own if i < len(pointer) - 1]
    edges = [edge for i in columns for edge in range(pointer[i], pointer[i + 1])]
    degrees = [pointer[i + 1] - pointer[i] for i in columns]
    sent = [[i for i in halos[rank] if owners[i] == part] for rank in range(parts)]
    return Cut(
        torch.tensor(own, dtype=torch.int64),
        [sum(group[i] == g for i in own) for g in range(hops + 1)],
        [sum(degree for i, degree in zip(columns, degrees, strict=True) if group[i] == g) for g in range(hops)],
        torch.tensor([0, *degrees]).cumsum(0),
        torch.tensor([place[sources[edge]] for edge in edges], dtype=torch.int64),
        torch.tensor(edges, dtype=torch.int64),
        torch.tensor(halo, dtype=torch.int64),
        [counted([i for i in halo if owners[i] == rank], levels[part]) for rank in range(parts)],
        torch.tensor([place[i] for nodes in sent for i in nodes], dtype=torch.int64),
        [counted(nodes, levels[rank]) for rank, nodes in enumerate(sent)],
    )
