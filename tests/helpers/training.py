"""A model that is trained in a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


def trained(
    model: nn.Module, batches: Callable[[], Iterable[Any]], loss: Callable[[Any], Tensor], epochs: int
) -> dict[str, Tensor]:
    """The weights of a model after epochs of gradient descent on ``loss(batch)``."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for batch in batches():
            optimizer.zero_grad()
            loss(batch).backward()
            optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}
