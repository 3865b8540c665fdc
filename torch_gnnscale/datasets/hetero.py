"""Classification of the nodes of one type in a heterogeneous graph: the task by name."""

from __future__ import annotations

from pathlib import Path

import torch

from . import archives
from .nodes import NodeTask
from .planted_types import planted_types, with_reverses


def load_types(name: str = "planted", root: str | Path = ".", split: int = 0) -> NodeTask:
    """Classification of one type's nodes in a heterogeneous graph.

    Args:
        name: ``planted``, or an archive of arrays ``num_nodes__T``, features ``x__T`` (or in CSR),
            ``edge_index__S__R__T``, the labelled node type ``target``, ``y__T`` and masks.
        root: where archives are.
        split: which of several splits, from 0.

    Raises:
        ValueError: no such archive, or not of that form, or no such split.
    """
    if name == "planted":
        return NodeTask.from_types(name, planted_types(), "author", split)
    arrays = archives.read(name, root, "a heterogeneous graph with labels")
    if "target" not in arrays:
        raise ValueError(
            f"dataset {name!r}: expected a heterogeneous graph with labels (target, y__T), found no target"
        )
    target = str(arrays["target"])
    data = archives.hetero_graph(arrays)
    data[target].y = archives.ids(arrays[f"y__{target}"])
    for part in ("train", "val", "test"):
        data[target][f"{part}_mask"] = torch.from_numpy(arrays[f"{part}_mask__{target}"])
    return NodeTask.from_types(name, with_reverses(data), target, split)
