"""Attributes of an object that are set for a while."""

from __future__ import annotations

from typing import Any

_ABSENT = object()


class Shadow:
    """Sets attributes of one object and restores what it had before, without its ``__setattr__``."""

    def __init__(self, of: object) -> None:
        self.attributes = vars(of)
        self.before: dict[str, Any] = {}

    def set(self, name: str, value: Any) -> None:
        """Sets an attribute until :meth:`restore`."""
        self.before.setdefault(name, self.attributes.get(name, _ABSENT))
        self.attributes[name] = value

    def restore(self) -> None:
        """Attributes are what they were before the first :meth:`set`."""
        for name, value in self.before.items():
            if value is _ABSENT:
                del self.attributes[name]
            else:
                self.attributes[name] = value
        self.before.clear()
