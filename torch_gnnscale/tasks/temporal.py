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
"""Width of the encoding of an event's age."""


@dataclass
class EventConfig(Config):
    """What is trained, and how."""

    hidden: int = 64
    fanouts: list[int] = field(default_factory=lambda: [10])
    batch_size: int = 512
    epochs: int = 3
    lr: float = 0.005
    dropout: float = 0.1


class TemporalGNN(nn.Module):
    """Scores pairs by what both ends did lately.

    Each end of a pair has three rows: its own, from a table; the sum of its latest neighbors' own rows, weighted by how
    long ago they met; and what attention over these events finds, in as many layers as there are hops. Whether a source
    was at a destination before is the product of the first of the one and the second of the other.
    """

    def __init__(self, task: EventTask, config: EventConfig) -> None:
        super().__init__()
        hidden, types = config.hidden, task.data.edge_types
        if hidden % 2:
            raise ValueError(f"hidden: expected an even number, for layers have two heads, found {hidden}")
        self.edge_type = task.edge_type
        self.encode = Encoder(task.data, hidden, scale=hidden**-0.5)  # a row's product with itself is about 1
        self.weigh = nn.ModuleDict({src: pyg_nn.MLP([TIMES, 16, 1], norm=None) for src, _, _ in types})
        self.sum = pyg_nn.HeteroConv({edge_type: pyg_nn.SimpleConv("sum") for edge_type in types})
        conv = pyg_nn.TransformerConv
        self.convs = nn.ModuleList(
            pyg_nn.HeteroConv({edge_type: conv(hidden, hidden // 2, heads=2, edge_dim=TIMES) for edge_type in types})
            for _ in config.fanouts
        )
        self.decide = pyg_nn.MLP([4 * hidden + 9, hidden, 1], dropout=config.dropout, norm=None)
        self.register_buffer("frequency", torch.logspace(0, -8, TIMES - 1))  # of a second, to years

    def rows(self, batch: Any) -> dict[str, Tensor]:
        """By node type, the three rows of the batch's seeds, which come first: [N, 3, hidden]."""
        x, edge_index = self.encode(batch), batch.edge_index_dict
        ago, weight = {}, {}
        for edge_type, index in edge_index.items():
            tree = batch[edge_type[2]].batch[index[1]]
            seconds = (batch[edge_type[2]].seed_time[tree] - batch[edge_type].time).float()[:, None]
            ago[edge_type] = torch.cat([torch.cos(seconds * self.frequency), seconds.log1p() / 10], dim=1)
            weight[edge_type] = self.weigh[edge_type[0]](ago[edge_type]).view(-1).sigmoid()
        rows = [x, self.sum(x, edge_index, edge_weight_dict=weight)]
        hops = batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict
        for layer, conv in enumerate(self.convs):
            x = x if layer == 0 else {node_type: out.relu() for node_type, out in x.items()}
            x, edge_index, ago = trim_to_layer(layer, *hops, x, edge_index, ago)
            x = conv(x, edge_index, edge_attr_dict=ago)
        seeds = {node_type: counts[0] for node_type, counts in hops[0].items()}
        return {t: torch.stack([found[t][: seeds[t]] for found in (*rows, x)], dim=1) for t in x}

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Scores of a batch's links and of their negatives: [m] each."""
        rows = self.rows(batch)
        src_type, _, dst_type = self.edge_type
        source = rows[src_type][batch[src_type].src_index]

        def score(index: Tensor) -> Tensor:
            other = rows[dst_type][index]
            own, lately, attended = source.unbind(1)
            its_own, its_lately, its_attended = other.unbind(1)
            products = (source @ other.transpose(1, 2)).flatten(1)
            pair = [attended, its_attended, lately * its_own, own * its_lately, products]
            return self.decide(torch.cat(pair, dim=1)).view(-1)

        return score(batch[dst_type].dst_pos_index), score(batch[dst_type].dst_neg_index)


class Asked(NamedTuple):
    """Pairs at times, one for each link and one for its negative."""

    source: Tensor
    destination: Tensor
    time: Tensor


class EventTrainer(Trainer):
    """Trains a model to tell events from others of the same user and time; its baseline ranks pairs by recency.

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
        with self.progress(loader, f"evaluate {part}", len(loader)) as batches:
            scores = [self.model(batch) for batch in batches]
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
