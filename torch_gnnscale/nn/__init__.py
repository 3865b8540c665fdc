"""Models on mini-batches."""

from .narrow import Narrowed, narrow

__all__ = ["Narrowed", "narrow"]
