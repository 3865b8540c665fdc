"""Wrapped models whose MessagePassing layers are told, for each batch, what they compute: with the weights of its
edges, or as a subclass says, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from traceback import walk_tb
from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch_geometric import EdgeIndex
from torch_geometric.nn import to_hetero_with_bases_transformer as pygs
from torch_geometric.nn.models.basic_gnn import BasicGNN

from ..sampler.base import check_weight_name
from .forward_pass import ForwardPass, JoinOfPass, LayerOfPass
from .hops import EdgeType, device_of, relations_of, seed_rows
from .merged import forward_with, merges
from .narrowed_layer import NarrowedLayer
from .pyg_layers import refuse_twice, refuse_unfit, weigh_messages
from .trial import trial
from .wrapper import Call, Functions, Shadow, Wrapper, modules_of, running_module, title_of


def default_call(model: nn.Module, batch: Any) -> Any:
    """``model(batch.x, batch.edge_index)``."""
    return model(batch.x, batch.edge_index)


class Weighed(Wrapper):
    """What :func:`weigh` returns; ``module`` is the model, unchanged.

    Parameters, buffers, submodules and the ``state_dict`` have the model's names, so that a ``state_dict`` of either
    can be loaded into the other. Attributes that this object lacks are looked up in the model.
    """

    def __init__(
        self,
        module: nn.Module,
        call: Callable[[Any, Any], Any] = default_call,
        weight_name: str = "edge_weight",
    ) -> None:
        super().__init__(module)
        self.call = call
        check_weight_name(weight_name)
        self.weight_name = weight_name
        if found := next((m for m in module.modules() if isinstance(m, Wrapper)), None):
            raise ValueError(
                f"model: expected one as it was made, found {type(found).__name__}; write narrow(weigh(model))"
            )
        if not self._layers():
            raise ValueError(f"model: expected one with MessagePassing layers, found none in {type(module).__name__}")

    def forward(self, batch: Any) -> Any:
        """The model's output for the whole batch.

        Raises:
            ValueError: the batch has no weights; a layer gets other edges than the batch's; or a layer cannot be
                weighed. The message names it.
        """
        with self.weighing(batch):
            return self.call(self.module, batch)

    def edge_weights(self, batch: Any) -> dict[EdgeType, Tensor]:
        """The batch's weights by relation: [e], in the order of ``edge_index``."""
        found = {}
        for key, store in relations_of(batch).items():
            of = "batch" if key is None else f"batch[{key}]"
            index, weight = (getattr(store, name, None) for name in ("edge_index", self.weight_name))
            if not isinstance(index, Tensor):
                raise ValueError(
                    f"{of}: expected one with edge_index, found none; give the weights of layers=True and adj_t to "
                    f"the layers by hand"
                )
            if not isinstance(weight, Tensor):
                raise ValueError(
                    f"{of}: expected weights of edges named {self.weight_name!r}, found none; make batches with "
                    f"NeighborLoader(..., method='ladies'), 'fastgcn' or 'labor', or say weight_name="
                )
            if weight.shape != index.shape[1:]:
                raise ValueError(
                    f"{of}.{self.weight_name}: expected shape {tuple(index.shape[1:])}, found {tuple(weight.shape)}"
                )
            found[key] = weight
        return found

    @contextmanager
    def weighing(self, batch: Any) -> Iterator[None]:
        """A context in which the model's layers multiply the messages of this batch's edges by their weights."""
        weights, stores = self.edge_weights(batch), relations_of(batch)
        pairs = [(stores[key].edge_index, weight) for key, weight in weights.items()]
        with ExitStack() as stack:
            for title, layer in self._layers():
                shadow = Shadow(layer)
                stack.callback(shadow.restore)
                shadow.set("propagate", partial(_propagate, title, layer, layer.propagate, pairs))
            for module in filter(merges, self.module.modules()):

                def edges(values: Any, numbers: Any, places: Any) -> Any:
                    merged = pygs.group_edge_placeholder(values, numbers, places)
                    if all(
                        values[k] is stores[k].edge_index if k in stores else not values[k].numel() for k in numbers
                    ):
                        pairs.append((merged, torch.cat([weights[k] for k in numbers if k in stores])))
                    return merged

                shadow = Shadow(module)
                stack.callback(shadow.restore)
                shadow.set("forward", forward_with(module, {pygs.group_edge_placeholder: edges}))
            yield

    def _layers(self) -> list[tuple[str, pyg_nn.MessagePassing]]:
        """(title for errors, layer) for each MessagePassing layer of the model.

        Raises:
            ValueError: a layer cannot be weighed.
        """
        layers = [(n, m) for n, m in self.module.named_modules() if isinstance(m, pyg_nn.MessagePassing)]
        titled = [(title_of(name, layer), layer) for name, layer in layers]
        for title, layer in titled:
            refuse_unfit(title, layer)
        return titled


