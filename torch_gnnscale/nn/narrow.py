"""Ordinary PyG models that compute, in each layer, no more than the seeds of a batch need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from . import saving
from .hops import Hops, first_rows
from .layer import ForwardPass, NarrowedLayer
from .weigh import Weighed, default_call
from .wrapper import Wrapper

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
"""When a model is checked: the largest difference allowed, relative to the largest output; 0.1 for types of 16 bits."""


class Narrowed(Wrapper):
    """What :func:`narrow` returns; ``module`` is the model itself, unchanged, or what :func:`weigh` returned.

    Parameters, buffers and submodules have the names that they have in the model, and so has the ``state_dict``: what
    one of the two saves, the other loads. Attributes that this object lacks are the model's.
    """

    def __init__(self, module: nn.Module, call: Callable[[Any, Any], Any] = default_call, check: bool = True) -> None:
        super().__init__(module)
        model = module
        if isinstance(module, Weighed):
            model, call = module.module, module.call if call is default_call else call
        if found := next((m for m in model.modules() if isinstance(m, Wrapper)), None):
            raise ValueError(
                f"model: expected a model or weigh(model), found {type(found).__name__} within {type(model).__name__}"
            )
        self.call = call
        self._to_check = check
        self._to_size = True
        """Whether a layer has not been run yet, so that lazy parameters of it may have no size."""
        self._prepared: dict[pyg_nn.MessagePassing, NarrowedLayer] = {}
        self._sizes: tuple[list[saving.LayerSize], int] | None = None
        """Sizes of the layers and of the model's other parameters, until a narrowed batch finds other layers."""
        if not self._layers():
            raise ValueError(f"model: expected one with MessagePassing layers, found none in {type(module).__name__}")

    def forward(self, batch: Any) -> Tensor:
        """The model's output for the batch's seeds: [batch_size, ...].

        Raises:
            ValueError: the batch has no hops, or the model cannot be narrowed; the message says why.
        """
        hops = None
        if self._to_check:
            hops = Hops(batch, verify=True)
            self._check(batch, hops)
            self._to_check = False
        elif self._to_size and self._sizes is None and self._has_lazy():
            hops = Hops(batch, verify=False)
            with torch.no_grad(), self._evaluating():
                self._run(batch, hops)  # gives all parameters their sizes
        self._to_size = False
        # Decided by the batch alone, also for the first one: a run that resumes there computes the same.
        if not self._pays(batch):
            return first_rows(self._whole(batch), batch.batch_size)
        return self._run(batch, Hops(batch, verify=False) if hops is None else hops)

    def _layers(self) -> list[NarrowedLayer]:
        """The model's layers, each prepared when it is first seen: a model may get others."""
        layers = [module for module in self.module.modules() if isinstance(module, pyg_nn.MessagePassing)]
        if any(layer not in self._prepared for layer in layers):
            names = {module: name for name, module in self.module.named_modules()}
            self._prepared = {layer: NarrowedLayer(names[layer], layer) for layer in layers}
            self._sizes, self._to_size = None, True
        return [self._prepared[layer] for layer in layers]

    def _pays(self, batch: Any) -> bool:
        """Whether narrowing saves more than it costs; True for a batch without hops, which :class:`Hops` refuses, and
        if parameters have no size even after a run."""
        num_nodes, num_edges = (getattr(batch, f"num_sampled_{of}", None) for of in ("nodes", "edges"))
        if self._sizes is None and not self._has_lazy():
            sizes = [layer.size() for layer in self._layers()]
            total = sum(parameter.numel() for parameter in self.module.parameters())
            self._sizes = sizes, max(0, total - sum(size.parameters for size in sizes))
        if not isinstance(num_nodes, list) or not isinstance(num_edges, list) or self._sizes is None:
            return True
        return saving.saved(num_nodes, num_edges, *self._sizes) >= saving.LEAST_SAVED

    def _has_lazy(self) -> bool:
        return any(is_lazy(parameter) for parameter in self.module.parameters())

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Evaluation mode, and afterwards the mode that each module had."""
        training = {module: module.training for module in self.modules()}
        self.eval()
        try:
            yield
        finally:
            for module, mode in training.items():
                module.training = mode

    def _whole(self, batch: Any) -> Tensor:
        """The model's output for the whole batch."""
        if isinstance(self.module, Weighed):
            with self.module.weighing(batch):
                return self.call(self.module.module, batch)
        return self.call(self.module, batch)

    def _run(self, batch: Any, hops: Hops) -> Tensor:
        model, weight = self.module, None
        if isinstance(self.module, Weighed):
            model, weight = self.module.module, self.module.edge_weight(batch)
        forward_pass, entered = ForwardPass(hops, weight), []
        try:
            for layer in self._layers():
                layer.enter(forward_pass)
                entered.append(layer)
            with forward_pass.common_rows:
                return first_rows(self.call(model, batch), batch.batch_size)
        finally:
            for layer in entered:
                layer.leave()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_prepared": {}}

    @torch.no_grad()
    def _check(self, batch: Any, hops: Hops) -> None:
        """Raises ValueError, naming the first module whose outputs differ, unless the narrowed model gives those of the
        model on the whole batch; both run in evaluation mode."""
        with self._evaluating():
            with _outputs(self.module) as whole:
                expected = self._whole(batch)[: batch.batch_size]
            with _outputs(self.module) as narrowed:
                found = self._run(batch, hops)
        if _agree(expected, found):
            return
        name = next((n for n, out in narrowed.items() if n in whole and not _agree(whole[n], out)), "the model")
        kind = type(self.module.get_submodule(name)).__name__ if name != "the model" else type(self.module).__name__
        raise ValueError(
            f"{name} ({kind}): expected the seeds' rows to be those of the whole batch, found others; it reads more "
            f"than a node and its sampled neighbors (the degrees of sources, several hops, statistics of all rows), so "
            f"the model cannot be narrowed"
        )


