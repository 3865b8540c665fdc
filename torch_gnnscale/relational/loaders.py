"""Loaders of the splits of a task, whose seeds are the rows of its tables of labels, and RelBench's loader for
recommendation, over our samplers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import GraphStore as PyGGraphStore
from torch_geometric.data import HeteroData
from torch_geometric.sampler import NegativeSampling
from torch_geometric.sampler.base import SubgraphType
from torch_geometric.transforms import Compose
from torch_geometric.typing import NodeType

from .._user import warn
from ..loader import AnchorLoader, NeighborLoader
from ..ops.arguments import check_int
from ..random import Purpose, batch_key, draw_seed
from ..sampler import NeighborSampler
from ..sampler.anchors import NodeLists
from ..sampler.fanouts import NumNeighborsLike
from .database_graph import NEVER, check_keys, check_same_unit, seconds

SPLITS = ("train", "val", "test")
OF_ANCHORS = ("num_positives", "neg_sampling", "exclude_seed_edges", "strict_negatives")
"""The arguments of AnchorLoader that only the split ``train`` of a recommendation task takes."""


def seed_times(data: HeteroData, table: Any, name: str, nodes: Tensor, of: str) -> Tensor | None:
    """The times of the rows of a task's table, in seconds, rounded down; None without times.

    Args:
        data: the database's graph.
        table: RelBench's.
        name: what errors call it.
        nodes: the seed of each row, a row of the table ``of``.
        of: a table of the database.

    Raises:
        ValueError: a missing time, or times in another unit than those of the database's rows.
    """
    if table.time_col is None:
        return None
    name = f"{name}.{table.time_col}"
    time = seconds(table.df[table.time_col], name, "down")
    if len(missing := (time == NEVER).nonzero()):
        raise ValueError(f"{name}: expected a time in each row, found none in row {int(missing[0])}")
    rows = {of: store.time for of, store in data.node_items() if "time" in store}
    check_same_unit(rows, time, name)
    if of in rows and (late := int((rows[of][nodes] > time).sum())):
        warn(f"{name}: {late} of {len(time)} times are earlier than those of their own rows of {of}")
    return time


def entity_loaders(
    task: Any, data: HeteroData, num_neighbors: NumNeighborsLike, transform: Callable | None = None,
    splits: Sequence[str] = SPLITS, **kwargs: Any,
) -> dict[str, Any]:  # fmt: skip
    """A NeighborLoader of each split of an entity task: ``y`` are the labels of the seeds."""
    from relbench.modeling.graph import get_node_train_table_input

    loaders = {}
    for split in splits:
        table, name = task.get_table(split), f"{task.name}, {split}"
        _check_entities(data, table.df[task.entity_col], f"{name}: {task.entity_col}", task.entity_table)
        given = get_node_train_table_input(table, task)
        time = seed_times(data, table, name, given.nodes[1], task.entity_table)
        steps = [step for step in (given.transform, transform) if step is not None]
        loaders[split] = _seeds(data, num_neighbors, given.nodes, time, split, transform=_in_turn(steps), **kwargs)
    return loaders


def _in_turn(steps: list[Callable]) -> Callable | None:
    """What calls all of them; PyG's Compose copies each batch, which one alone does not need."""
    return Compose(steps) if len(steps) > 1 else steps[0] if steps else None


