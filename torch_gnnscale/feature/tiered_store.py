"""A FeatureStore whose rows lie in several memories, the hottest rows in the fastest memory (Data Tiering)."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData, TensorAttr
from torch_geometric.typing import NodeType
from typing_extensions import override

from .._user import on_host
from ..memory import Budget, HostArray, HostMemory, is_bytes
from ..ops.arguments import checked_device
from ..topology.csc import check_graph
from ..topology.reorder import Order, TypedOrder, by_score
from .composite import Composites
from .contract import Version
from .feature_store import FeatureStore
from .hotness import scores_of
from .tier_builder import Source, build, check_room, devices_of, ranked_by_group, saved_sources, sources_of
from .tier_plan import TierPlan, TypedTierPlan, of_types, plan_types
from .tiered_rows import Attribute, TieredRows, TierUse, gather_together, ids_asked, summed, use_by_type


class TieredFeatureStore(FeatureStore):
    """Features of nodes and edges in tiers; made by :meth:`from_data` or :meth:`open`, closed by ``with``.

    Gathered rows are on the GPU that gathers, or in host memory if none does. Rows are never changed.

    Processes share host memory and files. A forked process has them. A pickled store contains their names: it can be
    unpickled as long as the process that made or unpickled the store keeps it open and, if rows were written to disk,
    as long as the process that wrote them does. A store with rows on a GPU is pickled by torch.multiprocessing alone.
    """

    plan: TierPlan | TypedTierPlan
    """The tier plan, made before anything was allocated; of a graph with types, or with attributes of edges, one for
    each type of nodes and edges."""
    order: Order | TypedOrder | None
    """The order of the stored rows of nodes if the store is renumbered, else None. With an order, the row of the user's
    node i is asked for by the id ``order.new[i]`` (of a type ``order[node_type].new[i]``), as loaders of this package
    do if their GraphStore has the same order. Rows of edges are asked for by the user's ids."""

    def __init__(
        self,
        plan: TierPlan | TypedTierPlan,
        order: Order | TypedOrder | None,
        attributes: list[Attribute],
        memory: HostMemory,
        device: torch.device,
        folder: str | None = None,
        composites: Composites | None = None,
    ) -> None:
        """For :meth:`from_data`, :meth:`open` and pickle alone; ``folder``, if any, is deleted with the store."""
        super().__init__()
        self.__dict__.update(plan=plan, order=order, _memory=memory, _device=device)
        self.composites.update(composites or {})
        segments = [segment for entry in attributes for segment in entry.segments]
        if device.type == "cuda":
            memory.close_after(device)  # its rows, too, are freed where gathers may be queued
            if any(isinstance(segment, HostArray) for segment in segments):
                memory.pin(device)
        for attribute in attributes:
            self._tensors[attribute.key] = TieredRows(attribute, memory, device)
        gpus = {segment.device for segment in segments if isinstance(segment, Tensor)} | {device}
        for gpu in gpus - {torch.device("cpu")}:
            torch.cuda.synchronize(gpu)  # rows were written on one stream and will be read on others
        self.__dict__["_delete"] = None if folder is None else weakref.finalize(self, _delete, folder, os.getpid())

    @classmethod
    @on_host
    def from_data(  # type: ignore[override]
        cls,
        data: Data | HeteroData,
        *,
        gpu: Budget = 0,
        peers: Sequence[Budget] = (),
        host: Budget | None = None,
        disk: str | os.PathLike | None = None,
        hotness: str | Tensor | Mapping[Any, Tensor] = "weighted_reverse_pagerank",
        labelled: Tensor | Mapping[NodeType, Tensor] | None = None,
        storage: torch.dtype | None = None,
        renumbered: bool = False,
        names: Sequence[str] | None = None,
        device: torch.device | str | int | None = None,
    ) -> TieredFeatureStore:
        """Copies attributes of nodes and edges into tiers.

        The rows of all types of nodes and edges share the budgets, by falling score per byte of a row.

        Args:
            data: the graph; its tensors may be mapped files.
            gpu, peers, host: budgets (see :func:`torch_gnnscale.feature.plan_tiers`). Without a CUDA device, rows of
                ``gpu`` and ``peers`` go to the next tier, with a warning. Where less host memory is available than
                ``host`` takes: a warning if ``host`` is in bytes, a MemoryError if it is a share or the default.
            disk: an existing directory. Rows that no budget holds are written to a new directory in it,
                ``gnnscale-tiers-*``, which is deleted with the store; if the process is killed, it stays.
            hotness: a score of each node, int64 or float, shape [N], or the name of a score of
                :mod:`torch_gnnscale.feature.hotness`: ``out_degree``, ``reverse_pagerank`` or
                ``weighted_reverse_pagerank``. With types, or attributes of edges, a mapping of scores by type, which
                are compared with one another, or the name: :func:`torch_gnnscale.feature.hotness.graph_scores`, whose
                keys the mapping has.
            labelled: for ``weighted_reverse_pagerank``: the nodes that training starts from, by default
                ``data.train_mask``; with types, a mapping by type, by default all types' ``train_mask``.
            storage: float16 or bfloat16, the dtype in which float32 and float64 attributes are stored; gathered rows
                have the attribute's own dtype.
            renumbered: whether rows of nodes are stored, and asked for, by falling score; no map of places is needed
                then. The row of the user's node i is asked for by ``store.order.new[i]``. A loader of this package does
                so, and takes and returns the user's ids, if its GraphStore is ``GraphStore.from_data(data,
                order=store.order)``.
            names: the attributes that are taken; by default all.
            device: the GPU that gathers; by default the current one if ``gpu`` or ``peers`` is above 0, else the CPU.

        Raises:
            TypeError, ValueError, IndexError: wrong budgets, scores, names or types, or budgets that hold too little.
            MemoryError, OSError: too little memory is free, memory cannot be pinned, or a disk is full.
            NotImplementedError: attributes that are not tensors of one row per node or edge.
        """
        check_graph(data, Data, HeteroData)
        sources, composites = sources_of(data, names, storage)
        of_edges = any(isinstance(source.key[0], tuple) for source in sources)
        scores = scores_of(data, hotness, labelled, of_edges)
        return cls.of_sources(sources, scores, renumbered, gpu, peers, host, disk, device, composites=composites)

    @classmethod
    def open(  # type: ignore[override]
        cls,
        path: str | os.PathLike,
        hotness: Tensor | Mapping[Any, Tensor],
        *,
        gpu: Budget = 0,
        peers: Sequence[Budget] = (),
        host: Budget | None = None,
        renumbered: bool = False,
        names: Sequence[str] | None = None,
        verify: bool = True,
        device: torch.device | str | int | None = None,
    ) -> TieredFeatureStore:
        """Opens a saved FeatureStore: its hottest rows are copied to memory, the others stay in its files.

        Args:
            path: the directory that :meth:`FeatureStore.save` wrote.
            hotness: scores as for :meth:`from_data`. No name, for the directory has no edges:
                :func:`torch_gnnscale.feature.hotness.graph_scores` makes scores of an opened GraphStore.
            gpu, peers, host: budgets as for :meth:`from_data`. Rows are kept in the dtype that the files have.
            renumbered: whether the rows of nodes in the files are in the order ``topology.reorder.by_score(hotness)``.
            names: the attributes that are opened; by default all.
            verify: as for :meth:`FeatureStore.open`.
            device: as for :meth:`from_data`.

        Raises:
            FileNotFoundError, ValueError: as :meth:`FeatureStore.open`, and wrong budgets or scores; a store that was
                saved with an ``order``, without ``renumbered`` or with another hotness.
        """
        if isinstance(hotness, str):
            raise TypeError(
                f"hotness: expected a score of each node, found the name {hotness!r}, which needs edges: "
                f"hotness.graph_scores(GraphStore.open(...), {hotness!r}) gives scores"
            )
        saved = FeatureStore.open(path, verify)
        sources, composites = saved_sources(saved, names)
        scores = {**hotness} if isinstance(hotness, Mapping) else {None: hotness}
        if saved.order is not None and not (renumbered and saved.order.equals(_orders_of(scores))):
            raise ValueError(
                f"{os.fspath(path)}: expected renumbered=True and the hotness by which its rows were ordered when it "
                f"was saved, found renumbered={renumbered}"
            )
        return cls.of_sources(sources, scores, renumbered, gpu, peers, host, path, device, composites=composites)

    @classmethod
    def of_sources(
        cls, sources: list[Source], scores: Mapping[Any, Tensor], renumbered: bool, gpu: Budget,
        peers: Sequence[Budget], host: Budget | None, disk: str | os.PathLike | None,
        device: torch.device | str | int | None, sharers: int = 1, composites: Composites | None = None,
    ) -> TieredFeatureStore:  # fmt: skip
        """For :meth:`from_data`, :meth:`open` and the rows of a part alone; arguments as theirs.

        ``scores`` are of the nodes and edges of each type, by the groups of ``sources``. ``disk`` is any path if all
        sources are mapped from saved directories, where rows stay. ``sharers``: how many processes of this machine are
        going to share the host memory. ``composites``: whose tensors are among the sources.
        """
        if not sources:
            raise ValueError("expected at least one attribute of nodes or edges, found none")
        orders, falling = ranked_by_group(sources, scores)
        row_bytes: dict[Any, dict[Any, int]] = {group: {} for group in orders}
        for source in sources:
            row_bytes[source.key[0]][source.key[1]] = source.row_bytes
        whole_bytes = sum(source.row_bytes * len(source.tensor) for source in sources)
        gpu, peers, where = devices_of(gpu, peers, device, whole_bytes)
        in_files = all(source.origin is not None for source in sources)
        moved = [group for group in orders if not isinstance(group, tuple)] if renumbered else []
        plans = plan_types(
            falling, row_bytes, gpu=gpu, peers=peers, host=host, disk=disk is not None, renumbered=moved,
            on_gpu=where.type != "cpu",
        )  # fmt: skip
        plan = of_types(plans)
        folder = None
        if not in_files and any(of.rows("disk") > 0 or "disk" in of.whole.values() for of in plans.values()):
            assert disk is not None
            if not os.path.isdir(disk):
                raise FileNotFoundError(f"disk: expected a directory, found {os.fspath(disk)!r}, which is none")
            folder = tempfile.mkdtemp(prefix="gnnscale-tiers-", dir=os.path.abspath(disk))
        try:
            whole_on_gpu = sum(
                source.row_bytes * len(source.tensor)
                for source in sources
                if plans[source.key[0]].whole.get(source.key[1]) == "gpu"
            )
            check_room(plan, where, len(peers), whole_on_gpu)
            insist = host is not None and is_bytes(host)
            attributes, memory = build(plans, sources, orders, moved, where, len(peers), folder, insist, sharers)
            order = _orders({group: orders[group] for group in moved}) if moved else None
            return cls(plan, order, attributes, memory, where, folder, composites)
        except BaseException:
            if folder is not None:
                shutil.rmtree(folder)
            raise

    def on(self, device: torch.device | str | int) -> TieredFeatureStore:
        """The same rows, gathered by another GPU of this machine: for processes that have a GPU each.

        The rows of ``gpu`` and the map of places are copied to that GPU; host memory, files and the rows of ``peers``
        are shared. Closing the store that is returned closes this one, and the reverse.

            def rank(number, store):            # started by torch.multiprocessing.spawn
                with store.on(f"cuda:{number}") as store: ...

        Raises:
            ValueError: the GPU cannot read the rows of ``peers``, the device is a CPU, or the store is closed.
            MemoryError: too little memory is free on the GPU.
        """
        self._check_open()
        where = checked_device(device)
        if where == self._device:
            return self
        if where.type == "cpu":
            raise ValueError(f"device: expected a GPU for a store of {self._device}, found cpu")
        opened: list[TieredRows] = list(self._tensors.values())
        for peer in {rows.segments[number].device for rows in opened for number in rows.segments_of("peers")} - {where}:
            if not torch.cuda.can_device_access_peer(where, peer):
                raise ValueError(f"device: expected a GPU that can read {peer}, found {where}")
        whole_on_gpu = sum(rows.row_bytes * rows.shape[0] for rows in opened if self._whole_in(rows.key) == "gpu")
        check_room(self.plan, where, 0, whole_on_gpu)
        places = {rows.key[0]: rows.place.to(where) for rows in opened if rows.place is not None}
        attributes = [rows.on(where, places.get(rows.key[0])) for rows in opened]
        plans = {group: replace(plan, map_tier="gpu") for group, plan in self._plans().items()}
        store = TieredFeatureStore(
            of_types(plans), self.order, attributes, self._memory, where, composites=self.composites
        )
        store.__dict__["_origin"] = self  # kept alive: rows that it wrote to disk are deleted with it
        return store

    @property
    def device(self) -> torch.device:
        """The device that gathers, where gathered rows are."""
        return self._device

    @property
    def stream_device(self) -> torch.device | None:  # type: ignore[override]
        """The GPU that gathers, if there is one: rows are never changed."""
        return None if self._device.type == "cpu" else self._device

    # What was read ###################################################################################################

    def stats(self) -> dict[str, TierUse]:
        """What was read from each tier since the store was made, by the tier's name.

        Counts the rows that this process gathered on its GPU, for which it waits, and those that all processes which
        share the store gathered on the CPU. Attributes that are not cut are not counted.
        """
        by_type = self.stats_by_type().values()
        return {tier.name: summed(uses[tier.name] for uses in by_type if tier.name in uses) for tier in self.plan.tiers}

    def stats_by_type(self) -> dict[Any, dict[str, TierUse]]:
        """:meth:`stats` of each type of nodes and edges, by the keys of ``plan``; None and (None, None) are the nodes
        and the edges of a homogeneous graph. Hit rates are shares of the reads of all types."""
        self._check_open()
        cut = [rows for rows in self._tensors.values() if self._whole_in(rows.key) is None]
        return use_by_type(self._plans(), cut)

    def _plans(self) -> Mapping[Any, TierPlan]:
        """The plan of each type, None for the nodes of a homogeneous graph."""
        return {None: self.plan} if isinstance(self.plan, TierPlan) else self.plan

    def _whole_in(self, key: tuple[Any, str]) -> str | None:
        """The tier that has all rows of an attribute that is not cut; None: it is cut."""
        return self._plans()[key[0]].whole.get(key[1])

    def close(self) -> None:
        """Frees memory, its registration with CUDA and files that were written. Gathered rows stay valid."""
        try:
            self._memory.close()  # waits for gathers that are running
            self._tensors.clear()
        finally:
            if self._delete is not None:
                self._delete()
        if self._origin is not None:
            self._origin.close()

    _origin: TieredFeatureStore | None = None

    @property
    def closed(self) -> bool:
        """Whether the store was closed."""
        return self._memory.closed

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the store is closed")

    def rows_by_attribute(self) -> Mapping[tuple[Any, str], TieredRows]:
        """The rows of each attribute, by (group, name); none once the store is closed."""
        return MappingProxyType(self._tensors)

    def __enter__(self) -> TieredFeatureStore:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # PyG's abstract methods ##########################################################################################

    def _get_tensor(self, attr: TensorAttr) -> Tensor | None:
        self._check_open()
        rows = self._tensors.get((attr.group_name, attr.attr_name))
        if rows is None:
            return None
        index, check = ids_asked(attr, rows.shape[0])
        found = rows.gather(index, check)
        return found[0] if isinstance(attr.index, int) else found

    def _multi_get_tensor(self, attrs: list[TensorAttr]) -> list[Tensor | None]:
        """On a GPU one kernel gathers the rows of all attributes."""
        if self._device.type == "cpu":
            return super()._multi_get_tensor(attrs)
        self._check_open()
        found: list[Tensor | None] = [None] * len(attrs)
        there = [
            (number, rows, attr)
            for number, attr in enumerate(attrs)
            if (rows := self._tensors.get((attr.group_name, attr.attr_name))) is not None
        ]
        gathered = gather_together([(rows, *ids_asked(attr, rows.shape[0])) for _, rows, attr in there])
        for (number, _, attr), rows in zip(there, gathered, strict=True):
            found[number] = rows[0] if isinstance(attr.index, int) else rows
        return found

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        self._check_open()
        return super()._get_tensor_size(attr)

    @override
    def all_attrs(self) -> list[TensorAttr]:
        self._check_open()
        return super().all_attrs()

    def versions(self) -> dict[tuple[Any, str], Version]:
        """No versions, for rows in tiers are never changed."""
        return {}

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        raise NotImplementedError("rows in tiers cannot be changed: make another store")

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        raise NotImplementedError("attributes in tiers cannot be removed: make another store, with names=")

    def save(self, path: str | os.PathLike) -> None:
        """Not implemented: save the FeatureStore that it was made from."""
        raise NotImplementedError("save of tiers is not implemented: save FeatureStore.from_data(data)")

    def __reduce__(self):
        self._check_open()
        attributes = [rows.attribute for rows in self._tensors.values()]
        return TieredFeatureStore, (
            self.plan, self.order, attributes, self._memory, self._device, None, self.composites
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'closed' if self.closed else ''}\n{self.plan}\n)"


def _delete(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked process
        shutil.rmtree(folder, ignore_errors=True)


def _orders_of(scores: Mapping[Any, Tensor]) -> Order | TypedOrder:
    return _orders(
        {group: by_score(score, "hotness") for group, score in scores.items() if not isinstance(group, tuple)}
    )


def _orders(orders: Mapping[Any, Order]) -> Order | TypedOrder:
    """The order of a homogeneous graph's nodes, or those of the types."""
    return orders[None] if None in orders else TypedOrder(orders)
