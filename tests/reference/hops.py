"""One hop at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_gnnscale.ops import Picks, Relabelled, Relations

from .draws import choose


def pick_neighbors(
    graph: Relations,
    node: Tensor,
    node_ptr: Sequence[int],
    keys: Sequence[int],
    hop: int,
    fanout: int,
    *,
    first: int = 0,
    tree: Tensor | None = None,
    time: Tensor | None = None,
    start_time: Tensor | None = None,
    relation: int = 0,
    replace: bool = False,
    last: bool = False,
    with_edge_id: bool = True,
) -> Picks:
    """Request by request: the candidates are listed, then those that the draws choose are taken."""
    pointer, row, edge_id, weight, times = (entries[relation] for entries in graph[:5])
    count, source, edge = [], [], []
    for b, key in enumerate(keys):
        for i in range(node_ptr[b], node_ptr[b + 1]):
            begin, end = pointer[int(node[i]) - first : int(node[i]) - first + 2].tolist()
            found = list(range(begin, end))
            if times is not None and time is not None:
                found = [position for position in found if int(times[position]) <= int(time[i])]
                if start_time is not None:
                    found = [position for position in found if int(times[position]) >= int(start_time[i])]
                if last and fanout >= 0:
                    found = found[max(len(found) - fanout, 0) :]
            weights = None
            if weight is not None:
                sums = [0, *weight[begin:end].tolist()]
                weights = [sums[position - begin + 1] - sums[position - begin] for position in found]
            of_tree = 0 if tree is None else int(tree[i])
            picks = choose(
                key, int(node[i]), hop, len(found), fanout, replace, tree=of_tree, relation=relation, weights=weights
            )
            count.append(len(picks))
            source += [int(row[found[pick]]) for pick in picks]
            edge += [found[pick] if edge_id is None else int(edge_id[found[pick]]) for pick in picks]

    def ids(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64)

    return Picks(ids(count), ids(source), ids(edge) if with_edge_id else None)


def relabel(known: Tensor, ids: Tensor, *, known_tree: Tensor | None = None, tree: Tensor | None = None) -> Relabelled:
    """Local ids from a dictionary from (tree, node) to local id, to which each new node is added."""
    trees = [0] * len(known) if known_tree is None else known_tree.tolist()
    local: dict[tuple[int, int], int] = {}
    for at, name in enumerate(zip(trees, known.tolist(), strict=True)):
        local.setdefault(name, at)
    found: list[int] = []
    added: list[tuple[int, int]] = []
    for name in zip([0] * len(ids) if tree is None else tree.tolist(), ids.tolist(), strict=True):
        if name not in local:
            local[name] = len(known) + len(added)
            added.append(name)
        found.append(local[name])
    new = torch.tensor(added, dtype=torch.int64).reshape(-1, 2)
    return Relabelled(torch.tensor(found, dtype=torch.int64), new[:, 1].contiguous(),
                      None if tree is None else new[:, 0].contiguous())  # fmt: skip
