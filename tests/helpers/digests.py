"""Digests of batches, field by field: what a table pins, so that other code must give the same bits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

ORDER = "(order of fields)"
OUTPUT = ("node", "row", "col", "edge", "batch", "num_sampled_nodes", "num_sampled_edges", "metadata", "colptr")
"""The fields of a sampler's output that are pinned; of ours, ``edge_index`` repeats ``row`` and ``col``."""


def digests(batches: Iterable[Any]) -> dict[str, str]:
    """The digest of each field over all batches and all stores of a batch: 12 hexadecimal digits by its name.

    Batches are Data, HeteroData, outputs of samplers, or dictionaries. ``ORDER`` stands for the batches' types and for
    the names of their stores and fields in order.

    Raises:
        ValueError: no batches.
    """
    hashes = {ORDER: hashlib.sha256()}
    number = -1
    for number, batch in enumerate(batches):
        stores = _stores(batch)
        order = [(key, list(store)) for key, store in stores]
        hashes[ORDER].update(repr((_kind(batch), order)).encode())
        for key, store in sorted(stores, key=lambda entry: repr(entry[0])):
            for name in sorted(store):
                sha = hashes.setdefault(name, hashlib.sha256())
                sha.update(repr((number, key)).encode())
                for piece in _pieces(store[name]):
                    sha.update(piece)
    if number < 0:
        raise ValueError("batches: expected some, found none")
    return {name: hashes[name].hexdigest()[:12] for name in sorted(hashes)}


def differing(found: dict[str, str], expected: dict[str, str]) -> list[str]:
    """The names of the fields that are not the same in both."""
    return sorted(field for field in {*found, *expected} if found.get(field) != expected.get(field))


def _kind(batch: Any) -> str:
    """Of outputs PyG's name, for they are of classes derived from its own."""
    kinds = (SamplerOutput, HeteroSamplerOutput)
    return next((kind.__name__ for kind in kinds if isinstance(batch, kind)), type(batch).__name__)


def _stores(batch: Any) -> list[tuple[Any, dict[str, Any]]]:
    """The names of a batch's stores, None where there is one, and their fields."""
    if isinstance(batch, HeteroData):
        return [(store._key, dict(store.items())) for store in batch.stores]
    if isinstance(batch, Data):
        return [(None, dict(batch._store.items()))]
    if isinstance(batch, (SamplerOutput, HeteroSamplerOutput)):
        return [(None, {name: getattr(batch, name, None) for name in OUTPUT})]
    return [(None, batch)]


def _pieces(value: Any) -> Iterator[bytes]:
    """The bytes that stand for a value: of tensors dtype, shape and contents, of others their types and ``repr``."""
    if isinstance(value, EdgeIndex):
        yield repr(("EdgeIndex", value.sparse_size(), str(value.sort_order), value.is_undirected)).encode()
        (colptr, _), _ = value.get_csc()
        yield from _pieces([value.as_tensor(), colptr])
    elif isinstance(value, Tensor) and value.layout == torch.sparse_csr:
        yield repr(("sparse_csr", tuple(value.shape))).encode()
        yield from _pieces([value.crow_indices(), value.col_indices(), value.values()])
    elif isinstance(value, Tensor):
        assert value.layout == torch.strided, f"a tensor of layout {value.layout} has no digest"
        yield repr((str(value.dtype), tuple(value.shape))).encode()
        yield value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, dict):
        yield f"dict of {len(value)}".encode()
        for key in sorted(value, key=repr):
            yield repr(key).encode()
            yield from _pieces(value[key])
    elif isinstance(value, (list, tuple)):
        yield f"{type(value).__name__} of {len(value)}".encode()
        for entry in value:
            yield from _pieces(entry)
    else:
        assert value is None or isinstance(value, (bool, int, float, str)), f"a {type(value).__name__} has no digest"
        yield f"{type(value).__name__} {value!r}".encode()
