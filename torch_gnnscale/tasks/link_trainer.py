"""Prediction of links in a heterogeneous graph; a link is ranked against all destinations of its type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.sampler import NegativeSampling

from ..datasets import load_links
from ..loader import LinkNeighborLoader, NeighborLoader
from ..nn import narrow
from ..training import Config, Trainer
from .hetero_trainer import HeteroSAGE, call_model
from .metrics import ranking
from .node_trainer import fanouts_of_tests

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
