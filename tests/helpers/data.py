"""Graphs whose features tell which node or edge they belong to, stores that are not ours, and comparisons."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import GraphStore as PyGGraphStore
from torch_geometric.data.graph_store import EdgeAttr

import torch_gnnscale
from torch_gnnscale import FeatureStore, GraphStore

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64, torch.complex128,
    torch.float8_e4m3fn,
]  # fmt: skip
"""Of features."""
TESTS = Path(__file__).parents[1]
REAL = Path(os.environ.get("GNNSCALE_DATA", TESTS.parents[1] / "shared" / "data"))
"""The folder of real data sets, if there is one."""


def edges_of(num_nodes: int, num_edges: int, seed: int = 0, dtype: torch.dtype = torch.int64) -> Tensor:
    """Skewed edges with self loops and multi-edges; a tenth of the nodes are isolated."""
    generator = torch.Generator().manual_seed(seed)
    used = max(1, num_nodes - num_nodes // 10)
    edges = (torch.rand(2, num_edges, generator=generator).square() * used).long()
    names = torch.randperm(num_nodes, generator=generator)
    return names[edges].to(dtype)


def node_rows(ids: Tensor, columns: int = 3) -> Tensor:
    """The feature rows of nodes: row i holds i + 1/16, i + 2/16, ..."""
    return ids.to(torch.float64)[:, None] + torch.arange(1, columns + 1) / 16


def edge_rows(ids: Tensor) -> Tensor:
    """The feature rows of edges."""
    return torch.stack([-1.0 - ids.to(torch.float64), ids.to(torch.float64) / 8], dim=1)


def make_data(num_nodes: int = 200, num_edges: int = 1500, seed: int = 0) -> Data:
    """A Data with node and edge features that are functions of ids."""
    ids = torch.arange(num_nodes)
    return Data(
        x=node_rows(ids),
        edge_index=edges_of(num_nodes, num_edges, seed),
        edge_attr=edge_rows(torch.arange(num_edges)),
        y=ids * 7 % 5,
    )


def check_batch(data: Data, batch: Data, seeds: Tensor, fanouts: list[int] | None = None) -> None:
    """Asserts that a batch without repeated seeds is a sampled neighborhood of ``seeds`` with the rows of its nodes."""
    assert torch.equal(batch.n_id[: len(seeds)], seeds.long())
    assert batch.n_id.unique().numel() == batch.n_id.numel()
    assert batch.batch_size == len(seeds)
    assert torch.equal(batch.x, node_rows(batch.n_id))
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id].long())
    assert batch.e_id.unique().numel() == batch.e_id.numel()
    if "edge_attr" in batch:
        assert torch.equal(batch.edge_attr, edge_rows(batch.e_id))
    assert sum(batch.num_sampled_nodes) == batch.num_nodes == len(batch.n_id)
    assert sum(batch.num_sampled_edges) == batch.edge_index.size(1)
    if fanouts is None:
        return
    degree = torch.bincount(data.edge_index[1], minlength=data.num_nodes)
    assert len(batch.num_sampled_nodes) == len(fanouts) + 1
    first_edge = first_node = 0
    for hop, fanout in enumerate(fanouts):
        nodes = range(first_node, first_node + batch.num_sampled_nodes[hop])
        edges = batch.edge_index[1, first_edge : first_edge + batch.num_sampled_edges[hop]]
        found = torch.bincount(edges, minlength=nodes.stop)
        expected = degree[batch.n_id[nodes.start : nodes.stop]]
        expected = expected if fanout < 0 else expected.clamp(max=fanout)
        assert torch.equal(found[nodes.start :], expected)
        assert int(found[: nodes.start].sum()) == 0
        first_node, first_edge = nodes.stop, first_edge + batch.num_sampled_edges[hop]


def plain(value: Any) -> Any:
    """A value that == compares: tensors as nested lists with their dtype, tuples as lists, stores
    as lists of pairs in order."""
    if isinstance(value, Data):
        return [(key, plain(entry)) for key, entry in value._store.items()]
    if isinstance(value, HeteroData):
        return [(store._key, [(key, plain(entry)) for key, entry in store.items()]) for store in value.stores]
    if isinstance(value, Tensor):
        if value.layout == torch.sparse_csr:
            parts = (value.crow_indices(), value.col_indices(), value.values())
            return "csr", tuple(value.shape), [plain(part) for part in parts]
        whole = value.as_tensor() if isinstance(value, EdgeIndex) else value
        return str(value.dtype), tuple(value.shape), whole.tolist()
    if hasattr(value, "csr"):
        return "SparseTensor", value.sparse_sizes(), [plain(part) for part in value.coo()]
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    return value


def fields(batch: Data) -> list[tuple[str, Any]]:
    """Names of a batch's fields in order, with the dtype and number of dimensions of a tensor, else the type."""
    return [
        (key, (value.dtype, value.dim()) if isinstance(value, Tensor) else type(value).__name__)
        for key, value in batch._store.items()
    ]


