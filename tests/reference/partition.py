"""The steps by which a graph is cut into parts; edges count in both directions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .draws import bounded, counter_draw


def transpose(colptr: Tensor, row: Tensor, num_src: int) -> tuple[Tensor, Tensor]:
    """``colptr`` and ``row`` of the reversed edges: each source's destinations, ascending."""
    lists: list[list[int]] = [[] for _ in range(num_src)]
    for node in range(len(colptr) - 1):
        for source in row[colptr[node] : colptr[node + 1]].tolist():
            lists[source].append(node)
    begin = torch.tensor([0] + [len(nodes) for nodes in lists]).cumsum(0)
    dtype = torch.int32 if len(colptr) - 1 <= 1 << 31 else torch.int64
    return begin, torch.tensor([node for nodes in lists for node in nodes], dtype=dtype)


def _edges(sides: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Every stored edge as (node, neighbor)."""
    for colptr, row, first_node, first_neighbor, _ in sides:
        for column in range(len(colptr) - 1):
            for neighbor in row[colptr[column] : colptr[column + 1]].tolist():
                yield first_node + column, first_neighbor + neighbor


def contract(
    sides: Sequence[Any],
    num_nodes: int,
    group: Tensor | None = None,
    num_groups: int | None = None,
    *,
    most: int = 1 << 40,
) -> tuple[Tensor, Tensor, Tensor]:
    """The graph of groups in CSC form, with the number of edges between each two groups; (ptr, row, number).

    ``row`` and the numbers are empty if there are more than ``most`` pairs.
    """
    of = list(range(num_nodes)) if group is None else group.tolist()
    count = num_nodes if num_groups is None else num_groups
    merged = Counter((of[node], of[neighbor]) for node, neighbor in _edges(sides) if of[node] != of[neighbor])
    degree = Counter(node for node, _ in merged)
    begin = torch.tensor([0] + [degree[g] for g in range(count)]).cumsum(0)
    pairs = sorted(merged) if len(merged) <= most else []
    row, weight = ([pair[1] for pair in pairs], [merged[pair] for pair in pairs])
    return begin, torch.tensor(row, dtype=torch.int64), torch.tensor(weight, dtype=torch.int64)


def propagate_labels(
    sides: Sequence[Any],
    num_nodes: int,
    label: Tensor,
    weight: Tensor,
    most: Sequence[int],
    *,
    key: int,
    fewest: Sequence[int] | None = None,
    group: Tensor | None = None,
    rounds: int = 1,
    steps: int = 16,
    least: int = 1,
) -> Tensor:
    """In each step, the groups of that step choose labels by the state before the step. Then each label takes the
    groups that chose it, in order of priority, as far as the bounds allow."""
    of = list(range(num_nodes)) if group is None else group.tolist()
    labels, adds = label.tolist(), weight.tolist()
    neighbors: list[list[int]] = [[] for _ in labels]  # of each group: a neighboring group, once per edge
    for node, neighbor in _edges(sides):
        if of[node] != of[neighbor]:
            neighbors[of[node]].append(of[neighbor])

    def fits(sums: list[int], g: int) -> bool:
        return all(w == 0 or s + w <= bound for s, w, bound in zip(sums, adds[g], most, strict=True))

    def spared(sums: list[int], g: int) -> bool:
        return all(
            w == 0 or s - w >= bound for s, w, bound in zip(sums, adds[g], fewest or [0] * len(most), strict=True)
        )

    for turn in range(rounds):
        blocks = [[counter_draw(key, g | turn << 64, half) for half in (0, 1)] for g in range(len(labels))]
        step_of = [bounded(first, steps) for first, _ in blocks]
        priority = [(second & 0xFFFFFFFF, g) for g, (_, second) in enumerate(blocks)]
        moved = 0
        for step in range(steps):
            sums = [[0] * len(most) for _ in labels]
            for g, of_group in enumerate(labels):
                sums[of_group] = [s + w for s, w in zip(sums[of_group], adds[g], strict=True)]
            kept = [list(of_label) for of_label in sums]  # without groups that left; `sums` also has those that came
            chosen = {}
            for g in (g for g in range(len(labels)) if step_of[g] == step):
                counts = Counter(labels[neighbor] for neighbor in neighbors[g])
                better = [x for x, count in counts.items() if count > counts[labels[g]] and fits(sums[x], g)]
                if better:
                    chosen[g] = max(better, key=lambda x: (counts[x], -priority[x][0], -x))
            for g in sorted(chosen, key=lambda g: priority[g]):
                old, new = labels[g], chosen[g]
                if fits(sums[new], g) and spared(kept[old], g):
                    sums[new] = [s + w for s, w in zip(sums[new], adds[g], strict=True)]
                    kept[old] = [s - w for s, w in zip(kept[old], adds[g], strict=True)]
                    labels[g] = new
                    moved += 1
        if moved < least:
            break
    return torch.tensor(labels, dtype=torch.int64)
