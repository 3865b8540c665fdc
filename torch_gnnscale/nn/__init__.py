"""Models on mini-batches."""

from .narrow import Narrowed, narrow
from .weigh import Weighed, weigh

__all__ = ["Narrowed", "Weighed", "narrow", "weigh"]
