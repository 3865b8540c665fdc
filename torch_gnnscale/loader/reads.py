"""Reads of a store that wait for a network or a database: many are under way at once, each in a thread that waits."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch_geometric.data import FeatureStore, TensorAttr

MOST = 256
"""The most reads of one loader that are under way at once. There are no more threads than that."""


class Reads:
    """Reads the rows of a store; all attributes of a batch at once.

    Args:
        features: a store that several threads may ask at once. One that defines ``multi_get_tensor`` or
            ``_multi_get_tensor`` itself is asked for all attributes of a batch in one read. Of one with ``read_async``,
            no thread waits.
    """

    def __init__(self, features: Any) -> None:
        self.features = features
        self._together = any(
            getattr(type(features), name, None) is not getattr(FeatureStore, name)
            for name in ("multi_get_tensor", "_multi_get_tensor")
        )
        self._new_pool()

    def start(self, attrs: list[TensorAttr]) -> Callable[[], list[Any]]:
        """Starts to read attributes; the function waits for their rows and returns them, in the order of ``attrs``."""
        if hasattr(self.features, "read_async"):
            reads = [self.features.read_async(attr, attr.index) for attr in attrs]
        elif self._together:
            return self._pool().submit(self.features.multi_get_tensor, attrs).result
        else:
            reads = [self._pool().submit(self.features.get_tensor, attr) for attr in attrs]
        return lambda: [read.result() for read in reads]

    def _pool(self) -> ThreadPoolExecutor:
        """Threads of this process: a fork has none of those that were started before."""
        if self._process != os.getpid():
            self._new_pool()
        return self._threads

    def _new_pool(self) -> None:
        self._threads, self._process = ThreadPoolExecutor(MOST, "gnnscale-reads"), os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        return Reads, (self.features,)
