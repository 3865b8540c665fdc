"""A small batch that all ranks of a split have in common, to find out how a model calls its layers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from ..ops.shuffle import cut_batch
from .shuffle_index import ShuffleIndex

SEEDS = 32
_NEW = 11
"""How many nodes a group has more than the one before, so that all groups differ in size."""
_DEGREE = 3
_SHOWN = 64
"""How many rows of a real batch are taken, from which the rows of the probe are made."""
_OWN_FIELDS = {"edge_index", "n_id", "e_id", "input_id", "x_halo", "shuffle_index", "num_nodes"}


@dataclass
class Field:
    """A tensor of batches."""

    of_edges: bool
    """Whether it has a row for each edge; else for each own node."""
    rows: Tensor
    """Some of its rows."""


@dataclass
class Fields:
    """What the batches of a rank look like."""

    hops: int
    num_nodes: int
    tensors: dict[str, Field]
    others: dict[str, Any]
    """Fields without rows, which the probe gets unchanged."""
    has_halo: bool
    """Whether the loader exchanges the rows of ``x``."""


def fields_of(batch: Data) -> Fields:
    """The fields of a batch, in a form that can be pickled."""
    num_nodes, num_edges = int(batch.num_nodes or 0), batch.edge_index.size(1)
    tensors, others = {}, {}
    for name, value in batch.to_dict().items():
        if name in _OWN_FIELDS or name.startswith(("num_sampled", "batch", "global")):
            continue
        if (
            isinstance(value, Tensor)
            and value.dim() > 0
            and value.size(0) == (num_edges if "edge" in name else num_nodes)
        ):
            tensors[name] = Field("edge" in name, value[:_SHOWN].detach().cpu().clone())
        elif isinstance(value, Tensor) and value.dim() > 0 and value.size(0) == num_edges:
            tensors[name] = Field(True, value[:_SHOWN].detach().cpu().clone())
        elif isinstance(value, (int, float, str, bool, Tensor)):
            others[name] = value.cpu() if isinstance(value, Tensor) else value
    has_halo = isinstance(getattr(batch, "x_halo", None), Tensor)
    return Fields(len(batch.num_sampled_edges), num_nodes, tensors, others, has_halo)


def probe_batch(fields: Fields, device: torch.device) -> Data:
    """A batch of SEEDS seeds with these fields; equal fields give equal batches.

    The nodes of all groups but the last have _DEGREE - 1 edges each from random nodes of the groups up to the next one;
    every fifth node also has an edge from itself. Each node of a later group has an edge into the group before.
    """
    generator = torch.Generator().manual_seed(0)
    sizes = [SEEDS + _NEW * g for g in range(fields.hops + 1)]
    ends = list(accumulate(sizes))
    src, dst = [], []
    for group in range(fields.hops):
        first, last, most = ends[group] - sizes[group], ends[group], ends[group + 1]
        nodes = torch.arange(first, last)
        news = torch.arange(last, most)
        src += [torch.randint(most, (len(nodes) * (_DEGREE - 1),), generator=generator), nodes[::5], news]
        into = torch.randint(first, last, (len(news),), generator=generator)
        dst += [nodes.repeat(_DEGREE - 1), nodes[::5], into]
    sources, destinations = torch.cat(src), torch.cat(dst)
    order = torch.argsort(destinations, stable=True)
    batch = Data(edge_index=torch.stack([sources[order], destinations[order]]))
    into = torch.bincount(batch.edge_index[1], minlength=ends[-1]).cumsum(0)
    edges = into[[end - 1 for end in ends[:-1]]]
    batch.num_sampled_nodes = sizes
    batch.num_sampled_edges = edges.diff(prepend=edges.new_zeros(1)).tolist()
    batch.num_nodes, batch.batch_size, batch.global_batch_size = ends[-1], SEEDS, SEEDS
    batch.n_id, batch.batch_key = torch.arange(ends[-1]), 0
    for name, field in fields.tensors.items():
        count = len(order) if field.of_edges else ends[-1]
        rows = field.rows if len(field.rows) else field.rows.new_zeros((1, *field.rows.shape[1:]))
        values = rows[torch.randint(len(rows), (count,), generator=generator)]
        if values.is_floating_point():  # noise, so that no two values are equal; signs stay
            noise = torch.rand(values.shape, generator=generator).to(values.dtype)
            values = values * (1 + 0.5 * noise) if bool(rows.any()) else noise
        batch[name] = values
    for name, value in fields.others.items():
        batch[name] = value
    return batch.to(device)


def cut_probe(whole: Data, parts: int, part: int, with_halo: bool) -> tuple[Data, Tensor]:
    """One rank's cut of the probe by random owners, and the positions of its own nodes in ``whole``: int64."""
    owner = torch.randint(parts, (whole.num_nodes,), generator=torch.Generator().manual_seed(1))
    columns, device = sum(whole.num_sampled_nodes[:-1]), whole.edge_index.device
    index = whole.edge_index.cpu()
    colptr = torch.bincount(index[1], minlength=columns).cumsum(0)
    colptr = torch.cat([colptr.new_zeros(1), colptr])
    cut = cut_batch(whole.n_id.cpu(), whole.num_sampled_nodes, colptr, index[0], owner, parts, part)
    batch = Data()
    for name, value in whole.to_dict().items():
        if isinstance(value, Tensor) and value.dim() > 0 and name != "edge_index":
            if value.size(0) == whole.num_nodes:
                value = value[cut.local.to(device)]
            elif value.size(0) == index.size(1):
                value = value[cut.edge.to(device)]
        batch[name] = value
    degrees = cut.colptr.diff()
    col = torch.arange(len(degrees)).repeat_interleave(degrees)
    batch.edge_index = torch.stack([cut.row, col]).to(device)
    batch.num_nodes, batch.batch_size = len(cut.local), cut.num_nodes[0]
    batch.num_sampled_nodes, batch.num_sampled_edges = cut.num_nodes, cut.num_edges
    batch.shuffle_index = ShuffleIndex(parts, part, cut.sent.to(device), cut.num_sent, cut.num_received)
    if with_halo:
        batch.x_halo = whole.x[cut.halo.to(device)]
        batch.shuffle_index = batch.shuffle_index.with_halo_of(batch.x)
    return batch, cut.local.to(device)
