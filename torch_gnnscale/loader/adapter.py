"""What PyG's and torch's loader classes must be told, or must not see, so that ours can be subclasses of theirs.

All of it is here, with its reason:

- The bases are (KeyedLoader, PyG's loader): PyG's loaders define ``collate_fn``, ``filter_fn`` and ``__iter__``, which
  ours replace, and pass the rest on to torch's DataLoader, which asks for ``_index_sampler`` and ``dataset``.
- PyG's loaders refuse times without ``time_attr``, although their given sampler knows about times: "" passes.
- DataLoader forbids replacing its dataset: PyG gives it a range, which does not know the batches that travel with
  their number; so ``__dict__`` is written.
- ``_index_sampler`` is where DataLoader, also in worker processes, takes positions from: numbered batches come there.
- PyG's loaders read ``input_nodes`` or ``edge_label_index`` in their constructor, already checked and translated; the
  attribute is set back to what the user gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import DataLoader
from torch_geometric.sampler import BaseSampler

from .order import NumberedBatch, NumberedBatches, SeedOrder


class InputPositions(Sequence):
    """The positions 0 .. size as a dataset for torch's DataLoader: a batch of them is the batch as it was numbered."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, position: Any) -> Any:
        return range(self.size)[position]

    def __getitems__(self, batch: NumberedBatch) -> NumberedBatch:
        """What DataLoader's fetcher calls for a whole batch."""
        return batch


class PyGLoaderAdapter(DataLoader):
    """To stand before one of PyG's loaders among the bases of a class."""

    _order: SeedOrder

    def __init__(
        self, data: Any, num_neighbors: Any, neighbor_sampler: BaseSampler, input_name: str, inputs: Any,
        time_name: str, time: Any, **kwargs: Any,
    ) -> None:  # fmt: skip
        """Calls PyG's constructor.

        Args:
            input_name, inputs: PyG's argument for seeds or links, and what it gets.
            time_name, time: PyG's argument for their times, and these or None.
        """
        inputs_and_times = {input_name: inputs, time_name: time, "time_attr": None if time is None else ""}
        super().__init__(data, num_neighbors, neighbor_sampler=neighbor_sampler, **inputs_and_times, **kwargs)  # type: ignore[call-arg]
        self.__dict__["dataset"] = InputPositions(len(self.dataset))  # type: ignore[arg-type]

    @property
    def _index_sampler(self) -> NumberedBatches:
        return self._order.numbered(super()._index_sampler)
