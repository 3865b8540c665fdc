"""Inference by the ranks of tests, and what one process makes of the same graph."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from helpers import narrow_types
from helpers.data import make_data
from helpers.narrow import MODELS, Branches
from torch import Tensor, nn
from torch_geometric.data import Data

from torch_gnnscale.distributed import open_part
from torch_gnnscale.infer import disk, infer

SIZE = 24
"""The nodes of a batch."""


def sorted_data(data: Data | None = None, **sizes: Any) -> Data:
    """A graph whose edges are sorted by destination, as PyG's LSTM wants them; by default a random one."""
    data = make_data(**sizes) if data is None else data
    data.x = data.x / len(data.x)
    order = torch.argsort(data.edge_index[1], stable=True)
    data.edge_index, data.edge_attr = data.edge_index[:, order], data.edge_attr[order] / len(order)
    return data


def evaluated(make: Any) -> nn.Module:
    """A model in evaluation mode, in float64, with statistics that change something."""
    torch.manual_seed(0)
    model = make().double().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return model


class ByIds(nn.Module):
    """Embeddings of nodes and edges by their ids, and a scale that every node has twice."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes, self.edges = nn.Embedding(200, 8), nn.Embedding(1500, 2)
        self.conv = pyg_nn.GINEConv(nn.Linear(8, 8), edge_dim=2)
        self.last = pyg_nn.SAGEConv(8, 4)

    def forward(self, batch: Any) -> Tensor:
        x = self.conv(self.nodes(batch.n_id), batch.edge_index, self.edges(batch.e_id))
        return self.last(x.relu(), batch.edge_index) * (batch.n_id % 3)[:, None]


def check(found: Any, expected: Any) -> None:
    """Rows, or rows by node type, are equal but for rounding."""
    if isinstance(expected, Tensor):
        found, expected = {None: found}, {None: expected}
    assert found.keys() == expected.keys()
    for node_type, rows in expected.items():
        torch.testing.assert_close(found[node_type], rows.detach(), rtol=0, atol=1e-12)


def with_attributes(model: nn.Module, batch: Any) -> Tensor:
    """Calls a model with attributes of edges."""
    return model(batch.x, batch.edge_index, batch.edge_attr)


def of_batch(model: nn.Module, batch: Any) -> Tensor:
    """Calls a model with the batch."""
    return model(batch)


def plain(model: nn.Module, batch: Any) -> Tensor:
    """Calls a model with features and edges."""
    return model(batch.x, batch.edge_index)


def model_and_call(name: str, typed: bool) -> tuple[nn.Module, Any]:
    """One of the models of the tests, and how it is called; a typed one is for :data:`narrow_types.GRAPH`."""
    if typed:
        return narrow_types.made(name, narrow_types.GRAPH).eval(), narrow_types.call
    if name == "attributes of edges":
        return evaluated(Branches), with_attributes
    if name == "ids":
        return evaluated(ByIds), of_batch
    return evaluated(MODELS[name]), plain


def inferred(
    path: str, names: list[str], options: dict[str, Any], opening: dict[str, Any] | None = None
) -> list[dict[Any, tuple[Tensor, Tensor]]]:
    """For each model, by node type: the user's ids of this rank's results, and the results."""
    found = []
    with open_part(path, **(opening or {})) as part:
        typed = part.parts.hetero
        for name in names:
            model, call = model_and_call(name, typed)
            out = infer(model, (part.features, part.graph), call, **{"batch_size": SIZE, **options})
            ids, nodes = part.stored.user_ids, options.get("nodes")
            ids = {t: of.tensor_split(part.ranks.copies)[part.ranks.copy] for t, of in ids.items()}
            if nodes is not None:
                by_type = nodes if typed else {None: nodes}
                ids = {t: of[torch.isin(of, torch.as_tensor(by_type.get(t, [])))] for t, of in ids.items()}
            rows = out if typed else {None: out}
            found.append({t: (ids[t].clone(), of_type.clone()) for t, of_type in rows.items()})
    return found


def killed(path: str, name: str, out: str, of_ranks: dict[int, int], opening: dict[str, Any] | None = None) -> Any:
    """:func:`inferred` of one model into a folder; each rank of ``of_ranks`` kills itself in its n-th write of rows."""
    disk._SECONDS, real, left = 0, disk.DiskRows._put, 0

    def put(to: Tensor, ids: Tensor, rows: Tensor) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            real(to, ids[:5], rows[:5])
            os.kill(os.getpid(), signal.SIGKILL)
        real(to, ids, rows)

    left = of_ranks.get(int(os.environ["RANK"]), 0)
    disk.DiskRows._put = staticmethod(put)  # type: ignore[method-assign]
    try:
        return inferred(path, [name], {"out": out}, opening)
    finally:
        disk.DiskRows._put = staticmethod(real)  # type: ignore[method-assign]


def whole(of_ranks: list[dict[Any, tuple[Tensor, Tensor]]], sizes: dict[Any, int]) -> dict[Any, Tensor]:
    """The results of all ranks in the order of the user's ids; NaN for nodes without."""
    found = {}
    for node_type in of_ranks[0]:
        rows = of_ranks[0][node_type][1]
        found[node_type] = rows.new_full((sizes[node_type], *rows.shape[1:]), float("nan"))
        for of_rank in of_ranks:
            found[node_type][of_rank[node_type][0]] = of_rank[node_type][1]
    return found
