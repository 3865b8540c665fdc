"""A module around a model that leaves the model's names as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn


class Wrapper(nn.Module):
    """``module`` is the model itself, unchanged.

    Parameters, buffers and submodules have the names that they have in the model, and so has the ``state_dict``: what
    one of the two saves, the other loads. Attributes that this object lacks are the model's.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """This module, then the model and its submodules by their names in the model: the first two are both
        ``prefix``."""
        memo = set() if memo is None else memo
        if self not in memo:
            if remove_duplicate:
                memo.add(self)
            yield prefix, self
            yield from self.module.named_modules(memo, prefix, remove_duplicate)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The model's."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Loads a ``state_dict`` of the model's."""
        return self.module.load_state_dict(state_dict, strict, assign)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Of a module that contains this one, ``load_state_dict`` goes on to ``prefix`` + "module." with the same
        dictionary."""
        for name in [name for name in state_dict if name.startswith(prefix)]:
            state_dict[f"{prefix}module.{name.removeprefix(prefix)}"] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)
