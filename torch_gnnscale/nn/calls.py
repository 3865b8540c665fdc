"""The calls of a model's layers in their order, which say at which hop each of them is.

Numbers of rows do not tell where a hop found no node, for then the first g groups of a batch have as many nodes as the
first g + 1; nor on a rank that has none of a batch's nodes. So calls are found out on a batch that has nodes in every
group, by numbers of rows, and each later batch takes them from there. In a batch of types, a call is that of a layer
on one relation, or of a layer that takes dictionaries.
"""

from __future__ import annotations

from typing import NamedTuple

from .batches import EdgeType

MOST_KNOWN = 16
"""How many orders of calls are kept: what a model calls may depend on the batch, so that there is no end of them."""


class Read(NamedTuple):
    """The rows that a layer reads in one call."""

    nodes: tuple[str, ...] = ()
    """The arguments that have a row for each node of the batch's first groups."""
    edges: tuple[str, ...] = ()
    """The arguments that have a row for each of the batch's edges."""


class Call(NamedTuple):
    """One call of a layer."""

    title: str
    """The layer's."""
    groups: int
    """The number of first groups whose rows it gets; it returns the rows of one group less."""
    read: Read = Read()
    """Where ranks compute parts of a batch: what it reads, the same on all ranks."""
    shares: bool = False
    """Where ranks compute parts of a batch: whether another call reads the same tensor, whose halo is then exchanged
    once for all of them."""
    relations: tuple[EdgeType, ...] = (None,)
    """Whose edges it reads."""


class Calls:
    """Goes through the calls of one forward pass.

    Args:
        known: the calls; None: they are found out, and kept in ``calls``.
    """

    def __init__(self, known: list[Call] | None) -> None:
        self.finds_out = known is None
        self.calls: list[Call] = [] if known is None else known
        self.number = 0
        """Of the call that comes next."""

    def expected(self) -> str:
        """The title of the layer whose call comes next."""
        return self.calls[self.number].title if self.number < len(self.calls) else "no further layer"

    def next(self, title: str) -> Call | None:
        """The call that comes next, if it is one of the layer ``title``; else None, and it still comes next."""
        if self.number == len(self.calls) or self.calls[self.number].title != title:
            return None
        self.number += 1
        return self.calls[self.number - 1]


class Functions:
    """The functions and layers that a model called in forward passes that were compared with the whole model. A pass
    that calls others, or in another order, may compute something that was never compared."""

    def __init__(self) -> None:
        self.known: set[tuple[str, ...]] = set()
        """For each such pass, the names of what it called, in order."""
        self.names: set[str] = set()
        """All of these names."""

    def knows(self, called: list[str]) -> bool:
        """Whether a pass called the same as one before, in the same order. Once MOST_KNOWN orders are known, the order
        no longer counts: only whether it called nothing new."""
        return tuple(called) in self.known or (len(self.known) >= MOST_KNOWN and self.names.issuperset(called))

    def add(self, called: list[str]) -> None:
        """Adds a pass that was compared."""
        self.known.add(tuple(called))
        self.names.update(called)
