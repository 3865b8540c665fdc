"""Ordinary PyG models on batches whose edges have weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch_geometric import EdgeIndex

from .messages import refuse_twice, refuse_unfit, weigh_messages
from .shadow import Shadow
from .wrapper import Wrapper


def default_call(model: nn.Module, batch: Any) -> Any:
    """``model(batch.x, batch.edge_index)``."""
    return model(batch.x, batch.edge_index)


class Weighed(Wrapper):
    """What :func:`weigh` returns; ``module`` is the model itself, unchanged.

    Parameters, buffers and submodules have the names that they have in the model, and so has the ``state_dict``: what
    one of the two saves, the other loads. Attributes that this object lacks are the model's.
    """

    def __init__(
        self,
        module: nn.Module,
        call: Callable[[Any, Any], Any] = default_call,
        weight_name: str = "edge_weight",
    ) -> None:
        super().__init__(module)
        self.call = call
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
            ValueError: the batch has no weights, or a layer gets other edges or cannot be weighed; the message says
                which.
        """
        with self.weighing(batch):
            return self.call(self.module, batch)

    def edge_weight(self, batch: Any) -> Tensor:
        """The batch's weights: [e], in the order of ``edge_index``."""
        index, weight = (getattr(batch, name, None) for name in ("edge_index", self.weight_name))
        if not isinstance(index, Tensor):
            raise ValueError(
                "batch: expected one of a homogeneous graph with edge_index, found none; give the weights of "
                "layers=True, adj_t and types of edges to the layers by hand"
            )
        if not isinstance(weight, Tensor):
            raise ValueError(
                f"batch: expected weights of edges named {self.weight_name!r}, found none; make batches with "
                f"NeighborLoader(..., method='ladies'), 'fastgcn' or 'labor', or say weight_name="
            )
        if weight.shape != index.shape[1:]:
            raise ValueError(
                f"batch.{self.weight_name}: expected shape {tuple(index.shape[1:])}, found {tuple(weight.shape)}"
            )
        return weight

    @contextmanager
    def weighing(self, batch: Any) -> Iterator[None]:
        """Within, the model's layers multiply the messages of this batch's edges by their weights."""
        weight = self.edge_weight(batch)
        with ExitStack() as stack:
            for title, layer in self._layers():
                shadow = Shadow(layer)
                stack.callback(shadow.restore)
                shadow.set("propagate", partial(_propagate, title, layer, layer.propagate, batch.edge_index, weight))
            yield

    def _layers(self) -> list[tuple[str, pyg_nn.MessagePassing]]:
        """What errors call each of the model's layers, and the layer.

        Raises:
            ValueError: one of them cannot be weighed.
        """
        layers = [(n, m) for n, m in self.module.named_modules() if isinstance(m, pyg_nn.MessagePassing)]
        titled = [(f"{name or 'the model'} ({type(layer).__name__})", layer) for name, layer in layers]
        for title, layer in titled:
            refuse_unfit(title, layer)
        return titled


def weigh(
    model: nn.Module, call: Callable[[Any, Any], Any] = default_call, weight_name: str = "edge_weight"
) -> Weighed:
    """Makes a PyG model multiply every message by the weight of its edge.

    A layer that sums messages m_e gives sum_e w_e m_e; so does one that takes their mean, for every message is also
    multiplied by the destination's number of sampled edges. With the weights of a
    :class:`~torch_gnnscale.LayerSampler` (its ``aggregation`` says what the weighed sum stands for) both estimate the
    layer's output with all neighbors. A layer's own ``edge_weight`` is multiplied beside.

    Layers: CGConv, EdgeConv, GCN2Conv, GCNConv, GINConv, GINEConv, GraphConv, LEConv, LGConv, NNConv,
    ResGatedGraphConv and SAGEConv, with ``aggr`` "sum", "add" or "mean" and without a normalization by degrees.

    ``narrow(weigh(model))`` computes what the seeds need of it.

    Args:
        model: any module whose MessagePassing layers are among these and get the batch's ``edge_index``, or a prefix.
        call: how the model is called with a batch.
        weight_name: the batches' field that holds the weights, as the sampler names it.

    Returns:
        A module to be called with a batch; it shares the model's parameters.

    Raises:
        ValueError: the model has no MessagePassing layers, or one that cannot be weighed, which the message names.
    """
    return Weighed(model, call, weight_name)


def _propagate(
    title: str,
    layer: pyg_nn.MessagePassing,
    propagate: Callable[..., Tensor],
    edges: Tensor,
    weight: Tensor,
    edge_index: Any,
    size: Any = None,
    **kwargs: Any,
) -> Tensor:
    """``propagate`` with weighed messages, where ``edge_index`` are the first of the batch's ``edges``."""
    if not _is_prefix(edge_index, edges):
        raise ValueError(
            f"{title}: expected the batch's edge_index or a prefix of it, found other edges; a model that changes the "
            f"edges cannot be weighed"
        )
    weight = weight[: edge_index.size(1)]
    refuse_twice(title, kwargs, weight)
    with weigh_messages(layer, weight):
        return propagate(edge_index, size=size, **kwargs)


def _is_prefix(index: Any, of: Tensor) -> bool:
    """Whether edges are the first of others, in the same memory."""
    if index is of:
        return True
    if not isinstance(index, Tensor) or index.dim() != 2 or index.size(1) > of.size(1):
        return False
    first, whole = (i.as_tensor() if isinstance(i, EdgeIndex) else i for i in (index, of))
    same_place = first.data_ptr() == whole.data_ptr() and first.stride() == whole.stride()
    return same_place or first.size(1) == 0
