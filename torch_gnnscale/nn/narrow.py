"""Ordinary PyG models that compute, in each layer, no more than the seeds of a batch need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from . import saving
from .compare import agree, first_difference, outputs
from .hops import Hops, first_rows, num_seeds
from .layer import ForwardPass
from .layered import Layered
from .weigh import default_call


class Narrowed(Layered):
    """What :func:`narrow` returns; ``module`` is the model itself, unchanged, or what :func:`weigh` returned.

    Parameters, buffers and submodules have the names that they have in the model, and so has the ``state_dict``: what
    one of the two saves, the other loads. Attributes that this object lacks are the model's.
    """

    def __init__(self, module: nn.Module, call: Callable[[Any, Any], Any] = default_call, check: bool = True) -> None:
        self._sizes: tuple[tuple[saving.LayerSize, ...], int] | None = None
        """Sizes of the layers and of the model's other parameters, until a narrowed batch finds other layers."""
        self._to_size = True
        """Whether a layer has not been run yet, so that lazy parameters of it may have no size."""
        super().__init__(module, call)
        self._to_check = check
        """Whether no batch with edges in every hop has been compared with the whole yet."""
        self._checked_hops = -1
        """In how many hops the batches that were compared had edges, at most; -1 before the first."""

    def forward(self, batch: Any) -> Tensor:
        """The model's output for the batch's seeds: [batch_size, ...].

        In a batch of links the seeds are the links' ends, to whose rows ``edge_label_index`` and the triplets' indices
        point: [num_sampled_nodes[0], ...].

        Raises:
            ValueError: the batch has no hops, or the model cannot be narrowed; the message says why.
        """
        hops = None
        if self._to_check:
            hops = Hops(batch, verify=True)
            with_edges = sum(count > 0 for count in batch.num_sampled_edges)
            if with_edges > self._checked_hops:
                self._check(batch, hops)
                self._checked_hops = with_edges
            self._to_check = with_edges < len(batch.num_sampled_edges)
        elif self._to_size and self._sizes is None and self._has_lazy():
            hops = Hops(batch, verify=False)
            with torch.no_grad(), self._evaluating():
                self._run(batch, hops)  # gives all parameters their sizes
        if self._to_size:  # to set an attribute of a module takes a microsecond
            self._to_size = False
        # Decided by the batch alone, also for the first one: a run that resumes there computes the same.
        if not self._pays(batch):
            return first_rows(self._whole(batch), num_seeds(batch))
        return self._run(batch, Hops(batch, verify=False) if hops is None else hops)

    def _layers_changed(self) -> None:
        self._sizes, self._to_size = None, True

    def _pays(self, batch: Any) -> bool:
        """Whether narrowing saves more than it costs; True for a batch without hops, which :class:`Hops` refuses, and
        if parameters have no size even after a run."""
        num_nodes, num_edges = getattr(batch, "num_sampled_nodes", None), getattr(batch, "num_sampled_edges", None)
        sizes = self._sizes
        if sizes is None and not self._has_lazy():
            of_layers = tuple(layer.size() for layer in self._layers())
            total = sum(parameter.numel() for parameter in self.module.parameters())
            sizes = self._sizes = of_layers, max(0, total - sum(size.parameters for size in of_layers))
        if not isinstance(num_nodes, list) or not isinstance(num_edges, list) or not num_edges or sizes is None:
            return True
        return saving.saved(num_nodes, num_edges, *sizes) >= saving.LEAST_SAVED

    def _run(self, batch: Any, hops: Hops) -> Tensor:
        return self._compute(batch, ForwardPass(hops, self._weight(batch)))

    @torch.no_grad()
    def _check(self, batch: Any, hops: Hops) -> None:
        """Raises ValueError, naming the first module whose outputs differ, unless the narrowed model gives those of the
        model on the whole batch; both run in evaluation mode."""
        with self._evaluating():
            with outputs(self.module) as narrowed:  # first: its layers refuse by their names what PyG would not
                found = self._run(batch, hops)
            with outputs(self.module) as whole:
                expected = self._whole(batch)[: num_seeds(batch)]
        if agree(expected, found):
            return
        raise ValueError(
            f"{first_difference(self.module, whole, narrowed)}: expected the seeds' rows to be those of the whole "
            f"batch, found others; it reads more than a node and its sampled neighbors (the degrees of sources, "
            f"several hops, statistics of all rows), so the model cannot be narrowed"
        )


def narrow(model: nn.Module, call: Callable[[Any, Any], Any] = default_call, check: bool = True) -> Narrowed:
    """Makes a PyG model compute only what the seeds of a mini-batch need.

    The nodes of a batch are numbered hop by hop, so what a layer needs is a prefix of the batch's rows and edges: of L
    layers, the first computes rows for all nodes but those of the last hop, the last layer for the seeds alone. Outputs
    and gradients are those of the model on the whole batch. Residuals and JumpingKnowledge are computed on the rows
    that all of their operands have. Where a layer's message is its source's row, or that row times a weight, messages
    are not stored: they are aggregated over the CSC, on a CPU and on a GPU.

    Where narrowing would save less than it costs (:mod:`torch_gnnscale.nn.saving`), the whole batch is computed.

    Gradients can be taken once, not gradients of gradients.

    BatchNorm in training normalizes over the rows that are computed, as with PyG's ``trim_to_layer``. Layers that read
    more than a node and its sampled neighbors are refused: the first batch's outputs are compared with those of the
    model on the whole batch. If it has no edges in some hop, so are those of each later batch that has edges in more
    hops than those before.

    Args:
        model: any module with MessagePassing layers that get the batch's ``edge_index``; or :func:`weigh` of it.
        call: how the model is called with a batch; the default of a weighed model is what :func:`weigh` was given.
        check: compare the first batch; this costs one forward pass of the model. Without it, a model with lazy
            parameters is run on the first batch twice: their sizes decide how that batch is computed.

    Returns:
        A module to be called with a batch; it shares the model's parameters.

    Raises:
        ValueError: the model has no MessagePassing layers, or narrowed or weighed ones within.
    """
    return Narrowed(model, call, check)
