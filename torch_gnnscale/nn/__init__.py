"""Models on mini-batches."""

from .layered import Weighed, weigh
from .narrow import Narrowed, narrow

__all__ = ["Narrowed", "Weighed", "narrow", "weigh"]
