"""Twins of the prefetch buffer's policies, by their definitions: dictionaries, and real numbers as fractions."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations

import torch

from torch_gnnscale.distributed.policies import Policy


def by_degree(halo: list[int], degree: list[int]) -> list[int]:
    """The halo by falling out-degree, then by rising id."""
    return sorted(halo, key=lambda node: (-degree[halo.index(node)], node))


class StaticTwin:
    """The halo's largest out-degrees."""

    def __init__(self, capacity: int, halo: list[int], degree: list[int]) -> None:
        self.kept = set(by_degree(halo, degree)[:capacity])

    def step(self, ids: set[int]) -> set[int]:
        """What is fetched."""
        return ids - self.kept


class MassiveGNNTwin:
    """Algorithm 2 of the paper with S_A counted in every step and <= for <: every score is decayed as it says."""

    def __init__(self, capacity: int, halo: list[int], degree: list[int], gamma: Fraction, delta: int) -> None:
        self.gamma, self.delta, self.alpha = gamma, delta, gamma**delta
        self.order = by_degree(halo, degree)
        self.eviction = {node: Fraction(1) for node in self.order[:capacity]}
        self.access = {node: Fraction(0) for node in self.order}
        self.steps = 0

    @property
    def kept(self) -> set[int]:
        return set(self.eviction)

    def step(self, ids: set[int]) -> set[int]:
        self.steps += 1
        before = self.kept
        for node in before - ids:
            self.eviction[node] *= self.gamma
        for node in ids - before:
            if node in self.access:
                self.access[node] += 1
        fetched = ids - before
        if self.steps % self.delta == 0:
            rank = self.order.index
            leave = [node for node in before if self.eviction[node] <= self.alpha]
            leave.sort(key=lambda node: (self.eviction[node], -rank(node)))
            enter = [node for node in self.order if node not in before and self.access[node] > 0]
            enter.sort(key=lambda node: (-self.access[node], rank(node)))
            for gone, new in zip(leave, enter, strict=False):
                self.access[gone] = self.eviction.pop(gone)
                self.eviction[new] = self.access[new]
                fetched = fetched | {new}
        return fetched


class LookaheadTwin:
    """Looks through the next batches for each row. ``batches``: of the run; ``window``: how many are looked through."""

    def __init__(self, capacity: int, batches: list[set[int]], window: int) -> None:
        self.capacity, self.batches, self.window = capacity, batches, window
        self.last: dict[int, int] = {}
        self.kept: set[int] = set()
        self.steps = 0

    def step(self, ids: set[int]) -> set[int]:
        assert ids == self.batches[self.steps]
        self.steps += 1
        ahead = self.batches[self.steps : self.steps + self.window]
        fetched = ids - self.kept
        self.last.update(dict.fromkeys(ids, self.steps))

        def worth(node: int) -> tuple:
            uses = [number for number, batch in enumerate(ahead) if node in batch]
            return (0, uses[0], node in fetched, node) if uses else (1, -self.last[node], node in fetched, node)

        self.kept = set(sorted(self.kept | ids, key=worth)[: self.capacity])
        return fetched


def fewest_misses(batches: list[set[int]], capacity: int) -> int:
    """Belady's MIN, by trying everything that may be kept after each batch."""
    least = {frozenset[int](): 0}
    for batch in batches:
        after: dict[frozenset[int], int] = {}
        for kept, misses in least.items():
            have = sorted(kept | batch)
            for choice in combinations(have, min(capacity, len(have))):
                chosen = frozenset(choice)
                after[chosen] = min(after.get(chosen, 1 << 30), misses + len(batch - kept))
        least = after
    return min(least.values())


def ids_of(batch: set[int]) -> torch.Tensor:
    """A batch as policies take it."""
    return torch.tensor(sorted(batch), dtype=torch.int64)


def played(policy: Policy, batches: list[set[int]], lazily: bool = False) -> Iterator[tuple[set[int], set[int]]]:
    """What a policy fetches in each step, and what the slots hold after it; checks that each step fits together.

    ``lazily``: the policy is never told to update.
    """
    start = policy.start().tolist()
    assert start == sorted(set(start))
    assert len(start) <= policy.capacity
    slots: list[int | None] = [*start, *[None] * (policy.capacity - len(start))]
    told = 0
    tensors = [ids_of(batch) for batch in batches]
    for number, ids in enumerate(tensors):
        last = len(batches) if policy.window == "epoch" else min(len(batches), number + 1 + policy.window)
        for later in tensors[told:last]:
            policy.announce(later)
        told = max(told, last)
        step = policy.step(ids)
        assert [slots[slot] for slot in step.slot.tolist()] == ids[step.hit].tolist()
        fetched = step.fetch.tolist()
        missed = ids[~step.hit].tolist()
        assert fetched == sorted({*missed, *step.enter.tolist()})
        assert not set(fetched) & set(slots)
        assert [fetched[at] for at in step.missed.tolist()] == missed
        assert step.enter.tolist() == sorted(step.enter.tolist()) == [fetched[at] for at in step.source.tolist()]
        assert len(set(step.at.tolist())) == len(step.at) == len(step.enter)
        if not lazily:
            policy.update()
        for node, slot in zip(step.enter.tolist(), step.at.tolist(), strict=True):
            slots[slot] = node
        held = [node for node in slots if node is not None]
        assert len(held) == len(set(held))
        yield set(fetched), set(held)