def recommendation_loaders(
    task: Any, data: HeteroData, num_neighbors: NumNeighborsLike, splits: Sequence[str] = SPLITS, **kwargs: Any
) -> dict[str, Any]:
    """The loaders of a recommendation task: an AnchorLoader of ``train``, whose anchors are sources at a time and
    positives their destinations then; of ``val`` and ``test`` a NeighborLoader of the sources, in the order of the
    table, and one of all destinations, ``val_targets`` and ``test_targets``; all at the split's time, as RelBench."""
    of, of_dst, column = task.src_entity_table, task.dst_entity_table, task.dst_entity_col
    only = {name: kwargs.pop(name) for name in OF_ANCHORS if name in kwargs}
    loaders: dict[str, Any] = {}
    for split in splits:
        table, name = task.get_table(split), f"{task.name}, {split}"
        _check_entities(data, table.df[task.src_entity_col], f"{name}: {task.src_entity_col}", of)
        nodes = torch.from_numpy(table.df[task.src_entity_col].to_numpy(np.int64, copy=True))
        time = seed_times(data, table, name, nodes, of)
        if split == "train":
            rowptr, col = _lists(data, table.df[column], f"{name}: {column}", of_dst)
            _warn_of_late(data, rowptr, col, time, f"{name}: {column}", of_dst)
            loaders[split] = loader = AnchorLoader(
                data, num_neighbors, (of, nodes), ((of, task.name, of_dst), rowptr, col),
                anchor_time=time, time_attr=None if time is None else "time", lists_of="anchors", empty="skip",
                **{"neg_sampling": NegativeSampling("triplet"), "shuffle": True, **only, **kwargs},
            )  # fmt: skip
            if left := len(nodes) - len(loader.input_data.node):
                warn(
                    f"{name}: {column}: {left} of {len(nodes)} rows have no destination that is not later than they "
                    f"are: they are left out"
                )
            continue
        moment = None if time is None else _moment(task, split, time, name)
        for key, seeds in ((split, (of, nodes)), (f"{split}_targets", (of_dst, torch.arange(data[of_dst].num_nodes)))):
            at = None if moment is None else torch.full((len(seeds[1]),), moment)
            loaders[key] = _seeds(data, num_neighbors, seeds, at, split, **kwargs)
    return loaders


def _moment(task: Any, split: str, time: Tensor, name: str) -> int:
    """The split's time in seconds, at which RelBench reads sources and destinations of ``val`` and ``test``. Raises
    ValueError for rows of earlier times, which would see what came later."""
    of_split = task.dataset.val_timestamp if split == "val" else task.dataset.test_timestamp
    moment = int(of_split.timestamp())
    if len(early := (time < moment).nonzero()):
        row = int(early[0])
        raise ValueError(
            f"{name}: expected times from {of_split} on, the time of the split, at which all rows are read, found "
            f"{int(time[row])} seconds since 1970 in row {row}"
        )
    return moment


def _seeds(data: HeteroData, num_neighbors: Any, seeds: tuple, time: Tensor | None, split: str, **kwargs: Any) -> Any:
    return NeighborLoader(
        data, num_neighbors, seeds, input_time=time, time_attr=None if time is None else "time",
        **{"shuffle": split == "train", **kwargs},
    )  # fmt: skip


def _check_entities(data: HeteroData, column: Any, name: str, of: str) -> None:
    check_keys(column, name, of, data[of].num_nodes, missing=False)


def _lists(data: HeteroData, column: Any, name: str, of: str) -> tuple[Tensor, Tensor]:
    """(rowptr, col) of a column of lists of rows of ``of``."""
    lengths = torch.tensor([0, *map(len, column)])
    entries = column.explode()
    entries = entries[entries.notna()]
    if len(entries) != int(lengths.sum()):
        row = next(row for row, some in enumerate(column) if any(value is None or value != value for value in some))
        raise ValueError(f"{name}: expected keys of {of}, found a missing one in row {row}")
    values = entries.to_numpy(np.int64)
    wrong = np.flatnonzero((values < 0) | (values >= data[of].num_nodes))
    rowptr = lengths.cumsum(0)
    if len(wrong):
        row = int(torch.searchsorted(rowptr, int(wrong[0]), right=True)) - 1
        raise ValueError(
            f"{name}: expected keys of {of}, from 0 to {data[of].num_nodes - 1}, found {values[wrong[0]]} in row {row}"
        )
    return rowptr, torch.from_numpy(values.copy())


def _warn_of_late(data: HeteroData, rowptr: Tensor, col: Tensor, time: Tensor | None, name: str, of: str) -> None:
    """Warns of destinations that are never drawn because they are later than their anchors."""
    if time is None or "time" not in data[of]:
        return
    if late := int((data[of].time[col] > time.repeat_interleave(rowptr.diff())).sum()):
        warn(f"{name}: {late} of {len(col)} destinations are later than the times of their rows: they are not drawn")


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
