"""Which nodes or edges are for training, validation and testing."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from torch import Tensor

from . import ops
from ._user import warn
from .ops.arguments import as_tensor, check_int
from .random import Purpose, batch_key

SUBSETS = ("train", "val", "test")


def by_time(data: Any, of: Any, time: str = "time", val: float = 0.1, test: float = 0.1) -> dict[str, Tensor]:
    """The latest nodes or edges are for testing, those before them for validation, and all earlier ones for training.

    Of n sorted times, counted from 0, test begins at number n - floor(n test), and val at number n - floor(n test) -
    floor(n val). All entries of one time are in the same split, so a split may be larger than asked for; a warning
    names a split that gets none.

    Args:
        data: a Data, a HeteroData, or a pair of a FeatureStore and a GraphStore.
        of: a relation or a type of nodes; None: the edges of a Data, or of a pair without types.
        time: the attribute with the times: numbers of any kind, shape [n].
        val: the share for validation, from 0 to 1.
        test: the share for testing; both together are below 1.

    Returns:
        ``train``, ``val`` and ``test``: bool, shape [n].

    Raises:
        TypeError: shares that are no numbers.
        ValueError: no such attribute, another shape, a time that is NaN, or shares of 1 or more.
    """
    _check_shares(val, test)
    name = time if of is None else f"{of}.{time}"
    times = as_tensor(name, _attribute(data, of, time, name))
    if times.dim() != 1:
        raise ValueError(f"{name}: expected shape [n], found {list(times.shape)}")
    if times.is_floating_point() and bool(times.isnan().any()):
        raise ValueError(f"{name}: expected a time everywhere, found NaN at {int(times.isnan().nonzero()[0])}")
    in_order = times.sort().values
    begun = [
        times >= in_order[at] if at < len(times) else torch.zeros_like(times, dtype=torch.bool)
        for at in first_of(len(times), val, test)
    ]
    masks = {"train": ~begun[0] & ~begun[1], "val": begun[0] & ~begun[1], "test": begun[1]}
    for subset, share in (("train", 1.0), ("val", val)):
        if int(len(times) * share) and not bool(masks[subset].any()):
            warn(f"{name}: nothing is left for {subset}, because equal times are in one split")
    return masks


def random(count: int, val: float = 0.1, test: float = 0.1, seed: int = 0) -> dict[str, Tensor]:
    """Random nodes, or edges: floor(n test) for testing and floor(n val) for validation.

    Args:
        count: n, how many there are.
        val: the share for validation, from 0 to 1.
        test: the share for testing; both together are below 1.
        seed: equal seeds draw equal splits.

    Returns:
        ``train``, ``val`` and ``test``: bool, shape [n].
    """
    return stratified(torch.zeros(check_int("count", count), dtype=torch.int64), val, test, seed)


def stratified(y: Tensor, val: float = 0.1, test: float = 0.1, seed: int = 0) -> dict[str, Tensor]:
    """Random nodes: of n labelled ones, floor(n test) for testing and floor(n val) for validation. In each class these
    shares are the same, but for at most two nodes.

    Args:
        y: the class of each node: integers, shape [N]; nodes of negative classes are in no split.
        val: the share for validation, from 0 to 1.
        test: the share for testing; both together are below 1.
        seed: equal seeds draw equal splits.

    Returns:
        ``train``, ``val`` and ``test``: bool, shape [N].

    Raises:
        TypeError: classes that are no integers, or shares that are no numbers.
        ValueError: another shape, or shares of 1 or more.
    """
    _check_shares(val, test)
    y = as_tensor("y", y)
    if y.dim() != 1:
        raise ValueError(f"y: expected shape [N], found {list(y.shape)}")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise TypeError(f"y: expected integers, found {str(y.dtype).removeprefix('torch.')}")
    order = ops.permutation(len(y), batch_key(seed, purpose=Purpose.GENERATE)).to(y.device)
    order = order[y[order].sort(stable=True).indices]  # by class; of a class in random order
    left = order[y[order] >= 0]
    masks = {subset: torch.zeros(len(y), dtype=torch.bool, device=y.device) for subset in SUBSETS}
    for subset, count in (("test", int(len(left) * test)), ("val", int(len(left) * val))):
        taken = torch.arange(len(left) + 1, device=y.device) * count // max(len(left), 1)
        chosen = taken.diff() > 0  # count of them, evenly spaced
        masks[subset][left[chosen]] = True
        left = left[~chosen]
    masks["train"][left] = True
    return masks


def first_of(count: int, val: float, test: float) -> tuple[int, int]:
    """The places in the order of times of the first item for validation and of the first for testing."""
    testing, validating = int(count * test), int(count * val)
    return count - testing - validating, count - testing


def _check_shares(val: float, test: float) -> None:
    for name, share in (("val", val), ("test", test)):
        if not isinstance(share, Real):
            raise TypeError(f"{name}: expected a number, found {type(share).__name__}")
        if not 0 <= share < 1:
            raise ValueError(f"{name}: expected a share of 0 to 1, found {share!r}")
    if val + test >= 1:
        raise ValueError(f"val, test: expected shares below 1 together, found {val + test:g}")


def _attribute(data: Any, of: Any, attribute: str, name: str) -> Any:
    """The values of an attribute of all nodes of a type or edges of a relation."""
    if isinstance(data, tuple):
        found = data[0].get_tensor(group_name=of, attr_name=attribute, index=None)
    else:
        found = (data if of is None else data[of]).to_dict().get(attribute)
    if found is None:
        raise ValueError(f"{name}: expected an attribute with times, found none")
    return found
