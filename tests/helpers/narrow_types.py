"""Models of typed graphs, and random graphs of random schemas, for tests of narrowed models."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import to_hetero, to_hetero_with_bases

from torch_gnnscale import NeighborLoader
from torch_gnnscale.nn.hops import num_seeds

FEATURES, HIDDEN, CLASSES, ATTRIBUTES = 3, 8, 4, 2


def make_types(
    sizes: dict[str, int], relations: list[tuple[str, str, str]], degree: int, seed: int, empty: int = -1
) -> HeteroData:
    """A random graph; each relation has ``degree`` edges per destination, if both of its types have nodes, but for the
    relation number ``empty``. Features are float64."""
    generator = torch.Generator().manual_seed(seed)
    data = HeteroData()
    for node_type, count in sizes.items():
        data[node_type].x = torch.randn(count, FEATURES, dtype=torch.float64, generator=generator)
        data[node_type].num_nodes = count
    for number, (src, name, dst) in enumerate(relations):
        count = degree * sizes[dst] if sizes[src] and number != empty else 0
        ends = [torch.randint(max(sizes[end], 1), (count,), generator=generator) for end in (src, dst)]
        data[src, name, dst].edge_index = torch.stack(ends)
        data[src, name, dst].edge_attr = torch.rand(count, ATTRIBUTES, dtype=torch.float64, generator=generator)
    return data


@st.composite
def schemas(draw: Any, every_type_is_reached: bool = True) -> HeteroData:
    """Graphs of one to three types, one of which may be empty, and relations among them, with at least one into each
    type if that is wanted."""
    types = ["a", "b", "c"][: draw(st.integers(1, 3))]
    sizes = {node_type: draw(st.integers(1, 12)) for node_type in types}
    if len(types) > 1 and draw(st.booleans()):
        sizes[types[-1]] = 0
    pairs = draw(st.lists(st.tuples(st.sampled_from(types), st.sampled_from(types)), min_size=1, max_size=5))
    if every_type_is_reached:
        pairs += [(draw(st.sampled_from(types)), t) for t in types if t not in {dst for _, dst in pairs}]
    relations = [(src, f"r{number}", dst) for number, (src, dst) in enumerate(pairs)]
    return make_types(
        sizes, relations, draw(st.integers(0, 3)), draw(st.integers(0, 99)), draw(st.integers(-1, len(pairs) - 1))
    )


class ByRelation(nn.Module):
    """Layers of HeteroConv; a type without a relation into it keeps its rows.

    Args:
        data: the graph, for its types.
        conv: ``conv(relation, number)`` makes a layer of width ``HIDDEN``.
        layers: how many layers of HeteroConv.
        aggr: HeteroConv's.
        skip: add each layer's input to its output.
        norm: made for each type after each layer.
        attributes: give edges' attributes to layers.
    """

    def __init__(
        self, data: HeteroData, conv: Callable[[Any, int], nn.Module], layers: int = 2, aggr: str = "sum",
        skip: bool = False, norm: Callable[[], nn.Module] | None = None, attributes: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.encode = nn.ModuleDict({t: nn.Linear(FEATURES, HIDDEN) for t in data.node_types})
        self.convs = nn.ModuleList(
            pyg_nn.HeteroConv({r: conv(r, number) for number, r in enumerate(data.edge_types)}, aggr)
            for _ in range(layers)
        )
        self.norms = nn.ModuleList(
            nn.ModuleDict({t: norm() for t in data.node_types} if norm else {}) for _ in range(layers)
        )
        self.skip, self.attributes = skip, attributes

    def forward(self, x: dict[str, Tensor], edges: Any, attributes: Any = None) -> dict[str, Tensor]:
        x = {t: self.encode[t](rows) for t, rows in x.items()}
        for conv, norms in zip(self.convs, self.norms, strict=True):
            out = conv(x, edges, attributes) if self.attributes else conv(x, edges)
            out = {t: norms[t](rows) if t in norms else rows for t, rows in out.items()}
            x = {
                t: (out[t].relu() + rows if self.skip else out[t].relu()) if t in out else rows for t, rows in x.items()
            }
        return x


class Dictionaries(nn.Module):
    """Layers that take dictionaries."""

    def __init__(self, data: HeteroData, conv: Callable[..., nn.Module], layers: int = 2) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            conv(HIDDEN if layer else FEATURES, HIDDEN, data.metadata(), heads=2) for layer in range(layers)
        )

    def forward(self, x: dict[str, Tensor], edges: Any, attributes: Any = None) -> dict[str, Tensor]:
        for conv in self.convs:
            x = {t: rows for t, rows in conv(x, edges).items() if rows is not None}
        return x


class Pairs(nn.Module):
    """Calls layers with pairs of rows itself: at first those into the first type alone, then all."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        made = lambda: nn.ModuleDict({"_".join(r): pyg_nn.SAGEConv((FEATURES, FEATURES), FEATURES)  # noqa: E731
                                      for r in data.edge_types})  # fmt: skip
        self.first, self.second = made(), made()

    def forward(self, x: dict[str, Tensor], edges: Any, attributes: Any = None) -> dict[str, Tensor]:
        x = dict(x)
        for convs, only in ((self.first, sorted(x)[0]), (self.second, None)):
            before = dict(x)
            for relation, index in edges.items():
                src, _, dst = relation
                if only in (None, dst):
                    x[dst] = x[dst] + convs["_".join(relation)]((before[src], before[dst]), index)
        return x


