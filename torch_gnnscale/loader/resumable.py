"""The epochs of a loader, its position in an epoch, and the state from which an equal loader resumes."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import SequentialSampler
from torch_geometric.sampler import BaseSampler

from ..ops.arguments import check_int
from ..random import ids_key
from ..sampler.base import KeyedSampler
from .adapter import PyGLoaderAdapter
from .positions import KeyedShuffle
from .sharing import Sharing

OWN_NAMES = frozenset(
    ("format", "seed", "epoch", "batch", "seed_order", "ranks", "parts", "consecutive", "key_of_owners", "uneven",
     "bulk", "inputs", "input_type", "key_of_inputs", "batch_size", "drop_last", "order", "negatives")
)  # fmt: skip
"""The entries of a loader's state besides its sampler's options."""


def options_of(sampler: BaseSampler) -> dict[str, Any]:
    """The options of a sampler, which are entries of a loader's state; none if it is no KeyedSampler.

    Raises:
        ValueError: an option has the name of an entry of the loader's own.
    """
    options = sampler.options() if isinstance(sampler, KeyedSampler) else {}
    if taken := sorted(OWN_NAMES.intersection(options)):
        raise ValueError(
            f"options() of a {type(sampler).__name__}: expected other names than those of a loader's own entries in "
            f"its state, found {taken}"
        )
    return options


class ResumableLoader(PyGLoaderAdapter):
    """A loader whose batches are functions of its seed, the epoch and the number of the batch."""

    input_data: Any
    _sampler: BaseSampler
    _sharing: Sharing

    def _ids(self, inputs: Any) -> Tensor:
        """The ids of ``inputs``. Their hash is the key of inputs that have no batch number."""
        raise NotImplementedError

    @property
    def seed(self) -> int:
        """The seed of all draws and of the order of inputs."""
        return self._seed_order.seed

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next ``iter()``; later ones take the epochs after it.

        Raises:
            TypeError, ValueError: not an integer of at least 0.
        """
        self._seed_order.set_next(check_int("epoch", epoch))

    def state_dict(self) -> dict[str, Any]:
        """The position of the latest iterator, for :meth:`load_state_dict` of an equal loader.

        A batch counts as soon as it has been delivered. The values are plain, to be saved with a checkpoint.
        """
        return {**self._seed_order.state(), **self._fingerprint()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes: the next ``iter()`` delivers the rest of the state's epoch, later ones the epochs after it.

        ``num_workers`` and ``prefetch`` may differ. A ``sampler`` or ``batch_sampler`` of the user is iterated from its
        beginning, and the batches already delivered are skipped; it must give the same order again.

        Raises:
            ValueError: not a state, or the state of a loader with other inputs, batch size, order or sampling options.
        """
        before = self.seed
        self._seed_order.load(state, self._fingerprint())
        if self.seed != before:
            self._iterator = None  # its worker processes, if they persist, have the seed before

    def _fingerprint(self) -> dict[str, Any]:
        """What decides the batches besides the seed, as plain values; feature rows and edges are not included."""
        order = "input" if isinstance(self.sampler, SequentialSampler) else "user's"
        return {
            **self._seed_order.options(),  # first: other differences may be consequences of these
            "inputs": len(self.dataset),  # type: ignore[arg-type]
            "input_type": None if self.input_data.input_type is None else str(self.input_data.input_type),
            "key_of_inputs": self._key_of_inputs,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "order": "shuffled" if isinstance(self.sampler, KeyedShuffle) else order,
            **options_of(self._sampler),
            **self._sharing.said_of_inputs,
        }

    @cached_property
    def _key_of_inputs(self) -> int:
        """A hash of the inputs' ids and times."""
        ids, time = self._ids(self.input_data), self.input_data.time
        if time is None:
            return ids_key(0, ids)
        bits = time.double().view(torch.int64) if time.is_floating_point() else time.long()
        return ids_key(0, torch.cat([ids.view(-1), bits]))
