"""How equally a plan divides the work of batches, and how many edges cross between its parts (GSplit, section 6.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..loader.keyed_loader import KeyedLoader
from ..text import table
from .cut_sampler import check_sampler
from .plans import Plan


class Measured(NamedTuple):
    """What each part does in b batches of L hops. Layers are in the model's order: layer 0 reads features."""

    edges: Tensor
    """edges[k, l, p]: the edges that part p computes in layer l for batch k: those into its nodes. int64, shape
    [b, L, parts]."""
    cross: Tensor
    """cross[k, l]: how many edges of layer l of batch k, in all parts, come from another part. int64, shape [b, L]."""
    rows: Tensor
    """rows[k, p]: the rows that part p loads for batch k. int64, shape [b, parts]."""

    @property
    def imbalance(self) -> Tensor:
        """max / mean of the edges of a layer over the parts; 1 where a layer has none. float64, shape [b, L]."""
        edges = self.edges.to(torch.float64)
        found = edges.amax(2) / edges.mean(2)
        return torch.where(self.edges.sum(2) > 0, found, 1.0)

    @property
    def cross_share(self) -> Tensor:
        """The share of a batch's edges, summed over layers, that cross; 0 where there are none. float64, shape [b]."""
        return self.cross.sum(1) / self.edges.sum((1, 2)).clamp(min=1).to(torch.float64)

    def table(self) -> str:
        """A text table of means over the batches, by layer."""
        lines: list[tuple[str, ...]] = [("layer", "edges per batch", "that cross", "max / mean over the parts")]
        for layer, imbalance in enumerate(self.imbalance.mean(0).tolist()):
            edges, cross = int(self.edges[:, layer].sum()), int(self.cross[:, layer].sum())
            share = 100 * cross / max(edges, 1)
            lines.append((str(layer), f"{edges / max(len(self.edges), 1):,.0f}", f"{share:.2f} %", f"{imbalance:.3f}"))
        return "\n".join(table(lines))


def measure(plan: Plan, loader: KeyedLoader, epochs: Sequence[int]) -> Measured:
    """What each part of a plan does in all batches of the given epochs; only the topology is read.

    Raises:
        TypeError, ValueError, NotImplementedError: the loader draws from another graph, or what
            :func:`torch_gnnscale.split.plan` refuses.
    """
    check_sampler(loader.keyed_sampler)
    bounds = loader.keyed_sampler.node_bounds()
    if bounds != {None: plan.num_nodes}:
        raise ValueError(f"loader: expected one of {plan.num_nodes} nodes, found {bounds}")
    owners = plan.owners_in(loader.order)
    edges, cross, rows = [], [], []
    for epoch in epochs:
        for out in loader.samples(epoch):
            owner = owners[out.node.cpu()].to(torch.int64)
            dst = owner[out.col.cpu()]
            crosses = owner[out.row.cpu()] != dst
            sizes = list(out.num_sampled_edges)  # of hop 0, which all layers compute, then 1, ...
            by_hop = [torch.bincount(some, minlength=plan.parts) for some in dst.split(sizes)]
            edges.append(torch.stack(by_hop).cumsum(0).flip(0))
            cross.append(torch.stack([some.sum() for some in crosses.split(sizes)]).cumsum(0).flip(0))
            rows.append(torch.bincount(owner, minlength=plan.parts))
    return Measured(torch.stack(edges), torch.stack(cross), torch.stack(rows))


def plot(plan: Plan, measured: Measured, file: str) -> None:
    """Draws the loads of the parts, and each batch's imbalance over its crossing edges, into an image."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    mean = max(sum(plan.loads) / plan.parts, 1e-9)
    left.bar(range(plan.parts), [load / mean for load in plan.loads])
    left.axhline(1, linestyle="--", color="gray")
    left.set(xlabel="part", ylabel="presampled load / mean", xticks=range(plan.parts))
    layers = measured.imbalance.unbind(1)
    for layer, imbalance in enumerate(layers):  # smaller points over larger ones: all show where some coincide
        size = 12 * (len(layers) - layer)
        right.scatter(100 * measured.cross_share, imbalance, s=size, label=f"layer {layer}")
    right.set(xlabel="edges that cross, % (a point per batch)", ylabel="max / mean edges of a layer")
    figure.legend(*right.get_legend_handles_labels(), loc="outside right center")
    figure.suptitle(f"{plan.parts} parts by {plan.about['weights']}")
    figure.savefig(file, dpi=120)