class WithBases(nn.Module):
    """Two layers that ``to_hetero_with_bases`` computes in one graph of all relations, joined with their input.

    Args:
        data: the graph, for its types.
        conv: makes a layer of width ``HIDDEN``.
        attributes: give edges' attributes to layers.
    """

    def __init__(self, data: HeteroData, conv: Callable[[], nn.Module], attributes: bool = False) -> None:
        super().__init__()
        model = _OfEdges(conv) if attributes else _OfRows(conv)
        self.of_edges = attributes
        self.model = to_hetero_with_bases(model, data.metadata(), num_bases=2, in_channels={"x": HIDDEN})

    def forward(self, x: dict[str, Tensor], edges: Any, attributes: Any = None) -> dict[str, Tensor]:
        return self.model(attributes, x, edges) if self.of_edges else self.model(x, edges)


class _OfRows(nn.Module):
    def __init__(self, conv: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first, self.second, self.last = conv(), conv(), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out = self.first(x, edge_index).relu()
        return self.last(self.second(out, edge_index) + x)


class _OfEdges(_OfRows):
    """Gets what belongs to edges first, which is then merged before the nodes are."""

    def forward(self, edge_attr: Tensor, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        out = self.first(x, edge_index, edge_attr).relu()
        return self.last(self.second(out, edge_index, edge_attr) + x)


def _to_hetero(model: Callable[[], nn.Module], **options: Any) -> Callable[[HeteroData], nn.Module]:
    return lambda data: to_hetero(model(), data.metadata(), **options)


def mixed(relation: Any, number: int) -> nn.Module:
    """Layers of several kinds; one that is not between two types adds self loops."""
    src, _, dst = relation
    pair = (HIDDEN, HIDDEN)
    if src == dst and number % 2:
        return pyg_nn.GCNConv(HIDDEN, HIDDEN) if number % 4 == 1 else pyg_nn.GATConv(HIDDEN, HIDDEN)
    kinds: list[Callable[[], nn.Module]] = [
        lambda: pyg_nn.SAGEConv(pair, HIDDEN),
        lambda: pyg_nn.GATConv(pair, HIDDEN, heads=2, concat=False, add_self_loops=False),
        lambda: pyg_nn.GraphConv(pair, HIDDEN, aggr="max"),
        lambda: pyg_nn.TransformerConv(pair, HIDDEN),
        lambda: pyg_nn.GATv2Conv(pair, HIDDEN, add_self_loops=False),
    ]
    return kinds[number % len(kinds)]()


def _sage(aggr: Any = "mean", **options: Any) -> Callable[[Any, int], nn.Module]:
    return lambda relation, number: pyg_nn.SAGEConv((HIDDEN, HIDDEN), HIDDEN, aggr, **options)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN))


