"""PyG's NeighborLoader over the fused sampler, the native gather and a pipeline."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch_geometric.loader
from torch import Tensor
from torch.utils.data import SequentialSampler
from torch_geometric.data import Data
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import GraphStore as PyGGraphStore
from torch_geometric.sampler import BaseSampler, SamplerOutput
from torch_geometric.sampler.base import NumNeighbors, SubgraphType
from torch_geometric.typing import InputNodes

from .. import ops
from ..feature import FeatureStore
from ..ops.arguments import to_int
from ..random import batch_key, draw_seed, ids_key
from ..sampler import NeighborOutput, NeighborSampler
from ..sampler.neighbor import as_ids, not_implemented
from . import collate
from .batches import InputPositions, KeyedShuffle, NumberedBatch, NumberedBatches
from .pipeline import Pipeline
from .position import FORMAT, Position, check_state


class NeighborLoader(torch_geometric.loader.NeighborLoader):
    """A drop-in :class:`torch_geometric.loader.NeighborLoader`: the same arguments, batches and order of fields.

    A batch is a pure function of (graph, seeds, fanouts; ``seed``, epoch, number of the batch): the same on every run,
    with any ``prefetch`` and ``num_workers``. Every ``iter()`` is the next epoch.

    Args:
        data: a Data, or a pair of a FeatureStore and a homogeneous GraphStore, ours or anybody's. Tensors of a Data or
            of our stores are gathered ahead, in the pipeline's threads; a foreign store is asked in the thread that
            iterates.
        num_neighbors: fanout of each hop; -1 takes all neighbors, as does one that no node has as many of.
        input_nodes: seeds: ids, a mask, or None for all nodes. They may repeat; each has its own row.
        input_time: not implemented yet.
        replace: draw with replacement.
        subgraph_type: ``directional``; the others are not implemented yet.
        disjoint: not implemented yet.
        temporal_strategy: of no effect without times, which are not implemented yet.
        time_attr: not implemented yet.
        weight_attr: not implemented yet.
        transform: called on each batch in the thread that iterates, in order.
        transform_sampler_output: called on each sampler output in the thread that prepares it.
        is_sorted: ``data.edge_index`` is sorted by destination.
        filter_per_worker: with ``num_workers > 0``, where features are gathered, as in PyG.
        neighbor_sampler: a sampler to use instead of a new one; one that is not ours has randomness of its own.
        directed: PyG's older name of ``subgraph_type``.
        seed: decides every draw and the order; by default drawn from ``generator`` or torch's own generator.
        prefetch: batches in preparation while the model trains, each by a thread (at most one a core); no effect with a
            ``neighbor_sampler`` that is not ours.
        edge_layout: what a batch's edges are (see :data:`torch_gnnscale.loader.collate.EdgeLayout`); by default as
            the input's.
        **kwargs: ``input_id``, ``custom_cls`` and the arguments of :class:`torch.utils.data.DataLoader`.
            ``num_workers=0``, the default, is the fast way.

    Raises:
        NotImplementedError: an argument that is not implemented yet.
        TypeError, ValueError, IndexError: a malformed graph, fanout or seed.
    """

    def __init__(
        self,
        data: Data | tuple[PyGFeatureStore, PyGGraphStore],
        num_neighbors: NumNeighbors | list[int],
        input_nodes: InputNodes = None,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable | None = None,
        transform_sampler_output: Callable | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: BaseSampler | None = None,
        directed: bool = True,
        *,
        seed: int | None = None,
        prefetch: int = 4,
        edge_layout: collate.EdgeLayout | None = None,
        **kwargs: Any,
    ) -> None:
        if input_time is not None:
            raise not_implemented("input_time", input_time)
        if (prefetch := to_int("prefetch", prefetch)) < 0:
            raise ValueError(f"prefetch: expected at least 0, found {prefetch}")
        seed = draw_seed(kwargs.get("generator")) if seed is None else to_int("seed", seed)
        if kwargs.get("batch_size", 1) is None and kwargs.get("batch_sampler") is None:
            raise ValueError("batch_size: expected a number of seeds, found None")
        if neighbor_sampler is None:
            neighbor_sampler = NeighborSampler(
                data,
                num_neighbors,
                subgraph_type=subgraph_type,
                replace=replace,
                disjoint=disjoint,
                temporal_strategy=temporal_strategy,
                time_attr=time_attr,
                weight_attr=weight_attr,
                is_sorted=is_sorted,
                directed=directed,
            )
        self.seed = seed
        self.prefetch = prefetch
        self.edge_layout = collate.edge_layout_of(data, edge_layout)
        self._next = (0, 0)
        self._position = Position()
        self.seconds = {"sample": 0.0, "gather": 0.0}
        """Time spent so far in this process's threads, by what was done."""
        self._gather_ahead = isinstance(data, Data) or isinstance(data[0], FeatureStore)
        self._sample_ahead = isinstance(neighbor_sampler, NeighborSampler)
        if prefetch > 0 and not self._sample_ahead and kwargs.get("num_workers", 0) == 0:
            warnings.warn(
                f"prefetch={prefetch} has no effect: {type(neighbor_sampler).__name__} may keep state, so it is asked "
                f"in the thread that iterates",
                stacklevel=2,
            )
        if isinstance(data, Data):
            collate.warn_of_slow_rows(data)
            collate.move_to_huge_pages(data)

        shuffle = bool(kwargs.pop("shuffle", False))
        super().__init__(
            data,
            num_neighbors,
            input_nodes=input_nodes,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            neighbor_sampler=neighbor_sampler,
            **self._with_order(kwargs, data, input_nodes, shuffle),
        )
        if isinstance(neighbor_sampler, NeighborSampler):
            self._check_seeds(neighbor_sampler.csc.num_dst)
        # DataLoader does not let its dataset be replaced; PyG's loader gives it a range, which knows no batches.
        self.__dict__["dataset"] = InputPositions(len(self.dataset))

    def _check_seeds(self, num_nodes: int) -> None:
        """Raises unless all input nodes are ids of the graph; names them by their place in ``input_nodes``."""
        nodes = as_ids("input_nodes", self.input_data.node)
        if nodes.dim() != 1:
            raise ValueError(f"input_nodes: expected a vector or a mask, found shape {tuple(nodes.shape)}")
        if (at := ops.first_outside(nodes, num_nodes)) < 0:
            return
        given = self.input_nodes[1] if isinstance(self.input_nodes, tuple) else self.input_nodes
        if isinstance(given, Tensor) and given.dtype == torch.bool:
            raise IndexError(
                f"input_nodes[{int(nodes[at])}] is set: expected a mask of {num_nodes} nodes, found one of {len(given)}"
            )
        raise IndexError(f"input_nodes[{at}] = {int(nodes[at])} is out of range: expected nodes in [0, {num_nodes})")

    def _with_order(self, kwargs: dict[str, Any], data: Any, input_nodes: Any, shuffle: bool) -> dict[str, Any]:
        """DataLoader's arguments, with the keyed order where torch's own shuffle was asked for."""
        if not shuffle:
            return kwargs
        if kwargs.get("sampler") is not None or kwargs.get("batch_sampler") is not None:
            raise ValueError("shuffle=True: expected neither sampler nor batch_sampler beside it")
        _, nodes, _ = torch_geometric.loader.utils.get_input_nodes(data, input_nodes)
        return {**kwargs, "sampler": KeyedShuffle(range(nodes.numel()), self.seed)}

    # Order and epochs ################################################################################################

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next ``iter()``; those after it follow."""
        if epoch < 0:
            raise ValueError(f"epoch: expected at least 0, found {epoch}")
        self._next = (epoch, 0)
        self._position.jump(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Where the latest iterator is: what :meth:`load_state_dict` of an equal loader needs to go on behind it.

        A batch counts as soon as it has been delivered. Plain values, to be saved with a checkpoint.
        """
        return {
            "format": FORMAT,
            "seed": self.seed,
            "epoch": self._position.epoch,
            "batch": self._position.batch,
            **self._fingerprint(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next ``iter()`` delivers the batches that would have come next, those after it the next epochs.

        Any ``num_workers`` and ``prefetch`` give the same batches. A ``sampler`` or ``batch_sampler`` of the user's is
        asked for the epoch's order again, and what was delivered is skipped: whether it gives the same one is its own
        matter.

        Raises:
            ValueError: not a state, or one of a loader with other inputs, batches or fanouts.
        """
        check_state(state, self._fingerprint())
        self.seed = state["seed"]
        if isinstance(self.sampler, KeyedShuffle):
            self.sampler.seed = self.seed
        self._next = (state["epoch"], state["batch"])
        self._position.jump(*self._next)

    def _fingerprint(self) -> dict[str, Any]:
        """What decides the batches besides the seed, as far as it can be told in a few words."""
        order = "input" if isinstance(self.sampler, SequentialSampler) else "user's"
        ours = self.node_sampler if isinstance(self.node_sampler, NeighborSampler) else None
        return {
            "inputs": len(self.dataset),
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "order": "shuffled" if isinstance(self.sampler, KeyedShuffle) else order,
            "num_neighbors": None if ours is None else list(ours.fanouts),
            "replace": None if ours is None else ours.replace,
        }

    @property
    def _index_sampler(self) -> NumberedBatches:
        """What DataLoader draws batches of positions from, in this process and for its workers."""
        return NumberedBatches(super()._index_sampler, lambda: (self._position.epoch, self._position.batch))

    def __iter__(self) -> Iterator[Any]:
        self._position.jump(*self._next)
        self._next = (self._position.epoch + 1, 0)
        if self.num_workers > 0:
            return self._position.follow(super().__iter__())
        if self.pin_memory and not torch.cuda.is_available():
            warnings.warn("pin_memory=True has no effect: torch sees no CUDA device", stacklevel=2)
        numbered = self._index_sampler
        prefetch = self.prefetch if self._sample_ahead else 0
        pipeline = Pipeline(iter(numbered), self._prepare, self._finish, prefetch)
        return self._position.follow(pipeline)

    # From positions to batches #######################################################################################

    def collate_fn(self, index: NumberedBatch | Tensor | list[int]) -> SamplerOutput | Data:
        """Samples a batch; in a worker process that filters, also gathers its features."""
        out = self._sample(index)
        return self._finish(self._fill(out)) if self.filter_per_worker else out

    def filter_fn(self, out: SamplerOutput) -> Data:
        """Gathers a sampled batch's features, in the main process."""
        return self._finish(self._fill(out))

    def _sample(self, index: NumberedBatch | Tensor | list[int]) -> SamplerOutput:
        start = time.perf_counter()
        positions = index.positions if isinstance(index, NumberedBatch) else index
        if not isinstance(positions, Tensor):
            positions = torch.as_tensor(positions, dtype=torch.int64)
        inputs = self.input_data[positions]
        if not isinstance(self.node_sampler, NeighborSampler):
            out = self.node_sampler.sample_from_nodes(inputs)
        elif isinstance(index, NumberedBatch):
            out = self.node_sampler.sample_from_nodes(inputs, batch_key(self.seed, index.epoch, index.number))
        else:
            out = self.node_sampler.sample_from_nodes(inputs, ids_key(self.seed, inputs.node))
        self.seconds["sample"] += time.perf_counter() - start
        return out

    def _prepare(self, index: NumberedBatch) -> Any:
        out = self._sample(index)
        return self._fill(out) if self._gather_ahead else out

    def _fill(self, out: SamplerOutput) -> Data:
        """The batch with all of PyG's fields, in PyG's order, before ``transform``."""
        start = time.perf_counter()
        row, col = out.row, out.col
        if self.transform_sampler_output is not None:
            out = self.transform_sampler_output(out)
        colptr: Tensor | None
        if isinstance(out, NeighborOutput) and out.row is row and out.col is col:
            edge_index, colptr = out.edge_index, out.colptr
            assert edge_index is not None
            assert colptr is not None
        else:
            edge_index, colptr = torch.stack([out.row, out.col]), None
        permutation = self.node_sampler.edge_permutation
        edge_id = out.edge if out.edge is None or permutation is None else permutation[out.edge.to(torch.int64)]
        if colptr is None and self.edge_layout in ("EdgeIndex", "sparse_csr"):
            edge_index, colptr, edge_id = collate.sort_edges(edge_index, out.node.numel(), edge_id)

        if isinstance(self.data, Data):
            batch = collate.from_data(self.data, out, edge_id)
        else:
            batch = collate.from_store(self.data[0], out, edge_index, self.custom_cls)
        value = None
        if self.edge_layout in ("sparse_csr", "SparseTensor") and isinstance(self.data, Data):
            value = collate.edge_values(self.data, edge_id)
        device = collate.edge_device(self.data)
        edge_index, colptr = edge_index.to(device), None if colptr is None else colptr.to(device)
        collate.set_edges(batch, edge_index, colptr, out.node.numel(), self.edge_layout, value)
        if "n_id" not in batch:
            batch.n_id = out.node
        if edge_id is not None and "e_id" not in batch:
            batch.e_id = edge_id
        batch.batch = out.batch
        batch.num_sampled_nodes = out.num_sampled_nodes
        batch.num_sampled_edges = out.num_sampled_edges
        batch.input_id, batch.seed_time = out.metadata
        batch.batch_size = out.metadata[0].size(0)
        self.seconds["gather"] += time.perf_counter() - start
        return batch

    def _finish(self, batch: Data | SamplerOutput) -> Any:
        if isinstance(batch, SamplerOutput):
            batch = self._fill(batch)
        if self.transform is not None:
            batch = self.transform(batch)
        # Worker processes leave pinning to DataLoader's own thread.
        return batch.pin_memory() if self._pins_itself() else batch

    def _pins_itself(self) -> bool:
        return self.pin_memory and self.num_workers == 0 and torch.cuda.is_available()
