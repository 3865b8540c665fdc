"""Which part computes which node: METIS by what presampled batches compute and send, or with less knowledge."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..partition.methods import assign, by_metis
from ..partition.whole import Whole
from ..topology import CSC

WEIGHTS = ("presampled", "node", "edge", "random")
"""The ways of giving nodes to parts: see :func:`torch_gnnscale.split.plan`."""
_NODE_FACTOR = 10
"""A node weighs 1 + 10 N_v: with 1 + N_v, the many nodes of a large graph that were never drawn would decide."""
_EDGE_FACTOR = 100
"""An edge weighs 1 + 100 N_e: the 1 lets edges that were never drawn decide between cuts that are equal otherwise."""
_TOLERANCE = 1.01
"""What max / mean of the loads may be: every batch waits for the part with the largest load."""
_LIMIT = 1 << 53
"""Weights are scaled down where their sum is above it: METIS adds them up as int64 and compares sums as floats."""


def owners_by(
    weights: str, csc: CSC, node_load: Tensor, edge_load: Tensor, seeds: Tensor, parts: int, seed: int
) -> Tensor:
    """The part of each node: int32, shape [n].

    Args:
        weights: one of :data:`WEIGHTS`.
        csc: the graph.
        node_load: N_v, int64, shape [n].
        edge_load: N_e, or what it is expected to be, in the order of ``csc.row``: float64, shape [E].
        seeds: of training.
        parts, seed: as of :func:`torch_gnnscale.split.plan`.

    Raises:
        ImportError, RuntimeError: METIS is not installed, or failed.
    """
    relations, sizes = {None: csc}, {None: csc.num_src}
    if weights == "random":
        return assign(relations, sizes, parts, method="random", seed=seed).owner[None]
    if weights == "edge":
        train = {None: seeds.unique()}
        found = assign(relations, sizes, parts, method="metis", train=train, balance=("edges", "train"), seed=seed)
        return found.owner[None]
    whole = Whole.of(relations, sizes, {}, ["nodes"])
    whole = replace(
        whole,
        weight=weights_of(node_load, _NODE_FACTOR).unsqueeze(1),
        names=["load"],
        edge_weight=[weights_of(edge_load, _EDGE_FACTOR)] if weights == "presampled" else None,
    )
    return by_metis(whole, parts, seed, _TOLERANCE).owner.to(torch.int32)


def weights_of(load: Tensor, factor: int) -> Tensor:
    """1 + factor * load, rounded down, with a smaller factor if these numbers would add up to more than 2^53: int64,
    the shape of ``load``."""
    most, load = _LIMIT - len(load), load.to(torch.float64)
    total = float(load.sum())
    return 1 + (load * (factor if factor * total <= most else most / total)).floor_().to(torch.int64)
