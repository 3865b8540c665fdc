"""The contract between loaders and samplers: a sample is a function of its inputs and a key. Inputs are of one type
or of several, with time windows or without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.typing import EdgeType, NodeType

from ..comm.steps import Steps

T = TypeVar("T", NodeSamplerInput, EdgeSamplerInput)


class _Windowed:
    """Inputs with time windows. For each, edges are sampled whose times are from ``start_time`` to ``time``, both
    included."""

    start_time: Tensor

    def __getitem__(self, index: Any) -> Any:
        at = torch.as_tensor(index, dtype=torch.int64)
        return windowed(super().__getitem__(at), self.start_time[at])  # type: ignore[misc]


class WindowedNodes(_Windowed, NodeSamplerInput):
    """Seeds of one type with time windows."""


class WindowedLinks(_Windowed, EdgeSamplerInput):
    """Links of one relation with time windows."""


def windowed(inputs: NodeSamplerInput | EdgeSamplerInput, start_time: Tensor) -> WindowedNodes | WindowedLinks:
    """The inputs, which have times, with the starts of their windows."""
    kind: Any = WindowedNodes if isinstance(inputs, NodeSamplerInput) else WindowedLinks
    made = kind.__new__(kind)  # PyG's constructors copy
    made.__dict__.update(inputs.__dict__, start_time=start_time)
    return made


def start_time_of(inputs: Any) -> Any:
    """Where the time windows of inputs begin: [inputs], or a dictionary by type; None if there are no windows."""
    return getattr(inputs, "start_time", None)


class ByType(Generic[T]):
    """Inputs of several types. Position p is one of the first type's, then of the second's, and so on.

    Args:
        inputs: of each type; their ``input_type`` is set, and all differ.
    """

    def __init__(self, inputs: Sequence[T]) -> None:
        self.inputs = tuple(inputs)
        """Of each type, in the order in which the user gave them."""

    @property
    def counts(self) -> list[int]:
        """How many inputs there are of each type."""
        return [(entry.node if isinstance(entry, NodeSamplerInput) else entry.row).numel() for entry in self.inputs]

    @property
    def types(self) -> Tensor:
        """The number of each input's type: int64, shape [inputs]."""
        return torch.repeat_interleave(torch.tensor(self.counts))

    def __getitem__(self, positions: Any) -> Any:
        """The inputs at these positions. A type without inputs there stays, with none."""
        at = torch.as_tensor(positions, dtype=torch.int64)
        chosen, begin = [], 0
        for entry, count in zip(self.inputs, self.counts, strict=True):
            chosen.append(entry[at[(at >= begin) & (at < begin + count)] - begin])
            begin += count
        return type(self)(chosen)

    @property
    def input_type(self) -> tuple:
        """The types."""
        return tuple(entry.input_type for entry in self.inputs)

    def _field(self, name: str) -> dict[Any, Tensor] | None:
        """A field of the inputs by type, of those that have it; None if none has."""
        found = {entry.input_type: getattr(entry, name, None) for entry in self.inputs}
        return {of: value for of, value in found.items() if value is not None} or None

    input_id = property(lambda self: self._field("input_id"), doc="Ids of the inputs, by type.")
    time = property(lambda self: self._field("time"), doc="Times, by type; None without any.")
    start_time = property(lambda self: self._field("start_time"), doc="Starts of time windows, by type; or None.")


class NodesByType(ByType[NodeSamplerInput], NodeSamplerInput):
    """Seeds of several node types: ``node``, ``input_id`` and ``time`` are dictionaries by node type."""

    node: dict[NodeType, Tensor] = property(lambda self: self._field("node"))  # type: ignore[assignment]


class LinksByType(ByType[EdgeSamplerInput], EdgeSamplerInput):
    """Links of several relations: ``row``, ``col``, ``label``, ``input_id`` and ``time`` are dictionaries by edge
    type."""

    row: dict[EdgeType, Tensor] = property(lambda self: self._field("row"))  # type: ignore[assignment]
    col: dict[EdgeType, Tensor] = property(lambda self: self._field("col"))  # type: ignore[assignment]
    label = property(lambda self: self._field("label"))  # type: ignore[assignment]


def each_type(inputs: Any) -> tuple[Any, ...]:
    """The inputs of each type, of one or several."""
    return inputs.inputs if isinstance(inputs, ByType) else (inputs,)


def inputs_ids(inputs: NodeSamplerInput | EdgeSamplerInput) -> Tensor:
    """The ids of inputs of one type: seeds [s], or links [2, m]."""
    return inputs.node if isinstance(inputs, NodeSamplerInput) else torch.stack([inputs.row, inputs.col])


