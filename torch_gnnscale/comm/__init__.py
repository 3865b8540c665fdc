"""How ranks talk: mesh, rendezvous, liveness, steps with their headers, exchanges, and memory that ranks read of each
other. The loader and all that lies above it use this package alone."""

from .exchange import Exchange, Traffic
from .mesh import Backend, Consecutive, Grid, Ranks, RowGroup
from .steps import Steps

__all__ = ["Backend", "Consecutive", "Exchange", "Grid", "Ranks", "RowGroup", "Steps", "Traffic"]