def narrow(model: nn.Module, call: Callable[[Any, Any], Any] = default_call, check: bool = True) -> Narrowed:
    """Makes a PyG model compute only what the seeds of a mini-batch need.

    The nodes of a batch are numbered hop by hop, so what a layer needs is a prefix of the batch's rows and edges: of L
    layers, the first computes rows for all nodes but those of the last hop, the last layer for the seeds alone. Outputs
    and gradients are those of the model on the whole batch. Residuals and JumpingKnowledge are computed on the rows
    that all of their operands have. Where a layer's message is its source's row, or that row times a weight, messages
    are not stored: on a CPU they are aggregated over the CSC. On a GPU PyG's own operators aggregate the narrowed
    edges.

    Where narrowing would save less than it costs (:mod:`torch_gnnscale.nn.saving`), the whole batch is computed.

    BatchNorm in training normalizes over the rows that are computed, as with PyG's ``trim_to_layer``. Layers that read
    more than a node and its sampled neighbors are refused: the first batch's outputs are compared with those of the
    model on the whole batch.

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


def _agree(expected: Tensor, found: Tensor) -> bool:
    rows = min(len(expected), len(found))
    expected, found = expected[:rows], found[:rows]
    if expected.shape != found.shape or not expected.numel():
        return expected.shape == found.shape
    tolerance = _TOLERANCE.get(expected.dtype, 0.1) * max(float(expected.abs().max()), 1e-30)
    return bool(((expected - found).abs() <= tolerance).all()) or torch.equal(expected, found)


@contextmanager
def _outputs(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """The output of each module, by name, in the order of the calls; without the modules within a layer. If a module is
    called several times, its first output."""
    found: dict[str, Tensor] = {}

    def keep(name: str, _module: nn.Module, _args: Any, out: Any) -> None:
        if isinstance(out, Tensor) and out.dim() > 0 and name not in found:
            found[name] = out

    with ExitStack() as stack:
        layers = tuple(f"{n}." for n, m in model.named_modules() if isinstance(m, pyg_nn.MessagePassing))
        for name, module in model.named_modules():
            if name and not name.startswith(layers):
                stack.callback(module.register_forward_hook(partial(keep, name)).remove)
        yield found
