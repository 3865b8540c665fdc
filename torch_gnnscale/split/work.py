"""What a rank loads, computes and exchanges for its shares of batches (GSplit, section 7)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Moved:
    """Rows of nodes that a rank exchanged with the others for one purpose."""

    sent: int = 0
    received: int = 0


@dataclass
class Work:
    """What one rank has done so far."""

    batches: int = 0
    """Of how many batches it had a share."""
    rows: int = 0
    """Own nodes of these shares: this rank alone has loaded their features."""
    halo: int = 0
    """Rows of other ranks' features that came with the batches, in ``x_halo``."""
    edges: dict[str, int] = field(default_factory=dict)
    """By layer: the edges into own nodes that it computed, forward; with the self loops that a layer adds."""
    shuffled: dict[str, Moved] = field(default_factory=dict)
    """By purpose, as in :attr:`torch_gnnscale.split.Parallelized.traffic`: ``forward NAME`` are rows that the layer
    NAME reads, ``backward NAME`` their gradients, ``forward degrees`` numbers of nodes."""
