"""Classification of the nodes of one type in a heterogeneous graph, and the models for graphs whose node types may have
no features; and prediction of links, each ranked against all destinations of its type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn.module_dict import ModuleDict
from torch_geometric.sampler import NegativeSampling

from ..datasets import NodeTask, load_links, load_types
from ..loader import LinkNeighborLoader, NeighborLoader
from ..nn import narrow
from ..training import Config, Trainer
from .metrics import Accuracy, ranking
from .node_trainer import ClassifierConfig, ClassTrainer, fanouts_of_tests


def call_model(model: nn.Module, batch: Any) -> Any:
    """``model(batch)``."""
    return model(batch)


class Categories(nn.Module):
    """The sum of an embedding for each column of codes.

    Args:
        codes: those of all nodes, from 0: int64, shape [N, C].
        hidden: width of the embeddings.
    """

    first: Tensor

    def __init__(self, codes: Tensor, hidden: int) -> None:
        super().__init__()
        counts = codes.amax(0) + 1 if len(codes) else torch.ones(codes.size(1), dtype=torch.int64)
        self.register_buffer("first", counts.cumsum(0) - counts)
        self.rows = nn.EmbeddingBag(int(counts.sum()), hidden, mode="sum")

    def forward(self, codes: Tensor) -> Tensor:
        """The embeddings of nodes: [n, hidden]."""
        return self.rows(codes + self.first)


class Encoder(nn.Module):
    """The first embedding of each node: a linear map of its features ``x`` plus an embedding of each of its categories
    (``category``) or, for a type with neither, an nn.Embedding of the nodes.

    Args:
        data: the whole graph, or one of its sizes on the device "meta".
        hidden: width of the embeddings.
        scale: standard deviation of the initial weights of each nn.Embedding.
    """

    def __init__(self, data: HeteroData, hidden: int, scale: float) -> None:
        super().__init__()
        self.rows, self.codes = ModuleDict(), ModuleDict()
        for node_type in data.node_types:
            store = data[node_type]
            if "category" in store:
                self.codes[node_type] = Categories(store.category, hidden)
            if "x" in store:
                self.rows[node_type] = nn.Linear(store.num_features, hidden)
            elif "category" not in store:
                self.rows[node_type] = table = nn.Embedding(store.num_nodes, hidden)
                nn.init.normal_(table.weight, std=scale)

    def forward(self, batch: HeteroData) -> dict[str, Tensor]:
        """By node type, embeddings of the batch's nodes: [N, hidden]."""
        found = {node_type: codes(batch[node_type].category) for node_type, codes in self.codes.items()}
        for node_type, rows in self.rows.items():
            out = rows(batch[node_type].x.float() if "x" in batch[node_type] else batch[node_type].n_id)
            found[node_type] = found[node_type] + out if node_type in found else out
        return found


class HeteroSAGE(nn.Module):
    """Layers of SAGEConv, one per relation: x[t] += relu(sum of the SAGEConvs of relations into type t).

    Args:
        data: see :class:`Encoder`.
        hidden: width of all layers.
        layers: number of layers.
        dropout: probability of dropout on each layer's input and on the result.
        scale: see :class:`Encoder`.
    """

    def __init__(self, data: HeteroData, hidden: int, layers: int, dropout: float, scale: float) -> None:
        super().__init__()
        self.encode = Encoder(data, hidden, scale)
        self.convs = nn.ModuleList(
            pyg_nn.HeteroConv({edge_type: pyg_nn.SAGEConv(hidden, hidden) for edge_type in data.edge_types})
            for _ in range(layers)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch: Any) -> dict[str, Tensor]:
        """By node type, embeddings of the batch's nodes: [N, hidden]."""
        x, edge_index = self.encode(batch), batch.edge_index_dict
        for conv in self.convs:
            out = conv({node_type: self.dropout(rows) for node_type, rows in x.items()}, edge_index)
            x = {t: rows + out[t].relu() if t in out else rows for t, rows in x.items()}
        return {node_type: self.dropout(rows) for node_type, rows in x.items()}


@dataclass
class HeteroConfig(ClassifierConfig):
    """Settings of a classifier of one node type."""

    hidden: int = 64
    batch_size: int = 64
    epochs: int = 15
    weight_decay: float = 5e-4
    dropout: float = 0.5


class HeteroClassifier(nn.Module):
    """GraphSAGE over all relations, then a linear layer to the class scores of one node type."""

    def __init__(self, task: NodeTask, config: HeteroConfig) -> None:
        super().__init__()
        self.node_type: Any = task.node_type
        self.gnn = HeteroSAGE(task.sizes, config.hidden, len(config.fanouts), config.dropout, scale=1.0)
        self.classes = nn.Linear(config.hidden, task.num_classes)

    def forward(self, batch: Any) -> Tensor:
        """Class scores of the batch's seeds: [batch_size, classes]."""
        return self.classes(self.gnn(batch)[self.node_type][: batch[self.node_type].batch_size])


