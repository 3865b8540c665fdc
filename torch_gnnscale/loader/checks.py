"""Checks made by the constructor of a loader: errors for stores that do not match, warnings for what will be slow
and for arguments that have no effect beside the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from .._warn import warn
from ..feature.attributes import EDGES, check_attributes, typed_storages, warn_of_whole_attributes
from ..feature.contract import CollectiveRowStore, RowStore
from ..ops.arguments import check_tensor, to_int
from ..ops.rows import has_contiguous_rows
from ..sampler import NeighborSampler
from ..sampler.base import KeyedSampler, name_of
from ..sampler.layerwise import LayerSampler
from ..topology import GraphStore
from ..topology.reorder import Numbering
from .fields import EdgeLayouts, row_tensors


def check_features(data: Any, sampler: KeyedSampler) -> None:
    """Raises TypeError if rows of a Data's attribute cannot be taken, ValueError if a RowStore has other numbers of
    rows than the graph has nodes and edges."""
    if isinstance(data, (Data, HeteroData)):
        check_attributes(data)
    if isinstance(data, (Data, HeteroData)) or not isinstance(data[0], RowStore):
        return
    hetero = any(attr.edge_type is not None for attr in data[1].get_all_edge_attrs())
    data[0].check_graph(hetero, sampler.node_bounds() or {})


def checked_prefetch(prefetch: Any) -> int | None:
    """A loader's ``prefetch``; TypeError or ValueError unless it is None or a number of at least 0."""
    if prefetch is not None and (prefetch := to_int("prefetch", prefetch)) < 0:
        raise ValueError(f"prefetch: expected at least 0, found {prefetch}")
    return prefetch


def check_inputs(options: Mapping[str, Any], num_inputs: Callable[[], int]) -> None:
    """Raises TypeError or ValueError unless a loader's arguments of DataLoader make numbered batches of its inputs.

    Args:
        options: these arguments.
        num_inputs: returns how many inputs there are.
    """
    check_input_id("input_id", options.get("input_id"), num_inputs)
    if options.get("in_order") is False:
        raise ValueError("in_order: expected True, because batches are numbered in their order, found False")
    if options.get("batch_size", 1) is None and options.get("batch_sampler") is None:
        raise ValueError("batch_size: expected a number of seeds, found None")
    if options.get("shuffle", False) and has_own_order(options):
        raise ValueError("shuffle=True: expected neither sampler nor batch_sampler beside it")


def has_own_order(options: Mapping[str, Any]) -> bool:
    """Whether the user passed a ``sampler`` or ``batch_sampler`` to a loader."""
    return options.get("sampler") is not None or options.get("batch_sampler") is not None


def check_foreign(loader: Any, collective: bool) -> None:
    """Raises ValueError if a DataLoader of others asks a loader whose ranks make their batches together."""
    if collective:
        raise ValueError(
            f"{type(loader).__name__}: expected to be iterated itself, because its ranks make their batches together, "
            "found another DataLoader that was made of it; leave it out of Accelerate's prepare() and Ray's "
            "prepare_data_loader()"
        )
    if isinstance(loader.batch_size, dict):
        raise ValueError(
            f"batch_size={loader.batch_size}: expected the loader to be iterated itself, found another DataLoader that "
            "was made of it, whose batches have other numbers of seeds of each type"
        )


def dealt(options: Mapping[str, Any]) -> DistributedSampler | None:
    """The sampler by which a user, or Lightning, deals inputs to ranks; None without one."""
    given = options.get("sampler")
    sampler = getattr(options.get("batch_sampler"), "sampler", None) if given is None else given
    return sampler if isinstance(sampler, DistributedSampler) else None


def check_input_id(name: str, input_id: Any, num_inputs: Callable[[], int]) -> None:
    """Raises TypeError or ValueError if there are ids, the argument ``name``, but not one for each of
    ``num_inputs()``."""
    if input_id is None:
        return
    check_tensor(name, input_id)
    if input_id.shape != (count := num_inputs(),):
        raise ValueError(f"{name}: expected {count} ids, one per input, found shape {tuple(input_id.shape)}")