def weigh(
    model: nn.Module, call: Callable[[Any, Any], Any] = default_call, weight_name: str = "edge_weight"
) -> Weighed:
    """Makes a PyG model multiply every message by the weight of its edge; of a HeteroData, all relations have weights.

    A layer that aggregates messages m_e then returns sum_e w_e m_e, whether it takes their sum or their mean. With the
    weights of a :class:`~torch_gnnscale.LayerSampler`, whose ``aggregation`` says what the weighted sum estimates, this
    estimates the layer's output with all neighbors. If a layer gets an ``edge_weight`` of its own, messages are
    multiplied by both.

    Layers: CGConv, EdgeConv, GCN2Conv, GCNConv, GINConv, GINEConv, GraphConv, LEConv, LGConv, NNConv,
    ResGatedGraphConv and SAGEConv, with ``aggr`` "sum", "add" or "mean" and without a normalization by degrees.

    ``narrow(weigh(model))`` computes only what the seeds need.

    Args:
        model: any module whose MessagePassing layers are among these, and get the batch's ``edge_index`` or a prefix.
        call: ``call(model, batch)`` calls the model.
        weight_name: the name of the batches' field with the weights: the sampler's ``weight_name``.

    Returns:
        A module that is called with a batch; it shares the model's parameters.

    Raises:
        ValueError: the model has no MessagePassing layers, or a layer that cannot be weighed, which the message names.
    """
    return Weighed(model, call, weight_name)


def _propagate(
    title: str,
    layer: pyg_nn.MessagePassing,
    propagate: Callable[..., Tensor],
    pairs: list[tuple[Tensor, Tensor]],
    edge_index: Any,
    size: Any = None,
    **kwargs: Any,
) -> Tensor:
    """``propagate`` with weighted messages; ``edge_index``: the batch's edges of one of the ``pairs`` with their
    weights, or a prefix of them."""
    weight = next((weight for edges, weight in pairs if edge_index is edges), None)
    if weight is None:
        weight = next((weight for edges, weight in pairs if _is_prefix(edge_index, edges)), None)
    if weight is None:
        raise ValueError(
            f"{title}: expected the batch's edge_index or a prefix of it, found other edges; a model that changes the "
            f"edges cannot be weighed"
        )
    weight = weight[: edge_index.size(1)]
    refuse_twice(title, kwargs, weight)
    with weigh_messages(layer, weight):
        return propagate(edge_index, size=size, **kwargs)


def _is_prefix(index: Any, of: Tensor) -> bool:
    """Whether ``index`` is a prefix of ``of``, in the same memory."""
    if index is of:
        return True
    if not isinstance(index, Tensor) or index.dim() != 2 or index.size(1) > of.size(1):
        return False
    first, whole = (i.as_tensor() if isinstance(i, EdgeIndex) else i for i in (index, of))
    same_place = first.data_ptr() == whole.data_ptr() and first.stride() == whole.stride()
    return same_place or first.size(1) == 0


def _has_own_code(model: nn.Module) -> bool:
    """Whether the model may join rows of several hops, or compute another thing from some batch on. PyG's models of
    PyG's and torch's modules without JumpingKnowledge do not: they give the rows that a layer returns to the next
    layer."""
    if type(model).forward is not BasicGNN.forward or "forward" in vars(model) or model.jk_mode is not None:
        return True
    if any(
        not isinstance(conv, pyg_nn.MessagePassing) or conv._forward_hooks or conv._forward_pre_hooks
        for conv in model.convs
    ):
        return True
    between = *(() if model.act is None else (model.act,)), *(model.norms or ())
    return any(not (getattr(own, "__module__", "") or "").startswith(("torch.", "torch_geometric.")) for own in between)


_OUT_OF_RANGE = "out of bounds", "inconsistent with indices", "is not satisfied"
"""In torch's texts for indices out of range that are no IndexErrors: of a GPU, of sparse matrices."""


