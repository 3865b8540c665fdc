"""The GPUs that hold rows, and the device that gathers them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import _library
from .._warn import warn
from ..memory import Budget, budget_bytes, free_on_gpu, peer_budgets, unreadable_peer
from ..ops.arguments import checked_device
from .tier_plan import TierPlan, TypedTierPlan


def devices_of(
    gpu: Budget, peers: Sequence[Budget], device: torch.device | str | int | None, whole: int
) -> tuple[Budget, Sequence[Budget], torch.device]:
    """Returns ``gpu`` and ``peers`` without the budgets of GPUs that cannot be used, and the device that gathers.

    Warns of each budget that is left out: its rows go to the next tier.

    Args:
        gpu, peers, device: the arguments of ``TieredFeatureStore.from_data``.
        whole: bytes of all features.

    Raises:
        TypeError, ValueError: wrong budgets, a device that does not exist, or a CPU with budgets for GPUs.
    """
    asked = max([budget_bytes("gpu", gpu, whole), *peer_budgets("peers", peers, whole)]) > 0
    where = torch.device("cpu") if device is None and not asked else None
    if device is not None:
        where = checked_device(device)
        if where.type == "cpu" and asked:
            raise ValueError(f"device: expected a GPU for gpu={gpu!r}, peers={list(peers)}, found cpu")
    if where is None and (state := _library.status["_CUDA"]) != "loaded":
        warn(f"gpu={gpu!r}, peers={list(peers)}: the CUDA library is {state}, so their rows go to the next tier")
        return 0, (), torch.device("cpu")
    if where is None:
        where = checked_device("cuda")
    if where.type == "cpu":
        return gpu, (), where
    if (number := unreadable_peer(where, len(peers))) is not None:
        warn(f"peers={list(peers)}: their rows are left to the next tier, for {where} cannot read GPU {number}")
        return gpu, (), where
    return gpu, peers, where


def check_room(plan: TierPlan | TypedTierPlan, device: torch.device, num_peers: int, whole_bytes: int) -> None:
    """Raises MemoryError if a GPU has too little free memory for the plan.

    Args:
        plan: the tier plan.
        device: the device that gathers; nothing is checked for a CPU.
        num_peers: the number of GPUs over which the rows of ``peers`` are interleaved.
        whole_bytes: bytes of the attributes that are not cut and lie in ``gpu``.
    """
    if device.type == "cpu":
        return
    rows = {tier.name: tier.num_bytes for tier in plan.tiers}
    wanted = {device: plan.map_bytes + whole_bytes + rows.get("gpu", 0)}
    for number in range(num_peers):
        gpu = torch.device("cuda", number)
        wanted[gpu] = wanted.get(gpu, 0) + rows.get("peers", 0) // num_peers
    for gpu, size in wanted.items():
        if size > (free := free_on_gpu(gpu, size)):
            raise MemoryError(f"{gpu}: expected {size} bytes of memory, found {free} free; lower gpu= or peers=")