def loader_threads() -> list[threading.Thread]:
    """The threads of all pipelines."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("gnnscale-loader")]


def wait_for(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    """Returns once the condition holds; fails if it does not within a bounded time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.002)


def no_loader_threads(seconds: float = 10.0) -> bool:
    """Whether all threads of pipelines end within a bounded time."""
    deadline = time.monotonic() + seconds
    while loader_threads():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def status_of_fork(run: Callable[[], None]) -> int:
    """How a forked child that calls ``run`` ended: 0, 1 if that raised, minus the number of a signal if it hung."""
    child = os.fork()
    if child == 0:
        code = 1
        signal.alarm(60)
        try:
            run()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def processes(count: int) -> dict[str, Any]:
    """A loader's options for so many worker processes, which ``num_workers`` alone does not ask for."""
    return {"num_workers": count, "multiprocessing_context": "fork"} if count else {}


def stop_workers(iterator: Any) -> None:
    """Ends the worker processes of a loader's iterator, if it has any.

    If a loader or an error still refers to it, only the garbage collector would end it, and DataLoader would then wait
    5 s for each process.
    """
    inside = ("_iterator", "_batches", "iterator")  # of our iterators and PyG's
    while iterator is not None and not isinstance(iterator, _MultiProcessingDataLoaderIter):
        iterator = next((vars(iterator)[name] for name in inside if name in vars(iterator)), None)
    if iterator is not None:
        iterator._shutdown_workers()


def environment() -> dict[str, str]:
    """The environment of a new interpreter that can import the tests, their helpers and this very package."""
    tests = [TESTS, *(folder for folder in TESTS.iterdir() if folder.is_dir())]
    folders = [*tests, Path(torch_gnnscale.__file__).parents[1], os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}


class ForeignFeatureStore(PyGFeatureStore):
    """The least that PyG asks of a FeatureStore, written without this package."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[Any, Tensor] = {}

    def _put_tensor(self, tensor, attr) -> bool:
        self.tensors[attr.group_name, attr.attr_name] = tensor
        return True

    def _get_tensor(self, attr):
        tensor = self.tensors.get((attr.group_name, attr.attr_name))
        return tensor if tensor is None or attr.index is None else tensor[attr.index]

    def _remove_tensor(self, attr) -> bool:
        return self.tensors.pop((attr.group_name, attr.attr_name), None) is not None

    def _get_tensor_size(self, attr):
        return tuple(self.tensors[attr.group_name, attr.attr_name].shape)

    def get_all_tensor_attrs(self):
        return [self._tensor_attr_cls(group, name) for group, name in self.tensors]


class ForeignGraphStore(PyGGraphStore):
    """The least that PyG asks of a GraphStore: keeps what it is given, and lets PyG convert."""

    def __init__(self) -> None:
        super().__init__()
        self.edges: dict[Any, tuple[EdgeAttr, Any]] = {}

    def _put_edge_index(self, edge_index, edge_attr) -> bool:
        self.edges[edge_attr.edge_type, edge_attr.layout] = (edge_attr, edge_index)
        return True

    def _get_edge_index(self, edge_attr):
        entry = self.edges.get((edge_attr.edge_type, edge_attr.layout))
        return None if entry is None else entry[1]

    def _remove_edge_index(self, edge_attr) -> bool:
        return self.edges.pop((edge_attr.edge_type, edge_attr.layout), None) is not None

    def get_all_edge_attrs(self):
        return [attr for attr, _ in self.edges.values()]


def loader_of(data, num_neighbors=(3, 2), input_nodes=None, **kwargs):
    return torch_gnnscale.NeighborLoader(
        data, list(num_neighbors), input_nodes, **{"batch_size": 32, "seed": 1, **kwargs}
    )


def double(batch):
    batch.x = batch.x * 2
    return batch


def silent(_):
    """What a trainer reports is not printed."""


def our_stores(data):
    return FeatureStore.from_data(data), GraphStore.from_data(data)
