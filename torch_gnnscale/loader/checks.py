"""Checks made by the constructor of a loader: errors for stores that do not match, warnings for what will be slow
and for arguments that have no effect beside the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DistributedSampler
from torch_geometric.sampler import NegativeSampling

from .._user import warn
from ..ops.arguments import check_flags, check_tensor, to_int
from ..sampler import NeighborSampler
from ..sampler.base import KeyedSampler, name_of
from ..sampler.layerwise import LayerSampler
from .fields import EdgeLayouts
from .given_data import GivenData


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
    bulk: int | None, given: GivenData, sampler: KeyedSampler, device: torch.device | None, inputs: type,
    layouts: EdgeLayouts, options: Mapping[str, Any],
) -> int:  # fmt: skip
    """How many batches are made at once.

    Args:
        bulk: the loader's argument.
        given, sampler: of the loader.
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
    if given.of_part and device is not None:
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


def gpu_of_rows(given: GivenData, sampler: KeyedSampler, options: Mapping[str, Any]) -> torch.device | None:
    """The GPU that gathers rows of stores, on streams of its own; None if there is none, in worker processes, and for
    samplers that are called in the thread that iterates."""
    return given.stream_device if sampler.keyed and not options.get("num_workers", 0) else None


def check_part(given: GivenData, sampler: KeyedSampler, options: Mapping[str, Any]) -> None:
    """Raises ValueError or NotImplementedError for a sampler or an option that loaders over a part do not have."""
    if not given.of_part:
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


def check_options(options: Mapping[str, Any]) -> None:
    """Raises TypeError for arguments of all loaders that are no functions, or neither true nor false."""
    for name in ("transform", "transform_sampler_output"):
        if (value := options.get(name)) is not None and not callable(value):
            raise TypeError(f"{name}: expected a function, found {value!r}")
    check_flags(**{name: options.get(name) or False for name in ("shuffle", "filter_per_worker")})


def warn_of_unused_arguments(
    given: GivenData, sampler: KeyedSampler, prefetch: int | None, seed: int | None, options: Mapping[str, Any]
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
    if options.get("custom_cls") is not None and not given.stores:
        warn(
            f"custom_cls has no effect with a {type(given.data).__name__}, as in PyG: it is the class of batches of "
            f"stores"
        )
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