MODELS: dict[str, Callable[[HeteroData], nn.Module]] = {
    "to_hetero SAGE": _to_hetero(lambda: pyg_nn.GraphSAGE((-1, -1), HIDDEN, 2, CLASSES)),
    "to_hetero SAGE, jumping": _to_hetero(
        lambda: pyg_nn.GraphSAGE((-1, -1), HIDDEN, 2, CLASSES, jk="cat"), aggr="mean"
    ),
    "to_hetero SAGE, max": _to_hetero(lambda: pyg_nn.GraphSAGE((-1, -1), HIDDEN, 2, CLASSES), aggr="max"),
    "to_hetero GAT": _to_hetero(lambda: pyg_nn.GAT((-1, -1), HIDDEN, 2, CLASSES, add_self_loops=False, heads=2)),
    "SAGE": lambda data: ByRelation(data, _sage()),
    "SAGE, three layers of max": lambda data: ByRelation(data, _sage("max"), 3, "max"),
    "SAGE, cat": lambda data: ByRelation(data, _sage("sum", project=True), 1, "cat"),
    "SAGE, several": lambda data: ByRelation(data, _sage(["mean", "max"]), 2, "mean"),
    "mixed": lambda data: ByRelation(data, mixed),
    "mixed, skipping": lambda data: ByRelation(data, mixed, skip=True, aggr="mean"),
    "GIN": lambda data: ByRelation(data, lambda *_: pyg_nn.GINConv(_mlp(), train_eps=True)),
    "relational": lambda data: ByRelation(data, _sage("sum"), skip=True, norm=lambda: nn.LayerNorm(HIDDEN)),
    "attributes": lambda data: ByRelation(
        data, lambda *_: pyg_nn.GATConv((HIDDEN, HIDDEN), HIDDEN, add_self_loops=False, edge_dim=ATTRIBUTES),
        attributes=True,
    ),
    "edges' MLP": lambda data: ByRelation(
        data, lambda *_: pyg_nn.GINEConv(_mlp(), edge_dim=ATTRIBUTES), attributes=True, skip=True
    ),
    "pairs": Pairs,
    "bases": lambda data: WithBases(data, lambda: pyg_nn.SAGEConv((HIDDEN, HIDDEN), HIDDEN)),
    "bases, GCN": lambda data: WithBases(data, lambda: pyg_nn.GCNConv(HIDDEN, HIDDEN, add_self_loops=False)),
    "bases, max": lambda data: WithBases(data, lambda: pyg_nn.GraphConv(HIDDEN, HIDDEN, aggr="max")),
    "bases, attributes": lambda data: WithBases(
        data, lambda: pyg_nn.GINEConv(_mlp(), edge_dim=ATTRIBUTES), attributes=True
    ),
    "HGT": lambda data: Dictionaries(data, pyg_nn.HGTConv),
}  # fmt: skip


def call(model: nn.Module, batch: Any) -> Any:
    """The model of dictionaries."""
    if isinstance(model, (ByRelation, Pairs, Dictionaries, WithBases)):
        return model(batch.x_dict, batch.edge_index_dict, batch.edge_attr_dict)
    return model(batch.x_dict, batch.edge_index_dict)


