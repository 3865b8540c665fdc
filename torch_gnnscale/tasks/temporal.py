"""Prediction of events: which destination a source visits at a time, from earlier events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch_geometric.nn.module_dict import ModuleDict
from torch_geometric.sampler import NegativeSampling

from ..datasets import EventTask, load_events
from ..loader import LinkNeighborLoader
from ..nn import narrow
from ..training import Config, Trainer
from .metrics import average_precision
from .typed_trainers import Encoder

TIMES = 32
"""Width of the encoding of the time since an event."""


@dataclass
class EventConfig(Config):
    """Settings of event prediction."""

    hidden: int = 64
    fanouts: list[int] = field(default_factory=lambda: [10])
    batch_size: int = 512
    epochs: int = 3
    dropout: float = 0.1


class TemporalGNN(nn.Module):
    """Scores pairs (source, destination) by the latest events of both.

    Each node of a pair has three embeddings:

    - own: from :class:`Encoder`;
    - recent: sum over its latest events of w(time since the event) * own embedding of the other node;
    - attended: TransformerConv layers over these events, one layer per hop.

    score = MLP(attended embeddings, recent * own of the other node, all 9 dot products). The dot product of a source's
    recent and a destination's own embedding is large if the source visited the destination recently.
    """

    def __init__(self, task: EventTask, config: EventConfig) -> None:
        super().__init__()
        hidden, types = config.hidden, task.data.edge_types
        if hidden % 2:
            raise ValueError(f"hidden: expected an even number, because layers have two heads, found {hidden}")
        self.edge_type = task.edge_type
        self.encode = Encoder(
            task.data, hidden, scale=hidden**-0.5
        )  # the dot product of an embedding with itself is about 1
        self.weigh = ModuleDict({src: pyg_nn.MLP([TIMES, 16, 1], norm=None) for src, _, _ in types})
        self.sum = pyg_nn.HeteroConv({edge_type: pyg_nn.SimpleConv("sum") for edge_type in types})
        conv = pyg_nn.TransformerConv
        self.convs = nn.ModuleList(
            pyg_nn.HeteroConv({edge_type: conv(hidden, hidden // 2, heads=2, edge_dim=TIMES) for edge_type in types})
            for _ in config.fanouts
        )
        self.decide = pyg_nn.MLP([4 * hidden + 9, hidden, 1], dropout=config.dropout, norm=None)
        self.register_buffer(
            "frequency", torch.logspace(0, -8, TIMES - 1)
        )  # radians per second: periods of 6 s to 20 years

    def embeddings(self, batch: Any) -> dict[str, Tensor]:
        """By node type, (own, recent, attended) of the batch's seeds: [seeds, 3, hidden]."""
        x, edge_index = self.encode(batch), batch.edge_index_dict
        ago, weight = {}, {}
        for edge_type, index in edge_index.items():
            tree = batch[edge_type[2]].batch[index[1]]
            seconds = (batch[edge_type[2]].seed_time[tree] - batch[edge_type].time).float()[:, None]
            ago[edge_type] = torch.cat([torch.cos(seconds * self.frequency), seconds.log1p() / 10], dim=1)
            weight[edge_type] = self.weigh[edge_type[0]](ago[edge_type]).view(-1).sigmoid()
        own_and_recent = [x, self.sum(x, edge_index, edge_weight_dict=weight)]
        for layer, conv in enumerate(self.convs):
            x = x if layer == 0 else {node_type: out.relu() for node_type, out in x.items()}
            x = conv(x, edge_index, edge_attr_dict=ago)
        seeds = {node_type: counts[0] for node_type, counts in batch.num_sampled_nodes_dict.items()}
        return {t: torch.stack([found[t][: seeds[t]] for found in (*own_and_recent, x)], dim=1) for t in x}

    def scores(self, batch: Any, embeddings: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(scores of the batch's links [m], scores of their negatives [m]) by what :meth:`embeddings` returns."""
        src_type, _, dst_type = self.edge_type
        source = embeddings[src_type][batch[src_type].src_index]

        def score(index: Tensor) -> Tensor:
            other = embeddings[dst_type][index]
            own, recent, attended = source.unbind(1)
            its_own, its_recent, its_attended = other.unbind(1)
            products = (source @ other.transpose(1, 2)).flatten(1)
            pair = [attended, its_attended, recent * its_own, own * its_recent, products]
            return self.decide(torch.cat(pair, dim=1)).view(-1)

        return score(batch[dst_type].dst_pos_index), score(batch[dst_type].dst_neg_index)


def embed(model: TemporalGNN, batch: Any) -> dict[str, Tensor]:
    """``model.embeddings(batch)``."""
    return model.embeddings(batch)


class EventScores(nn.Module):
    """Scores of a batch's pairs by a model, which computes what their nodes need."""

    def __init__(self, model: TemporalGNN) -> None:
        super().__init__()
        self.model = model
        self.module = narrow(model, embed)

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """The scores of a batch's links, as :meth:`TemporalGNN.scores`."""
        return self.model.scores(batch, self.module(batch))


class Pairs(NamedTuple):
    """Pairs of nodes at times; three tensors of one length."""

    source: Tensor
    destination: Tensor
    time: Tensor


class EventTrainer(Trainer):
    """Trains a model to score events above negatives of the same source and time. Baseline: recency of the pair.

    The sampler gets the link's time - 1 second as limit: a link's tree has neither the event itself nor any other event
    of the same second.
    """

    config_type = EventConfig
    load = staticmethod(load_events)

    @property
    def metric(self) -> str:
        """Average precision of events against as many negatives."""
        return "average precision"

    def build_model(self) -> nn.Module:
        """A :class:`TemporalGNN`."""
        return TemporalGNN(self.task, self.config)

    def called_module(self) -> nn.Module:
        """The model, narrowed."""
        return EventScores(self.model)  # type: ignore[arg-type]

    def training_batches(self) -> Any:
        """Batches of training events, shuffled; times limit each event's tree to its past."""
        return self._loader("train", self.config.seed, shuffle=True)

    def _loader(self, subset: str, seed: int, shuffle: bool = False) -> Any:
        task, config = self.task, self.config
        events, store = task.events[subset], task.data[task.edge_type]
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
        """(mean binary cross entropy over events and negatives, number of events)."""
        link, other = self.forward(batch)
        loss = nn.functional.softplus(-link).mean() + nn.functional.softplus(other).mean()
        return loss / 2, len(link)

    def score(self, subset: str) -> float:
        """Average precision of the model on the events of ``train``, ``val`` or ``test``."""
        loader = self._loader(subset, seed=0)
        with self.progress(loader, f"evaluate {subset}", len(loader)) as batches:
            scores = [self.forward(batch) for batch in batches]
        return _precision(*(torch.cat(column) for column in zip(*scores, strict=True)))

    def baseline(self) -> tuple[str, float]:
        """(name, average precision on test) of ranking pairs by :meth:`recency`."""
        return "recency", _precision(*(self.recency(pairs) for pairs in self.pairs("test")))

    def recency(self, pairs: Pairs) -> Tensor:
        """Scores of pairs: -(seconds since the pair's last event). Pairs without an event score lower than all others,
        by -(seconds since the destination's last event). float64, shape [m]."""
        store = self.task.data[self.task.edge_type]
        edges, time = store.edge_index, store.time
        destinations, span = self.task.data[self.task.edge_type[2]].num_nodes, int(time.max()) + 2

        def ago(keys: Tensor, key: Tensor) -> Tensor:
            """Seconds from a key's latest event, at the pair's time or before, to that time; -1 if there is none."""
            order = torch.sort(keys * span + time).values
            at = torch.searchsorted(order, key * span + pairs.time, right=True) - 1
            found = order[at.clamp(min=0)]
            return torch.where((at >= 0) & (found // span == key), pairs.time - found % span, -1)

        own = ago(edges[0] * destinations + edges[1], pairs.source * destinations + pairs.destination)
        anyone = ago(edges[1], pairs.destination)
        far = torch.where(anyone >= 0, anyone, span) + span
        return -torch.where(own >= 0, own, far).double()

    def pairs(self, subset: str) -> tuple[Pairs, Pairs]:
        """(the events of ``train``, ``val`` or ``test``, the negatives that :meth:`score` compares them with)."""
        src_type, _, dst_type = self.task.edge_type
        columns: list[list[Tensor]] = [[], [], [], []]
        for batch in self._loader(subset, seed=0):
            src, dst = batch[src_type], batch[dst_type]
            found = src.n_id[src.src_index], dst.n_id[dst.dst_pos_index], dst.n_id[dst.dst_neg_index], src.seed_time
            for column, value in zip(columns, found, strict=True):
                column.append(value)
        source, link, negative, time = (torch.cat(column) for column in columns)
        return Pairs(source, link, time), Pairs(source, negative, time)


def _precision(link: Tensor, negative: Tensor) -> float:
    positive = torch.arange(len(link) + len(negative)) < len(link)
    return average_precision(torch.cat([link, negative]), positive)
