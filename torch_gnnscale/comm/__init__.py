"""How ranks talk: mesh, rendezvous, liveness, steps with their headers, exchanges, and memory that ranks read of each
other. The loader and all that lies above it use this package alone."""

from .exchange import Exchange, Traffic
from .mesh import Grid, RowGroup, Transport

__all__ = ["Exchange", "Grid", "RowGroup", "Traffic", "Transport"]
