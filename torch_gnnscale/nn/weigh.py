"""Ordinary PyG models on batches whose edges have weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.nn import to_hetero_with_bases_transformer as pygs

from ..sampler.base import check_weight_name
from .hops import EdgeType, relations_of
from .merged import forward_with, merges
from .pyg_layers import refuse_twice, refuse_unfit, weigh_messages
from .wrapper import Shadow, Wrapper, title_of


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