def checked_bulk(
    bulk: int | None, data: Any, sampler: KeyedSampler, device: torch.device | None, inputs: type,
    layouts: EdgeLayouts, options: Mapping[str, Any],
) -> int:  # fmt: skip
    """How many batches are made at once.

    Args:
        bulk: the loader's argument.
        data, sampler: of the loader.
        device: the GPU that makes batches; None: they are made where the data are.
        inputs: NodeSamplerInput or EdgeSamplerInput.
        layouts: of a batch's edges, by edge type.
        options: the loader's arguments of DataLoader.

    Raises:
        TypeError, ValueError, NotImplementedError: the sampler, the stores or an argument do not allow bulks, or their
            device.
    """
    if bulk is None:
        bulk = sampler.usual_bulk
    if (bulk := to_int("bulk", bulk)) < 1:
        raise ValueError(f"bulk: expected at least 1, found {bulk}")
    if bulk == 1 and device is None:
        return bulk
    how = f"bulk={bulk}" if device is None else f"device={str(device)!r}"
    if not sampler.keyed:
        raise ValueError(f"{how}: expected a neighbor_sampler that is a KeyedSampler, found {name_of(sampler)}")
    if of_part(data) and device is not None:
        raise NotImplementedError(f"{how} with the stores of a part is not implemented; use device='cpu'")
    sampler.check_many(inputs, how)
    if workers := options.get("num_workers", 0):
        raise ValueError(f"{how}: expected num_workers=0, found {workers}")
    if device is not None and options.get("pin_memory"):
        raise ValueError(f"{how}: expected pin_memory=False, because batches are on the GPU, found True")
    if device is not None and "SparseTensor" in layouts.values():
        raise NotImplementedError(f"edge_layout='SparseTensor' with {how} is not implemented; use 'sparse_csr'")
    return bulk


def gpu_of(sampler: KeyedSampler) -> torch.device | None:
    """The GPU on which a sampler makes batches; None if it makes them where the data are."""
    return sampler.device if sampler.device.type != "cpu" else None


def gpu_of_rows(data: Any, sampler: KeyedSampler, options: Mapping[str, Any]) -> torch.device | None:
    """The GPU that gathers rows of stores, on streams of its own; None if there is none, in worker processes, and for
    samplers that are called in the thread that iterates."""
    if isinstance(data, (Data, HeteroData)) or not sampler.keyed or options.get("num_workers", 0):
        return None
    return getattr(data[0], "stream_device", None)


def reads_together(data: Any) -> bool:
    """Whether all ranks of a process group read the rows of ``data`` together."""
    return isinstance(data, (tuple, list)) and isinstance(data[0], CollectiveRowStore)


def of_part(data: Any) -> bool:
    """Whether the stores are those of a part of a graph, be it the only one."""
    return isinstance(data, (tuple, list)) and isinstance(data[0], RowStore) and data[0].ranks is not None


def check_part(data: Any, sampler: KeyedSampler, options: Mapping[str, Any]) -> None:
    """Raises ValueError or NotImplementedError for a sampler or an option that loaders over a part do not have."""
    if not of_part(data):
        return
    if not sampler.keyed:
        raise ValueError(
            f"neighbor_sampler: expected a KeyedSampler with the stores of a part, found {name_of(sampler)}"
        )
    check_no_processes(options, "the stores of a part")


def check_no_processes(options: Mapping[str, Any], what: str) -> None:
    """Raises NotImplementedError if a loader's arguments of DataLoader ask for worker processes, which it cannot have
    with ``what``."""
    if workers := options.get("num_workers", 0):
        raise NotImplementedError(
            f"worker processes (num_workers={workers}) with {what} are not implemented; num_workers alone means threads"
        )


def warn_of_rows(data: Any, device: torch.device | None) -> None:
    """Warns of attributes that batches have whole, and of tensors whose rows are gathered slowly. ``device``: the GPU
    that makes batches, if one does."""
    if isinstance(data, (Data, HeteroData)):
        warn_of_whole_attributes(data)
        _warn_of_slow_rows(data)
    if device is not None:
        _warn_of_host_rows(data, device)


def _warn_of_slow_rows(data: Data | HeteroData) -> None:
    """Warns of each tensor that the native gather cannot read until it is made contiguous, and of arrays like that."""
    for name, value in row_tensors(data):
        if not has_contiguous_rows(value):
            by_column = ", as what DataFrame.to_numpy() returns," if value.dim() > 1 and value.stride(0) == 1 else ","
            warn(
                f"{name} has no contiguous rows (strides {value.stride()}){by_column} so they are gathered by the "
                f"slower torch.index_select; use {name} = {name}.contiguous()"
            )
    for storage in typed_storages(data):
        for key, value in storage.store.items():
            turned = isinstance(value, np.ndarray) and value.flags.f_contiguous and not value.flags.c_contiguous
            if turned and key not in EDGES and storage.has_rows(key):
                name = storage.label(key)
                warn(
                    f"{name} has no contiguous rows (strides {value.strides}), as what DataFrame.to_numpy() returns, "
                    f"so they are gathered slowly; use {name} = numpy.ascontiguousarray({name})"
                )


def _warn_of_host_rows(data: Any, device: torch.device) -> None:
    """Warns of each tensor in host memory whose rows are copied to the GPU for every batch."""
    if isinstance(data, (Data, HeteroData)):
        found, instead = [(name, value.device) for name, value in row_tensors(data)], f"data.to({str(device)!r})"
        instead += " if it fits"
    else:
        found, instead = list(_rows_of_store(data)), f"tensors or tiers on {device}"
    for name, where in found:
        if where.type == "cpu":
            warn(
                f"{name} is in host memory: its rows are gathered there and copied to {device}, which is slower than "
                f"gathering them on {device}; use {instead}"
            )