def check_no_mask(name: str, nodes: Tensor, num_nodes: int) -> None:
    """Raises ValueError for a 0 or 1 of type uint8 for each node: it could be ids or a mask."""
    if nodes.dtype == torch.uint8 and len(nodes) == num_nodes > 0 and int(nodes.max()) <= 1:
        raise ValueError(
            f"{name}: expected a mask of torch.bool, or ids, found uint8 values of 0 and 1 for each of {num_nodes} "
            f"nodes, which could be either; pass {name}.bool() for a mask, {name}.long() for ids"
        )


Inputs: TypeAlias = NodeSamplerInput | EdgeSamplerInput
"""What a batch is sampled from: seeds, or links."""
Output: TypeAlias = SamplerOutput | HeteroSamplerOutput
"""What a sampler returns. Our own outputs (:mod:`torch_gnnscale.sampler.outputs`) add the CSC, weights and fields."""
OWN_FIELDS = frozenset(
    ("edge_index", "adj_t", "layers", "n_id", "e_id", "batch", "num_nodes", "num_sampled_nodes", "num_sampled_edges",
     "_orig_edge_index", "input_id", "seed_time", "batch_size", "edge_label_index", "edge_label", "edge_label_time",
     "src_index", "dst_pos_index", "dst_neg_index", "dst_pos_mask", "dst_neg_mask", "label_index", "shuffle_index",
     "batch_key", "global_batch_size", "x_halo")
)  # fmt: skip
"""The fields that a loader itself puts into its batches: no names for a sampler's weights."""


def check_weight_name(name: Any) -> None:
    """Raises TypeError or ValueError unless ``name`` can be the field of a batch that holds weights."""
    if not isinstance(name, str):
        raise TypeError(f"weight_name: expected a str, found {type(name).__name__}")
    if not name:
        raise ValueError("weight_name: expected the name of a field, found ''")
    if name in OWN_FIELDS:
        raise ValueError(f"weight_name: expected another name than those of a loader's own fields, found {name!r}")


