"""RelBench's loader for recommendation, with its arguments and batches, over our samplers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import GraphStore as PyGGraphStore
from torch_geometric.data import HeteroData
from torch_geometric.sampler.base import SubgraphType
from torch_geometric.typing import NodeType

from ..loader import NeighborLoader
from ..ops.arguments import check_int
from ..random import Purpose, batch_key, draw_seed
from ..sampler import NeighborSampler
from ..sampler.anchors import NodeLists
from ..sampler.fanouts import NumNeighborsLike

_SEEDS = (1 << 62) - 1  # seeds of loaders lie in [0, 2^62)


class LinkNeighborLoader:
    """Triples of batches: the sources, a positive destination of each, and a negative one; the arguments and batches of
    ``relbench.modeling.loader.LinkNeighborLoader``, without pyg-lib.

    In each epoch, each source gets one positive, drawn uniformly from its list, and one negative, drawn uniformly from
    all destinations. Each of the three batches is a HeteroData of :class:`torch_gnnscale.NeighborLoader`: disjoint
    trees of its ``batch_size`` seeds, and their ``seed_time``; ``input_id`` has the seeds' ids, as RelBench's has.
    Every ``iter()`` starts the next epoch. Order, positives, negatives and samples are functions of (``seed``, epoch).
    The AnchorLoader of :func:`torch_gnnscale.relational.task_loaders` makes one batch of the three, and resumes.

    Args:
        data: a HeteroData, or a pair of a FeatureStore and a GraphStore.
        num_neighbors: fanout of each hop, or a list per edge type.
        src_nodes: node type and ids of the sources, shape [n].
        dst_nodes: node type and a sparse CSR tensor; the columns of row i are the positives of the i-th source.
        num_dst_nodes: negatives are drawn from the ids below it.
        src_time: a time for each source, shape [n], which holds for its positive and negative, too. None: none.
        share_same_time: a batch has sources of one time; batches that would not be full are left out.
        subgraph_type, temporal_strategy, time_attr: as of :class:`torch_gnnscale.NeighborLoader`.
        seed: of all draws. None: drawn from torch's generator.
        batch_size, shuffle, drop_last: as of a DataLoader. With ``share_same_time`` batches are always shuffled.
        **kwargs: the other arguments of :class:`torch_gnnscale.NeighborLoader`, for each of the three.

    Raises:
        TypeError: positives that are not sparse CSR; ``sampler`` or ``batch_sampler``.
        ValueError: other numbers of lists or times than of sources; a source without positives; ``share_same_time``
            without times.
        IndexError: a positive that is not below ``num_dst_nodes``.
    """

    def __init__(
        self,
        data: HeteroData | tuple[PyGFeatureStore, PyGGraphStore],
        num_neighbors: NumNeighborsLike,
        src_nodes: tuple[NodeType, Tensor],
        dst_nodes: tuple[NodeType, Tensor],
        num_dst_nodes: int,
        src_time: Tensor | None = None,
        share_same_time: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        *,
        seed: int | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        **kwargs: Any,
    ) -> None:
        if given := [name for name in ("sampler", "batch_sampler") if kwargs.get(name) is not None]:
            raise TypeError(f"{', '.join(given)}: expected none, because the order is this loader's own")
        for name in ("sampler", "batch_sampler", "dataset", "collate_fn"):  # Lightning passes the last two
            kwargs.pop(name, None)
        self.data, self.src_nodes, self.dst_nodes, self.num_dst_nodes = data, src_nodes, dst_nodes, num_dst_nodes
        self.src_time, self.share_same_time = src_time, share_same_time
        self.batch_size, self.shuffle = check_int("batch_size", batch_size, 1), shuffle
        self.drop_last = drop_last or share_same_time
        self.seed = draw_seed() if seed is None else check_int("seed", seed)
        self._epoch = 0
        count, lists = src_nodes[1].numel(), dst_nodes[1]
        if lists.layout != torch.sparse_csr:
            raise TypeError(f"dst_nodes: expected a sparse CSR tensor, found {lists.layout}")
        if lists.size(0) != count:
            raise ValueError(f"dst_nodes: expected {count} rows, as many as sources, found {lists.size(0)}")
        if src_time is not None and src_time.shape != (count,):
            raise ValueError(f"src_time: expected shape [{count}], a time for each source, found {[*src_time.shape]}")
        if share_same_time and src_time is None:
            raise ValueError("share_same_time=True: expected src_time, found None")
        rowptr, col = lists.crow_indices(), lists.col_indices()
        if len(empty := (rowptr.diff() == 0).nonzero()):
            raise ValueError(f"dst_nodes: expected a positive of each source, found none in row {int(empty[0])}")
        if col.numel() and not 0 <= int(col.min()) <= int(col.max()) < num_dst_nodes:
            raise IndexError(
                f"dst_nodes: expected ids in [0, {num_dst_nodes}), found {int(col.min())} to {int(col.max())}"
            )
        self._positives = NodeLists(rowptr.long(), col, num_dst_nodes)
        self._sampler = NeighborSampler(
            data, num_neighbors, subgraph_type, disjoint=True, temporal_strategy=temporal_strategy, time_attr=time_attr
        )
        self._fanouts, self._time_attr, self._kwargs = num_neighbors, time_attr, kwargs
        same = src_time if share_same_time and src_time is not None else torch.zeros(count)
        self._sizes: list[int] = same.unique(return_counts=True)[1].tolist()  # of groups of which batches are parts

    def __len__(self) -> int:
        most = 0 if self.drop_last else self.batch_size - 1
        return sum((size + most) // self.batch_size for size in self._sizes)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next ``iter()``; later ones take the epochs after it."""
        self._epoch = check_int("epoch", epoch)

    def __iter__(self) -> Iterator[tuple[HeteroData, HeteroData, HeteroData]]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        count = self.src_nodes[1].numel()
        key = batch_key(self.seed, epoch, purpose=Purpose.POSITIVE)
        positives = self._positives.draw(torch.arange(count), 1, key, None)[0]
        negatives = torch.randint(self.num_dst_nodes, (count,), generator=self._generator(epoch, Purpose.NEGATIVE))
        batches = self._batches(epoch)
        of = self.dst_nodes[0]
        seeds = (
            (Purpose.SAMPLE, self.src_nodes),
            (Purpose.POSITIVE, (of, positives)),
            (Purpose.NEGATIVE, (of, negatives)),
        )
        yield from zip(*(self._loader(*each, epoch, batches) for each in seeds), strict=True)

    def _generator(self, epoch: int, purpose: Purpose) -> torch.Generator:
        return torch.Generator().manual_seed(batch_key(self.seed, epoch, purpose=purpose) & _SEEDS)

    def _batches(self, epoch: int) -> list[list[int]]:
        """The positions of the sources of each batch of an epoch."""
        generator, count = self._generator(epoch, Purpose.SHUFFLE), self.src_nodes[1].numel()
        by_chance = self.shuffle or self.share_same_time
        order = torch.randperm(count, generator=generator) if by_chance else torch.arange(count)
        if self.share_same_time:
            assert self.src_time is not None
            order = order[self.src_time[order].sort(stable=True).indices]
        batches = [batch.tolist() for group in order.split(self._sizes) for batch in group.split(self.batch_size)]
        if self.drop_last:
            batches = [batch for batch in batches if len(batch) == self.batch_size]
        if self.share_same_time:
            batches = [batches[at] for at in torch.randperm(len(batches), generator=generator).tolist()]
        return batches

    def _loader(
        self, purpose: Purpose, seeds: tuple[NodeType, Tensor], epoch: int, batches: list[list[int]]
    ) -> NeighborLoader:
        """The loader of one of the three batches of a triple. Its own seed keeps the draws of the three independent."""
        loader = NeighborLoader(
            self.data,
            self._fanouts,
            seeds,
            self.src_time,
            neighbor_sampler=self._sampler,
            time_attr=self._time_attr,
            input_id=seeds[1],
            seed=batch_key(self.seed, purpose=purpose) & _SEEDS,
            batch_sampler=batches,
            **self._kwargs,
        )
        loader.set_epoch(epoch)
        return loader