def has_rows_on_gpu(data: Any) -> bool:
    """Whether a RowStore has rows on a GPU, which forked workers cannot gather."""
    return any(where.type == "cuda" for _, where in _rows_of_store(data))


def _rows_of_store(data: Any) -> Iterator[tuple[str, torch.device]]:
    """(name, device on which its rows are gathered) per attribute of a RowStore; nothing for other data."""
    if isinstance(data, (tuple, list)) and isinstance(data[0], RowStore):
        for attr in data[0].all_attrs():
            yield f"features{[attr.group_name, attr.attr_name]}", data[0].device_of(attr)


def warn_of_unshared_inputs(shared: bool) -> None:
    """Warns if torch.distributed has several ranks and the loader of each goes through all inputs. ``shared``: whether
    the user said what each rank takes, by ``shard`` or a sampler. Ranks do not communicate."""
    distributed = torch.distributed
    if shared or not (distributed.is_available() and distributed.is_initialized()):
        return
    if (world := distributed.get_world_size()) > 1:
        warn(
            f"torch.distributed has {world} ranks, and this loader goes through all of its inputs on each; pass "
            f"shard=True for the share of each rank, or shard=False if every rank was given its own inputs"
        )


def common_numbering(data: Any) -> Numbering | None:
    """The numbering of a pair of renumbered stores; None if the stores use the user's ids.

    Raises:
        TypeError: what a store has as its order lacks a method of a Numbering.
        ValueError: the two stores have different numberings.
    """
    if isinstance(data, (Data, HeteroData)):
        return None
    features, graph = (_numbering_of(store) for store in data)
    if features is not graph and (features is None or graph is None or not features.equals(graph)):
        names = ["the user's" if order is None else "another" for order in (features, graph)]
        raise ValueError(
            f"data: expected features and graph in one order of nodes, found {names[0]} and {names[1]}; "
            f"use GraphStore.from_data(data, order=features.order)"
        )
    return graph


def _numbering_of(store: Any) -> Numbering | None:
    """The numbering of one store. Foreign stores may use the name ``order`` for something else."""
    order = getattr(store, "order", None)
    if order is None or isinstance(order, Numbering):
        return order
    if not isinstance(store, (RowStore, GraphStore)) and not hasattr(order, "to_stored"):
        return None
    missing = [name for name in vars(Numbering) if not name.startswith("_") and not hasattr(order, name)]
    raise TypeError(
        f"order of a {type(store).__name__}: expected the methods of a torch_gnnscale.topology.reorder.Numbering, "
        f"found a {type(order).__name__} without {', '.join(missing)}"
    )


def warn_of_unused_arguments(
    data: Any, sampler: KeyedSampler, prefetch: int | None, seed: int | None, options: Mapping[str, Any]
) -> None:
    """Warns of arguments of both loaders. ``options``: the arguments of DataLoader and of PyG's loader; without a
    number of workers where threads do their work."""
    workers = options.get("num_workers", 0)
    if prefetch and workers:
        warn(f"prefetch={prefetch} has no effect beside worker processes (num_workers={workers}); use prefetch_factor=")
    elif prefetch and not sampler.keyed:
        warn(
            f"prefetch={prefetch} has no effect: {name_of(sampler)} may keep state (it is no KeyedSampler), "
            f"so it is called in the thread that iterates"
        )
    if options.get("worker_init_fn") is not None and not workers:
        warn("worker_init_fn has no effect without worker processes (num_workers=0)")
    if options.get("custom_cls") is not None and isinstance(data, (Data, HeteroData)):
        warn(f"custom_cls has no effect with a {type(data).__name__}, as in PyG: it is the class of batches of stores")
    if seed is not None and options.get("generator") is not None:
        warn("generator has no effect beside seed, which decides the order and every draw")


def warn_of_options_of_links(sampler: KeyedSampler) -> None:
    """Warns of options of a sampler that are for links, where its seeds are nodes."""
    for name in ("exclude_seed_edges", "strict_negatives"):
        if isinstance(sampler, (NeighborSampler, LayerSampler)) and getattr(sampler, name, False) is not False:
            warn(f"{name} of neighbor_sampler has no effect: it is for links, and the seeds are nodes")


def warn_of_negatives(
    sampler: KeyedSampler, neg_sampling: Any, neg_sampling_ratio: float | None, each: Sequence[NegativeSampling | None]
) -> None:  # fmt: skip
    """Warns of arguments of negatives that none are drawn by. ``each``: how those of each relation are drawn."""
    if neg_sampling is not None and neg_sampling_ratio:
        warn(f"neg_sampling has no effect beside neg_sampling_ratio={neg_sampling_ratio}, as in PyG")
    if any(negatives and negatives.is_triplet() and negatives.src_weight is not None for negatives in each):
        warn("neg_sampling: src_weight has no effect in triplets, whose negatives have the sources of links")
    if not any(each) and getattr(sampler, "strict_negatives", False) is not False:
        warn("strict_negatives has no effect without neg_sampling: no negatives are drawn")