class KeyedSampler(BaseSampler):
    """Base class of PyG samplers whose samples are a function of (inputs, key).

    A subclass implements ``sample_from_nodes`` or ``sample_from_edges``. The loaders of this package then provide what
    follows from the key: equal batches for any number of threads and worker processes, prefetching, bulks, resuming in
    the middle of an epoch, ``samples()`` and ``loader(index)``. They read only what is declared here::

        class FirstNeighbors(KeyedSampler):
            def sample_from_nodes(self, inputs, key=None): ...      # a SamplerOutput
            def options(self): return {"sampler": "first neighbors"}

    The attributes below must not change: a loader reads them once, in its constructor.
    """

    device: torch.device = torch.device("cpu")
    """The device of samples. If it is a GPU, loaders sample on their own CUDA streams."""
    layers: bool = False
    """Whether every hop expands all nodes found so far. Batches then have ``layers``, a list of bipartite graphs."""
    is_temporal: bool = False
    """Whether seeds have times."""
    takes_windows: bool = False
    """Whether the inputs of a sampler with times may have ``start_time``: where their time windows begin."""
    takes_types: bool = False
    """Whether inputs may be seeds of several node types or links of several relations. Their fields, and then those of
    ``metadata``, are dictionaries by type (:class:`NodesByType`, :class:`LinksByType`), and so is ``neg_sampling``."""
    thread_safe: bool = True
    """Whether several threads may sample at once. If not, one thread samples, in the order of the batches."""
    collective: bool = False
    """Whether all ranks of a process group sample together. If so, one thread samples, in the order of the batches, and
    whether it samples must not depend on what only one rank knows (time, queue length, memory)."""
    batches_per_key: int = 1
    """How many consecutive batches share a key: batch k of an epoch gets the key with number k // batches_per_key."""
    weight_name: str = "edge_weight"
    """The field of batches that holds the weights of edges, if outputs have weights; none of :data:`OWN_FIELDS`."""
    usual_bulk: int = 1
    """Default of a loader's ``bulk``: how many batches are sampled at once."""
    keyed: bool = True
    """Whether a sample is a function of inputs and key. False of PyG's own samplers alone, as loaders see them."""
    _draws = False
    """Whether loaders call ``draw`` and ``draw_many``, which write into batches, in place of the methods below."""

    # Samples #########################################################################################################

    def sample_from_nodes(self, inputs: NodeSamplerInput, key: int | None = None) -> Output:  # type: ignore[override]
        """The sample of seeds. Its ``metadata`` is (input_id, time), as PyG's loaders expect.

        Args:
            inputs: seeds, in the stores' ids.
            key: 64 bits, from :func:`torch_gnnscale.random.batch_key`. PyG's own loaders pass None: the sampler draws a
                key from torch's generator.
        """
        raise NotImplementedError(f"{type(self).__name__} does not sample from nodes")

    def sample_from_edges(  # type: ignore[override]
        self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None, key: int | None = None
    ) -> Output:
        """The sample of links and their negatives. Its ``metadata`` is what PyG's LinkLoader expects."""
        raise NotImplementedError(f"{type(self).__name__} does not sample from links")

    def sample_inputs(self, inputs: Inputs, key: int, neg_sampling: NegativeSampling | None = None) -> Output:
        """The sample of one batch: of its seeds or of its links."""
        if isinstance(inputs, NodeSamplerInput):
            return self.sample_from_nodes(inputs, key=key)
        return self.sample_from_edges(inputs, neg_sampling, key=key)

    def sample_many(
        self, inputs: Sequence[Inputs], keys: Sequence[int], neg_sampling: NegativeSampling | None = None
    ) -> list[Output]:
        """One sample per batch, equal to what :meth:`sample_inputs` returns for it. By default a loop."""
        return [self.sample_inputs(entry, key, neg_sampling) for entry, key in zip(inputs, keys, strict=True)]

    # What loaders read before they sample ############################################################################

    def join(self, steps: Steps, own_seeds: bool) -> None:
        """Called once by a loader whose ranks take steps together, before its first step: a collective sampler issues
        its collectives in these steps.

        Args:
            steps: of the loader. Samples are then asked for within a step, on its thread.
            own_seeds: all seeds of every rank are of the rank's own part.
        """

    def options(self) -> dict[str, Any]:
        """What decides samples besides the key and the edges: plain values, compared when a state is loaded. They are
        entries of a loader's state, so that names of its own entries (``seed``, ``epoch``, ``batch``, ``batch_size``,
        ...) are refused."""
        return {}

    def node_bounds(self) -> Mapping[NodeType | None, int] | None:
        """The number of nodes per type (the type is None in a homogeneous graph): all sampled ids are below it. Returns
        None if it is not known; then every id is checked when its row is read."""
        return None

    def edge_bound(self, edge_type: EdgeType | None) -> int | None:
        """All sampled edge ids of a type are in [0, edge_bound); None if that is not known."""
        return None

    def check_many(self, inputs: type[Inputs], how: str) -> None:
        """Raises NotImplementedError if this sampler cannot sample many batches of such inputs at once on its device.
        ``how`` is the user's argument for the error, such as "bulk=4"."""

    def check_inputs(self, inputs: Inputs) -> None:
        """Called once by a loader of seeds when it is made: raises ValueError if this sampler samples no batch of them.
        ``inputs``: all of the loader's, in the stores' ids."""

    def prepare_links(
        self, edge_type: EdgeType | None, neg_sampling: NegativeSampling | None, links: torch.Tensor | None
    ) -> None:
        """Called once by a loader of links before it starts worker processes: prepares what negatives are drawn from.

        Args:
            edge_type: of the links.
            neg_sampling: how negatives are drawn.
            links: in the stores' ids, shape [2, m]: links that strict negatives must not be; None if there are none.
        """


class UnkeyedSampler(KeyedSampler):
    """A PyG sampler of any class as loaders see one: the thread that iterates calls it, for it may keep state.

    Args:
        sampler: makes its random draws itself.
    """

    keyed = False
    thread_safe = False
    is_temporal = True
    """It may be: nothing says so."""

    def __init__(self, sampler: BaseSampler) -> None:
        self.sampler = sampler
        self.collective = getattr(sampler, "collective", False)

    @property
    def edge_permutation(self) -> Any:
        """That of the sampler."""
        return self.sampler.edge_permutation

    def sample_from_nodes(self, inputs: NodeSamplerInput, key: int | None = None) -> Output:
        """What the sampler returns."""
        return self.sampler.sample_from_nodes(inputs)

    def sample_from_edges(
        self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None, key: int | None = None
    ) -> Output:
        """What the sampler returns."""
        return self.sampler.sample_from_edges(inputs, neg_sampling=neg_sampling)


def keyed(sampler: BaseSampler) -> KeyedSampler:
    """Any sampler as a KeyedSampler; loaders call it once, when they are made."""
    return sampler if isinstance(sampler, KeyedSampler) else UnkeyedSampler(sampler)


def users_own(sampler: KeyedSampler) -> BaseSampler:
    """What was given to :func:`keyed`."""
    return sampler.sampler if isinstance(sampler, UnkeyedSampler) else sampler


def name_of(sampler: KeyedSampler) -> str:
    """What messages call a sampler: its class."""
    return type(users_own(sampler)).__name__