class Layered(Wrapper):
    """A model, or what :func:`weigh` returned, and its MessagePassing layers.

    Args:
        module: the model.
        call: how it is called with a batch; the default of a weighed model is what :func:`weigh` was given.

    Raises:
        ValueError: the model has no MessagePassing layers, or is wrapped already.
    """

    layer_type: type[NarrowedLayer] = NarrowedLayer
    """The class that computes layers during a forward pass."""
    _norm_types: tuple[type[nn.Module], ...] = ()
    """The classes of modules that in training normalize by statistics of the rows that are computed."""

    def __init__(self, module: nn.Module, call: Callable[[Any, Any], Any] = default_call) -> None:
        super().__init__(module)
        model = module
        if isinstance(module, Weighed):
            model, call = module.module, module.call if call is default_call else call
        if found := next((m for m in model.modules() if isinstance(m, Wrapper)), None):
            raise ValueError(
                f"model: expected a model or weigh(model), found {type(found).__name__} within {type(model).__name__}"
            )
        self.call = call
        self._calls: dict[tuple[int, bool], list[Call]] = {}
        """The calls of layers, by (number of hops of the batch, whether the model is in training)."""
        self._prepared: dict[pyg_nn.MessagePassing, LayerOfPass] = {}
        self._found: list[LayerOfPass] = []
        """The layers that were looked up last."""
        self._joins: list[JoinOfPass] = []
        """What adds up outputs of these layers."""
        self._tree: list[tuple[nn.Module, list[nn.Module | None]]] = []
        """All modules of ``module`` and their children when layers were looked up last."""
        self._functions: dict[bool, Functions] = {False: Functions(), True: Functions()}
        """What the model called when it was compared with the model on whole batches, by mode."""
        self._norms: list[nn.Module] = []
        """Those of these modules that are of ``_norm_types``."""
        if not self._layers():
            raise ValueError(f"model: expected one with MessagePassing layers, found none in {type(module).__name__}")

    def _layers(self) -> list[LayerOfPass]:
        """The model's layers. They are looked up again when a module got other children; a layer is prepared when it is
        seen first."""
        known = bool(self._tree) and self._tree[0][0] is self.module
        if known and all([*module._modules.values()] == children for module, children in self._tree):
            return self._found
        modules = modules_of(self.module)
        layers = [module for module in modules if isinstance(module, pyg_nn.MessagePassing)]
        if any(layer not in self._prepared for layer in layers):
            names = {module: name for name, module in self.module.named_modules()}
            self._prepared = {layer: self._prepare(names[layer], layer) for layer in layers}
            self._calls, self._functions = {}, {False: Functions(), True: Functions()}
            self._layers_changed()
        self._norms = [module for module in modules if isinstance(module, self._norm_types)]
        self._found = [self._prepared[layer] for layer in layers]
        self._joins = self._joining(modules)
        self._tree = [(module, [*module._modules.values()]) for module in modules]
        return self._found

    def _prepare(self, name: str, layer: pyg_nn.MessagePassing) -> LayerOfPass:
        """What computes a layer during a forward pass."""
        return self.layer_type(name, layer)

    def _joining(self, modules: list[nn.Module]) -> list[JoinOfPass]:
        """What adds up outputs of layers during a forward pass, among all modules."""
        return []

    def _layers_changed(self) -> None:
        """Called when the model has other layers than before."""

    @property
    def _model(self) -> nn.Module:
        """The model, as it was before it was wrapped."""
        module: Any = self._modules["module"]  # read for each batch, and found in a fifth of the time of an attribute
        return module.module if isinstance(module, Weighed) else module

    def _has_lazy(self) -> bool:
        return any(is_lazy(parameter) for parameter in self.module.parameters())

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """A context in which the model is in evaluation mode; afterwards each module has its mode again."""
        training = {module: module.training for module in self.modules()}
        self.eval()
        try:
            yield
        finally:
            for module, mode in training.items():
                module.training = mode

    def _trial(self, batch: Any) -> AbstractContextManager[None]:
        """A context in which the model runs on a batch to be looked at, and leaves no trace (:func:`trial`)."""
        return trial(self.module, self._norm_types, device_of(batch))

    @contextmanager
    def _naming_modules(self, whole: Any) -> Iterator[None]:
        """A context in which an index out of range is a ValueError that names the module whose code has it, unless the
        model on the batch ``whole`` fails as well: it reads rows of nodes that a layer on fewer rows does not return.
        Indices of sparse matrices are checked, too; torch otherwise reads and writes at them.
        """
        try:
            with torch.sparse.check_sparse_tensor_invariants():
                yield
        except (IndexError, RuntimeError) as error:
            if not isinstance(error, IndexError) and not any(text in str(error) for text in _OUT_OF_RANGE):
                raise
            self._whole(whole)
            frames = [frame for frame, _ in walk_tb(error.__traceback__)][::-1]
            raise ValueError(
                f"{running_module(frames)}: expected a model that reads edges in MessagePassing layers alone, found "
                f"rows of nodes that are not there: {error}"
            ) from error

    def _whole(self, batch: Any) -> Any:
        """The model's output for the whole batch."""
        module: Any = self._modules["module"]  # as in _model
        if isinstance(module, Weighed):
            with module.weighing(batch):
                return self.call(module.module, batch)
        return self.call(module, batch)

    def _weights(self, batch: Any) -> dict[EdgeType, Tensor] | None:
        """By relation, the numbers by which messages are multiplied, one per edge; None if the model is not weighed."""
        return self.module.edge_weights(batch) if isinstance(self.module, Weighed) else None

    def _compute(self, batch: Any, forward_pass: ForwardPass) -> Any:
        """The model's output for the batch's seeds, with its layers in a forward pass."""
        model = self._model
        entered = list[JoinOfPass]()
        try:
            for layer in (*self._layers(), *self._joins):
                layer.enter(forward_pass)
                entered.append(layer)
            rows = forward_pass.common_rows
            with rows if rows.everywhere or self.call is not default_call or _has_own_code(model) else nullcontext():
                out = self.call(model, batch)
            return seed_rows(out, batch, forward_pass.returned)
        finally:
            for layer in entered:
                layer.leave()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_prepared": {}, "_found": [], "_joins": [], "_tree": [], "_norms": []}
