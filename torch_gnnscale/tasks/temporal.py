"""Prediction of links in time: who will visit what, from the events before."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch_geometric.sampler import NegativeSampling
from torch_geometric.utils import trim_to_layer

from ..datasets import EventTask, load_events
from ..loader import LinkNeighborLoader
from ..training import Config, Trainer
from .metrics import average_precision
from .models import Encoder

TIMES = 32
"""Numbers that a span of time is told by."""


@dataclass
class EventConfig(Config):
    """What is trained, and how."""

    hidden: int = 64
    fanouts: list[int] = field(default_factory=lambda: [10])
    batch_size: int = 512
    epochs: int = 5
    lr: float = 0.002
    dropout: float = 0.1


class TemporalGNN(nn.Module):
    """Attention over events, each with how long ago it was, and a score for pairs of a source and a destination."""

    def __init__(self, task: EventTask, config: EventConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.edge_type = task.edge_type
        self.encode = Encoder(task.data, hidden)
        conv = pyg_nn.TransformerConv
        self.convs = nn.ModuleList(
            pyg_nn.HeteroConv(
                {edge_type: conv(hidden, hidden // 2, heads=2, edge_dim=TIMES) for edge_type in task.data.edge_types}
            )
            for _ in config.fanouts
        )
        self.decide = pyg_nn.MLP([5 * hidden, hidden, 1], dropout=config.dropout, norm=None)
        # From seconds to years.
        self.register_buffer("frequency", torch.logspace(0, -8, TIMES))

    def rows(self, batch: Any) -> tuple[Any, Any]:
        """By node type, rows of the batch's nodes before and after the layers: [N, hidden] each."""
        first = x = self.encode(batch)
        edge_index = batch.edge_index_dict
        ago = {}
        for edge_type, index in edge_index.items():
            tree = batch[edge_type[2]].batch[index[1]]
            span = batch[edge_type[2]].seed_time[tree] - batch[edge_type].time
            ago[edge_type] = torch.cos(span[:, None] * self.frequency)
        hops = batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict
        for layer, conv in enumerate(self.convs):
            x, edge_index, ago = trim_to_layer(layer, *hops, x, edge_index, ago)
            out = conv(x, edge_index, edge_attr_dict=ago)
            x = {node_type: out[node_type].relu() for node_type in x}
        return first, x

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Scores of a batch's links and of their negatives: [m] each."""
        first, last = self.rows(batch)
        src, dst = batch[self.edge_type[0]], batch[self.edge_type[2]]
        source, before = (rows[self.edge_type[0]][src.src_index] for rows in (last, first))

        def score(index: Tensor) -> Tensor:
            destination, its_own = (rows[self.edge_type[2]][index] for rows in (last, first))
            pair = [source, destination, source * destination, source * its_own, before * destination]
            return self.decide(torch.cat(pair, dim=1)).view(-1)

        return score(dst.dst_pos_index), score(dst.dst_neg_index)


class Asked(NamedTuple):
    """Pairs at times, one for each link and one for its negative."""

    source: Tensor
    destination: Tensor
    time: Tensor


class EventTrainer(Trainer):
    """Trains a model to tell events from others of the same user and time; its baseline knows how long ago.

    A link's tree holds events of earlier seconds only: the link's time, less one second, is the sampler's limit, so
    that neither the event itself nor what happened beside it is seen.
    """

    config_type = EventConfig
    load = staticmethod(load_events)

    @property
    def metric(self) -> str:
        """Average precision among as many negatives."""
        return "average precision"

    def build_model(self) -> nn.Module:
        """Attention over the latest events."""
        return TemporalGNN(self.task, self.config)

    def training_batches(self) -> Any:
        """Batches of training events, shuffled: the future of each is hidden from it by its time."""
        return self._loader("train", self.config.seed, shuffle=True)

    def _loader(self, part: str, seed: int, shuffle: bool = False) -> Any:
        task, config = self.task, self.config
        events, store = task.parts[part], task.data[task.edge_type]
        return LinkNeighborLoader(
            task.data,
            config.fanouts,
            edge_label_index=(task.edge_type, store.edge_index[:, events]),
            edge_label_time=store.time[events] - 1,
            time_attr="time",
            temporal_strategy="last",
            neg_sampling=NegativeSampling("triplet"),
            batch_size=config.batch_size,
            shuffle=shuffle,
            seed=seed,
            num_workers=config.num_workers,
        )

    def loss(self, batch: Any) -> tuple[Tensor, int]:
        """Binary cross entropy of events and their negatives."""
        link, other = self.model(batch)
        loss = nn.functional.softplus(-link).mean() + nn.functional.softplus(other).mean()
        return loss / 2, len(link)

    def score(self, part: str) -> float:
        """Average precision of the model's scores."""
        loader = self._loader(part, seed=0)
        scores = [self.model(batch) for batch in self.progress(loader, f"evaluate {part}", len(loader))]
        return _precision(*(torch.cat(column) for column in zip(*scores, strict=True)))

    def baseline(self) -> tuple[str, float]:
        """The pair whose own last event is the latest comes first (see :meth:`recency`)."""
        return "recency", _precision(*(self.recency(asked) for asked in self.asked("test")))

    def recency(self, asked: Asked) -> Tensor:
        """Less the seconds since the pair's last event; pairs without one come after, by their destination's last."""
        store = self.task.data[self.task.edge_type]
        edges, time = store.edge_index, store.time
        destinations, span = self.task.data[self.task.edge_type[2]].num_nodes, int(time.max()) + 2

        def ago(keys: Tensor, key: Tensor) -> Tensor:
            """How long before the time asked the latest event of a key was; -1 if there is none."""
            order = torch.sort(keys * span + time).values
            at = torch.searchsorted(order, key * span + asked.time, right=True) - 1
            found = order[at.clamp(min=0)]
            return torch.where((at >= 0) & (found // span == key), asked.time - found % span, -1)

        own = ago(edges[0] * destinations + edges[1], asked.source * destinations + asked.destination)
        anyone = ago(edges[1], asked.destination)
        far = torch.where(anyone >= 0, anyone, span) + span
        return -torch.where(own >= 0, own, far).double()

    def asked(self, part: str) -> tuple[Asked, Asked]:
        """The links of a part, and the negatives that the model is asked beside them."""
        src_type, _, dst_type = self.task.edge_type
        columns: list[list[Tensor]] = [[], [], [], []]
        for batch in self._loader(part, seed=0):
            src, dst = batch[src_type], batch[dst_type]
            found = src.n_id[src.src_index], dst.n_id[dst.dst_pos_index], dst.n_id[dst.dst_neg_index], src.seed_time
            for column, value in zip(columns, found, strict=True):
                column.append(value)
        source, link, negative, time = (torch.cat(column) for column in columns)
        return Asked(source, link, time), Asked(source, negative, time)


def _precision(link: Tensor, negative: Tensor) -> float:
    positive = torch.arange(len(link) + len(negative)) < len(link)
    return average_precision(torch.cat([link, negative]), positive)
