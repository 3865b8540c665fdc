"""BatchNorm over the rows of all ranks of a split."""

from __future__ import annotations

from functools import partial

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn

from .._private import BatchNorm
from ..comm.row_transport import RowTransport
from ..nn.shadow import Shadow
from .halo_layers import of_all_ranks
from .local_rows import OwnNodeRows


class SplitNorms:
    """The BatchNorm modules of a model, which between :meth:`enter` and :meth:`leave` have statistics of all ranks.

    In training, the mean and variance of a column of x are those of the rows of all ranks, where each row belongs to
    one rank; so are the running statistics. If rank p has n_p rows of mean m_p whose squared deviations add up to s_p,
    then N = sum n_p, m = sum n_p m_p / N, v = sum (s_p + n_p (m_p - m)^2) / N (Chan, Golub & LeVeque, 1979).

    Args:
        model: the model; None: no module is changed.
    """

    def __init__(self, model: nn.Module | None) -> None:
        named = [] if model is None else list(model.named_modules())
        for name, module in named:
            if isinstance(module, pyg_nn.BatchNorm) and module.allow_single_element:
                raise NotImplementedError(
                    f"{name} (BatchNorm): expected allow_single_element=False, found True: a rank with one row would "
                    f"leave out an exchange"
                )
        self.modules = [(name, module, Shadow(module)) for name, module in named if isinstance(module, BatchNorm)]

    def enter(self, transport: RowTransport, own_rows: OwnNodeRows) -> None:
        """From now on the modules normalize by the rows of all ranks."""
        for name, module, shadow in self.modules:
            shadow.set("forward", partial(_normalize, name, module, module.forward, transport, own_rows))

    def leave(self) -> None:
        """The modules are again what they were."""
        for _, _, shadow in self.modules:
            shadow.restore()


def _normalize(
    name: str, module: BatchNorm, forward: object, transport: RowTransport, own_rows: OwnNodeRows, x: Tensor
) -> Tensor:
    by_batch = module.training or module.running_mean is None
    rows = own_rows.rows_of(x)
    if rows is not None and rows.mixed and (by_batch or own_rows.finds_out):
        raise NotImplementedError(
            f"{name} ({type(module).__name__}): expected rows that are one rank's own, found it within a layer on rows "
            f"of sources, of which several ranks have copies"
        )
    if not by_batch:
        return forward(x)  # type: ignore[operator]
    if x.dim() != 2:
        raise NotImplementedError(
            f"{name} ({type(module).__name__}): expected a matrix of rows, found {tuple(x.shape)}"
        )
    with own_rows.noting_one("batch_norm"):
        return _normalized(name, module, transport, x)


def _normalized(name: str, module: BatchNorm, transport: RowTransport, x: Tensor) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    wide_x, count = x.to(wide), len(x)
    mean = wide_x.sum(0) / max(count, 1)
    spread = (wide_x - mean).square().sum(0)
    of_ranks = of_all_ranks(torch.cat([mean.new_tensor([count]), mean, spread]), transport, f"{name} statistics")
    counts, means, spreads = of_ranks.split([1, x.size(1), x.size(1)], 1)
    counts = counts.detach()
    total = counts.sum()
    if float(total) <= 1 and module.training:
        raise ValueError(f"Expected more than 1 value per channel when training, got {int(total)} rows over all ranks")
    mean = (counts * means).sum(0) / total
    variance = (spreads + counts * (means - mean).square()).sum(0) / total
    if module.training and module.track_running_stats:
        _track(module, mean.detach(), variance.detach(), float(total))
    out = (wide_x - mean) * (variance + module.eps).rsqrt()
    if module.affine:
        out = out * module.weight.to(wide) + module.bias.to(wide)
    return out.to(x.dtype)


@torch.no_grad()
def _track(module: BatchNorm, mean: Tensor, variance: Tensor, total: float) -> None:
    """Updates the running statistics as torch does: the variance is the unbiased one."""
    momentum = module.momentum
    if module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
        if momentum is None:
            momentum = 1.0 / float(module.num_batches_tracked)
    for running, value in ((module.running_mean, mean), (module.running_var, variance * (total / (total - 1)))):
        if running is not None:
            running.lerp_(value.to(running.dtype), 0.0 if momentum is None else momentum)