class _OwnFeatures(nn.Module):
    """An MLP of a node's own features, whose last columns are codes of categories (:meth:`NodeTask.labelled`)."""

    def __init__(self, task: NodeTask, config: HeteroConfig) -> None:
        super().__init__()
        self.numbers, coded = task.num_features, "category" in task.sizes[task.node_type]
        self.codes = Categories(task.sizes[task.node_type].category, config.hidden) if coded else None
        width = self.numbers + (config.hidden if coded else 0)
        self.mlp = pyg_nn.MLP([width, config.hidden, task.num_classes], dropout=config.dropout, norm=None)

    def forward(self, rows: Tensor) -> Tensor:
        """Class scores of the nodes: [m, classes]."""
        if self.codes is None:
            return self.mlp(rows)
        x, codes = rows.split([self.numbers, rows.size(1) - self.numbers], dim=1)
        return self.mlp(torch.cat([x, self.codes(codes.long())], dim=1))


class HeteroTrainer(ClassTrainer):
    """Trains a model to predict the classes of one node type's nodes. Baseline: an MLP without the graph."""

    config_type = HeteroConfig
    load = staticmethod(load_types)

    def build_model(self) -> nn.Module:
        """GraphSAGE over all relations."""
        return HeteroClassifier(self.task, self.config)

    def inference(self) -> tuple[nn.Module, Callable[[nn.Module, Any], Any]]:
        """Class scores of all nodes of the labelled type."""
        return self.model, lambda model, batch: {self.task.node_type: model(batch)}

    def called_module(self) -> nn.Module:
        """The model, which computes what the seeds need."""
        return narrow(self.model, call_model)

    @property
    def leaves_parameters_out(self) -> bool:
        """True: of the last layer's relations, the loss depends only on those into the labelled type."""
        return True

    def baseline(self) -> tuple[str, float]:
        """(name, test accuracy) of an MLP on the nodes' own features: 100 full-batch steps; the step that is best on
        ``val`` counts."""
        task, config, ranks = self.task, self.config, self.ranks
        own = {subset: task.labelled(subset) for subset in ("train", "val", "test")}
        x, y = own["train"]
        labels = int(ranks.total((y != -1).sum()))
        model = _OwnFeatures(task, config)
        trained = ranks.parallel(model, unused=False)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
        best = (-1.0, 0.0)
        for _ in range(100):
            model.train()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(trained(x), y, ignore_index=-1, reduction="sum") / labels
            (loss * ranks.world).backward()  # the ranks take the mean of their gradients
            optimizer.step()
            model.eval()
            with torch.no_grad():
                val, test = (self._accuracy(model, *own[subset]) for subset in ("val", "test"))
            best = (val, test) if val > best[0] else best
        return "MLP on features alone", best[1]

    def _accuracy(self, model: nn.Module, x: Tensor, y: Tensor) -> float:
        metric = Accuracy()
        metric.add(model(x), y)
        return metric.value(self.ranks)


OFFERED = 20
"""The k of Recall@k: how many destinations are recommended to each source."""