def made(name: str, data: HeteroData) -> nn.Module:
    """A model of float64, of which lazy layers have their sizes."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of types that no relation leads to
        model = MODELS[name](data)
    model = model.double()
    whole = NeighborLoader(data, [1], (data.node_types[0], None), batch_size=1)
    with torch.no_grad():
        call(model, next(iter(whole)))  # gives lazy layers their sizes
    return model


RELATIONS = [("a", "r0", "b"), ("b", "r1", "a"), ("a", "r2", "a"), ("a", "r3", "c"), ("c", "r4", "b"), ("b", "r5", "a")]
"""Nothing leads to c in the first hop before seeds of b; the relation number 3 has no edges in :data:`GRAPH`."""
GRAPH = make_types({"a": 30, "b": 20, "c": 10}, RELATIONS, degree=3, seed=0, empty=3)


def batch_of(node_type: str = "a", seeds: Sequence[int] = (3, 1, 3), fanouts: Sequence[int] = (2, 2)) -> Any:
    """A batch of :data:`GRAPH`."""
    loader = NeighborLoader(GRAPH, list(fanouts), (node_type, torch.tensor(seeds)), batch_size=len(seeds))
    return next(iter(loader))


def gradients(model: nn.Module, out: dict[str, Tensor]) -> list[Tensor]:
    """Of the parameters, of a sum of the outputs."""
    total, generator = torch.zeros((), dtype=torch.float64), torch.Generator().manual_seed(0)
    for key in sorted(out):
        total = total + (out[key] * torch.randn(out[key].shape, dtype=torch.float64, generator=generator)).sum()
    if not total.requires_grad:
        return []
    found = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
    return [torch.zeros(()) if grad is None else grad for grad in found]


def check(model: nn.Module, narrowed: nn.Module, batch: Any) -> None:
    """The narrowed model's rows of the seeds and its gradients are those on the whole batch."""
    seeds = num_seeds(batch)
    expected = {key: rows[: seeds[key]] for key, rows in call(model, batch).items() if key in seeds}
    found = narrowed(batch)
    assert set(found) == set(expected)
    for key, rows in expected.items():
        torch.testing.assert_close(found[key], rows, rtol=1e-12, atol=1e-12)
    of_found, of_expected = gradients(model, found), gradients(model, expected)
    parameters = list(model.named_parameters()) if of_expected else []
    for (name, parameter), ours, theirs in zip(parameters, of_found, of_expected, strict=True):
        theirs = torch.zeros_like(parameter) if theirs.dim() == 0 and parameter.dim() else theirs
        ours = torch.zeros_like(parameter) if ours.dim() == 0 and parameter.dim() else ours
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11, msg=lambda text: f"{name}: {text}")  # noqa: B023


class OneEach(nn.Module):
    """Attention over types of which each has one relation into it."""

    def __init__(self, metadata: Any) -> None:
        super().__init__()
        self.convs = nn.ModuleList(pyg_nn.HANConv(FEATURES, FEATURES, metadata) for _ in range(2))

    def forward(self, x: dict[str, Tensor], edges: Any) -> dict[str, Tensor]:
        for conv in self.convs:
            x = conv(x, edges)
        return x


KINDS: dict[str, Callable[[int], nn.Module]] = {
    "RGCN": lambda kinds: pyg_nn.RGCNConv(FEATURES, FEATURES, kinds, num_bases=2),
    "fast RGCN": lambda kinds: pyg_nn.FastRGCNConv(FEATURES, FEATURES, kinds),
    "RGAT": lambda kinds: pyg_nn.RGATConv(FEATURES, FEATURES, kinds, edge_dim=ATTRIBUTES),
    "FiLM": lambda kinds: pyg_nn.FiLMConv(FEATURES, FEATURES, kinds),
}
"""Layers of a graph of one type whose edges have the numbers of their relations."""


def numbered_relations(name: str, kinds: int) -> tuple[nn.Module, Callable[[nn.Module, Any], Tensor]]:
    """A model of two layers, and how it is called."""
    torch.manual_seed(0)
    given = "x, e, t, a" if name == "RGAT" else "x, e, t"
    model = pyg_nn.Sequential("x, e, t, a", [(KINDS[name](kinds), f"{given} -> x") for _ in range(2)]).double()
    return model, lambda model, batch: model(batch.x, batch.edge_index, batch.edge_type, batch.edge_attr)
