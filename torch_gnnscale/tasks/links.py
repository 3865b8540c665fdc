"""Prediction of links in a heterogeneous graph; a link is ranked against all destinations of its type."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.sampler import NegativeSampling

from ..datasets import load_links
from ..loader import LinkNeighborLoader, NeighborLoader
from ..training import Config, Trainer
from .classes import fanouts_of_tests
from .metrics import recall_at
from .models import HeteroSAGE

OFFERED = 20
"""The k of Recall@k: how many destinations are recommended to each source."""


@dataclass
class LinkConfig(Config):
    """Settings of link prediction. ``negatives``: negatives per link."""

    hidden: int = 64
    fanouts: list[int] = field(default_factory=lambda: [10, 10])
    batch_size: int = 1024
    epochs: int = 6
    lr: float = 0.01
    dropout: float = 0.1
    negatives: int = 16

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
        return HeteroSAGE(self.task.data, config.hidden, len(config.fanouts), config.dropout, scale)

    def training_batches(self) -> Any:
        """Batches of training links, shuffled. A link's negatives have the same source and other destinations."""
        task, config = self.task, self.config
        return LinkNeighborLoader(
            task.data,
            config.fanouts,
            edge_label_index=(task.edge_type, task.links["train"]),
            neg_sampling=NegativeSampling("triplet", amount=config.negatives),
            exclude_seed_edges="reverse",
            strict_negatives=True,
            batch_size=config.batch_size,
            shuffle=True,
            seed=config.seed,
            num_workers=config.num_workers,
        )

    def loss(self, batch: Any) -> tuple[Tensor, int]:
        """(mean cross entropy of choosing the link among it and its negatives, number of links)."""
        rows = self.model(batch)
        src, dst = batch[self.task.edge_type[0]], batch[self.task.edge_type[2]]
        sources = rows[self.task.edge_type[0]][src.src_index]
        links = len(sources)
        offered = torch.cat([dst.dst_pos_index.view(links, 1), dst.dst_neg_index.view(links, -1)], dim=1)
        scores = (sources[:, None] * rows[self.task.edge_type[2]][offered]).sum(-1)
        return nn.functional.cross_entropy(scores, torch.zeros(links, dtype=torch.int64)), links

    def embeddings(self, node_type: str) -> Tensor:
        """The embedding of each node of a type, computed on the graph of training links: [N, hidden]."""
        data = self.task.data
        fanouts = fanouts_of_tests(self.config.fanouts, data.num_edges)
        loader = NeighborLoader(data, fanouts, node_type, batch_size=10 * self.config.batch_size, seed=0)
        with self.progress(loader, f"embed {node_type}", len(loader)) as batches:
            return torch.cat([self.model(batch)[node_type][: batch[node_type].batch_size] for batch in batches])

    def score(self, subset: str) -> float:
        """Recall@20 of the model on the links of ``train``, ``val`` or ``test``."""
        src_type, _, dst_type = self.task.edge_type
        return self._recall(subset, self.embeddings(src_type), self.embeddings(dst_type))

    def _recall(self, subset: str, sources: Tensor, destinations: Tensor) -> float:
        links = self.task.links
        known = {"train": [], "val": [links["train"]], "test": [links["train"], links["val"]]}[subset]
        return recall_at(
            OFFERED, sources, destinations, links[subset], torch.cat([links["train"][:, :0], *known], dim=1)
        )

    def baseline(self) -> tuple[str, float]:
        """(name, Recall@20 on test) of recommending the destinations with the most training links to every source."""
        src_type, _, dst_type = self.task.edge_type
        data, links = self.task.data, self.task.links["train"]
        popularity = torch.bincount(links[1], minlength=data[dst_type].num_nodes).float()
        return "popularity", self._recall("test", torch.ones(data[src_type].num_nodes, 1), popularity[:, None])
