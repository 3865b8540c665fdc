"""How ranks talk: mesh, rendezvous, liveness, steps with their headers, exchanges, and how rows travel: over Gloo, over
NCCL, or through memory of one machine. The loader and all that lies above it use this package alone."""

from .exchange import Exchange, Traffic
from .mesh import Grid, RowGroup, Transport

__all__ = ["Exchange", "Grid", "RowGroup", "Traffic", "Transport"]
