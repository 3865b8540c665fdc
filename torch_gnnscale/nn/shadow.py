"""Attributes of an object that are set temporarily."""

from __future__ import annotations

from typing import Any

_ABSENT = object()


class Shadow:
    """Sets attributes of an object, without calling its ``__setattr__``, and restores their values from before."""

    def __init__(self, of: object) -> None:
        self.attributes = vars(of)
        self.before: dict[str, Any] = {}

    def set(self, name: str, value: Any) -> None:
        """Sets an attribute until :meth:`restore`."""
        self.before.setdefault(name, self.attributes.get(name, _ABSENT))
        self.attributes[name] = value

    def restore(self) -> None:
        """Restores the attributes as they were before the first :meth:`set`; those that were absent are deleted."""
        for name, value in self.before.items():
            if value is _ABSENT:
                del self.attributes[name]
            else:
                self.attributes[name] = value
        self.before.clear()