@dataclass
class LinkConfig(Config):
    """Settings of link prediction."""

    hidden: int = 64
    epochs: int = 6
    lr: float = 0.01
    dropout: float = 0.1
    negatives: int = field(default=16, metadata={"help": "negatives per link"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.negatives < 1:
            raise ValueError(f"negatives: expected at least 1 per link, found {self.negatives}")


class LinkTrainer(Trainer):
    """Trains an embedding of nodes; score(source, destination) = dot product. Baseline: the most popular destinations.

    The links of a batch and their reverses are excluded from its sample. No negative is a training link.
    """

    config_type = LinkConfig
    load = staticmethod(load_links)

    @property
    def metric(self) -> str:
        """Recall@20: the share of a source's links among its 20 best destinations; known links are not ranked."""
        return f"recall@{OFFERED}"

    def build_model(self) -> nn.Module:
        """GraphSAGE over all relations; nodes without features have a trained embedding."""
        config = self.config
        scale = config.hidden**-0.5  # keeps the first scores small
        return HeteroSAGE(self.task.sizes, config.hidden, len(config.fanouts), config.dropout, scale)

    def inference(self) -> tuple[nn.Module, Callable[[nn.Module, Any], Any]]:
        """Embeddings by type, on the graph of training links."""
        return self.model, call_model

    def called_module(self) -> nn.Module:
        """The model, which computes what the ends of links need: by type, their embeddings."""
        return narrow(self.model, call_model)

    @property
    def leaves_parameters_out(self) -> bool:
        """Whether the last layer has relations into types that no link has."""
        return any(
            dst not in (self.task.edge_type[0], self.task.edge_type[2]) for _, _, dst in self.task.sizes.edge_types
        )

    def training_batches(self) -> Any:
        """Batches of training links, shuffled. A link's negatives have the same source and other destinations."""
        task, config = self.task, self.config
        return LinkNeighborLoader(
            task.data,
            config.fanouts,
            edge_label_index=task.seeds("train"),
            neg_sampling=NegativeSampling("triplet", amount=config.negatives),
            exclude_seed_edges="reverse",
            strict_negatives=True,
            batch_size=config.batch_size,
            shuffle=True,
            seed=config.seed,
            num_workers=config.num_workers,
            **task.loader_options(training=True),
        )

    def loss(self, batch: Any) -> tuple[Tensor, int]:
        """(mean cross entropy of choosing the link among it and its negatives, number of links)."""
        rows = self.forward(batch)
        src, dst = batch[self.task.edge_type[0]], batch[self.task.edge_type[2]]
        sources = rows[self.task.edge_type[0]][src.src_index]
        links = len(sources)
        offered = torch.cat([dst.dst_pos_index.view(links, 1), dst.dst_neg_index.view(links, -1)], dim=1)
        scores = (sources[:, None] * rows[self.task.edge_type[2]][offered]).sum(-1)
        return nn.functional.cross_entropy(scores, torch.zeros(links, dtype=torch.int64)), links

    def embeddings(self, node_type: str) -> tuple[Tensor, Tensor]:
        """(ids, embeddings) of this rank's nodes of a type, on the graph of training links: int64 [N], ascending, and
        float32 [N, hidden]."""
        fanouts = fanouts_of_tests(self.config.fanouts, self.task.num_edges)
        loader = self.kept_loader(node_type, lambda: self._nodes_of(node_type, fanouts))
        ids, rows = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, self.config.hidden)]
        with self.progress(loader, f"embed {node_type}", len(loader)) as batches:
            for batch in batches:
                size = batch[node_type].batch_size
                ids.append(batch[node_type].n_id[:size])
                rows.append(self.forward(batch)[node_type][:size])
        return torch.cat(ids), torch.cat(rows)

    def _nodes_of(self, node_type: str, fanouts: list[int]) -> NeighborLoader:
        nodes, options = self.task.all_nodes(node_type), self.task.loader_options(training=False)
        return NeighborLoader(self.task.data, fanouts, nodes, batch_size=10 * self.config.batch_size, seed=0, **options)

    def score(self, subset: str) -> float:
        """Recall@20 of the model on the links of ``train``, ``val`` or ``test``: of each rank's sources among all
        destinations."""
        src_type, _, dst_type = self.task.edge_type
        sources, (ids, rows) = self.embeddings(src_type), self.embeddings(dst_type)
        ids, rows = self.ranks.gathered(ids), self.ranks.gathered(rows)
        return self._recall(subset, *sources, torch.empty_like(rows).index_copy_(0, ids, rows))

    def _recall(self, subset: str, ids: Tensor, sources: Tensor, destinations: Tensor) -> float:
        """Recall@20 over the sources of all ranks. ``ids``: of this rank's sources, ascending."""
        links = self.task.links
        known = {"train": [], "val": [links["train"]], "test": [links["train"], links["val"]]}[subset]
        return ranking(
            sources, destinations, _among(ids, links[subset]),
            _among(ids, torch.cat([links["train"][:, :0], *known], dim=1)), OFFERED, self.ranks,
        )["recall"]  # fmt: skip

    def baseline(self) -> tuple[str, float]:
        """(name, Recall@20 on test) of recommending the destinations with the most training links to every source."""
        src_type, _, dst_type = self.task.edge_type
        links, ids = self.task.links["train"], torch.arange(self.task.sizes[src_type].num_nodes)
        ids = ids[self.ranks.rank :: self.ranks.world].contiguous()
        popularity = torch.bincount(links[1], minlength=self.task.sizes[dst_type].num_nodes).float()
        return "popularity", self._recall("test", ids, torch.ones(len(ids), 1), popularity[:, None])


def _among(ids: Tensor, links: Tensor) -> Tensor:
    """The links whose source is among ``ids``, which are ascending: positions in ``ids``, and destinations: int64,
    shape [2, m]."""
    place = torch.searchsorted(ids, links[0])
    own = ids[place.clamp(max=len(ids) - 1)] == links[0] if len(ids) else torch.zeros_like(place, dtype=torch.bool)
    return torch.stack([place[own], links[1, own]])
