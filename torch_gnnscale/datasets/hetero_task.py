"""The task of classifying the nodes of one type in a heterogeneous graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from . import archives, saved
from .node_task import NodeTask, check_data_split
from .planted_types import planted_types, with_reverses


def load_types(name: str = "planted", root: str | Path = ".", split: int = 0, target: str | None = None) -> NodeTask:
    """A task of classifying one node type, by name.

    Args:
        name: ``planted``; the path of a directory that :meth:`NodeTask.save`, ``gnnscale convert`` or ``gnnscale
            tables`` wrote of a graph with types, a type's rows, labels and splits; or the name of an archive with the
            arrays of :func:`torch_gnnscale.datasets.archives.hetero_graph`,
            ``target`` (the labelled node type T), ``y__T``,
            ``train_mask__T``, ``val_mask__T`` and ``test_mask__T``.
        root: the folder of archives.
        split: the number of the data split, from 0.
        target: ``TYPE.label``: which labels of a directory with several types that have some.

    Raises:
        ValueError: no such archive, arrays missing, no such split, or no such target.
    """
    if not saved.is_saved(name):
        saved.check_no_target(name, target)
    if name == "planted":
        return NodeTask.from_types(name, planted_types(), "author", split)
    if saved.is_saved(name):
        check_data_split(name, split, 1)
        found = saved.opened(name)
        if not found.is_typed:
            raise ValueError(f"{name}: expected a graph with types, found one without; --task nodes is for these")
        node_type = saved.target_type(name, found, target)
        saved.labelled_rows(name, found, node_type)
        task = NodeTask.from_types(name, with_reverses(found.data()), str(node_type))
        return replace(task, target=target)
    arrays = archives.read(name, root, "a heterogeneous graph with labels (target, y__T)")
    target = str(arrays["target"])
    data = archives.hetero_graph(arrays)
    if target not in data.node_types:
        raise arrays.wrong("target", f"one of {data.node_types}", repr(target))
    count = arrays.number(f"num_nodes__{target}")
    data[target].y = y = arrays.integers(f"y__{target}")
    if not y.dim() or len(y) != count:
        raise arrays.wrong(f"y__{target}", f"a class of each of {count} nodes", f"shape {tuple(y.shape)}")
    for subset in ("train", "val", "test"):
        data[target][f"{subset}_mask"] = arrays.mask(f"{subset}_mask__{target}", count)
    return NodeTask.from_types(name, with_reverses(data), target, split)
