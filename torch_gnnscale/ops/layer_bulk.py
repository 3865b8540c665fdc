"""Layer-wise batches sampled many at a time, as a GPU samples them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from .arguments import OPS, check_ids, check_readable, resolve_threads
from .bulk import check_bulk_input, split_bulk
from .graph import Sample, check_vector
from .layer_drawing import LayerDrawing, check_drawing, check_num_nodes, choices_of, options_of


def sample_layers_bulk(
    colptr: Tensor,
    row: Tensor | Sequence[Tensor],
    seeds: Tensor,
    seed_ptr: Sequence[int],
    num_nodes: Sequence[int],
    keys: Sequence[int],
    drawing: LayerDrawing,
    *,
    edge_id: Tensor | Sequence[Tensor] | None = None,
    spread: Sequence[int] | None = None,
    score: Tensor | None = None,
    layers: bool = False,
    include_dst: bool = True,
    threads: int = 0,
) -> list[Sample]:
    """Draws k batches layer by layer in one sequence of launches, each equal bit for bit to what :func:`sample_layers`
    draws with its key, which has the formulas.

    Every step of a hop is a loop over independent items. LADIES: each stored edge into the frontiers enters (batch,
    source) into a hash table and adds to its score, an integer, so that no order matters; the sources are listed;
    those of the least r_v / q_v are found by two counts of these quotients' first 12 and next 12 bits, and the few
    whose 24 bits are equal to those of the first that is not drawn are compared exactly; each stored edge from a drawn
    source is taken. ``successive`` is the exception: one thread makes all draws of a batch, one after the other, from a
    tree of sums. FastGCN has a candidate for each node and batch, LABOR none: each edge draws. The taken edges'
    sources are numbered as :func:`sample_bulk` numbers them. On a GPU all of it is queued on the current stream; the
    host waits twice per hop, for numbers of edges (``poisson``: some more times), and once for the counts.

    On a CPU, threads run the same steps. This serves to check them: :func:`sample_layers` is faster.

    Args:
        colptr, row, seeds, seed_ptr, keys, edge_id, spread: as of :func:`sample_bulk`.
        num_nodes, drawing, layers, include_dst: as of :func:`sample_layers`.
        score: for FastGCN: from :func:`node_scores`, where ``colptr`` may lie.
        threads: see the package; of no effect on a GPU.

    Returns:
        A sample for each batch with ``edge_weight``, its tensors views of buffers that all of them share, on the device
        of ``seeds``.

    Raises:
        TypeError, ValueError, IndexError: as of :func:`sample_bulk` and :func:`sample_layers`.
        RuntimeError: the graph is malformed, a hop reads more than 2^31 edges or, with FastGCN, has more than 2^31
            candidates, or memory ran out.
    """
    given = check_bulk_input(colptr, row, seeds, seed_ptr, keys, edge_id, spread)
    check_drawing(drawing, layers, include_dst)
    hops = check_num_nodes(num_nodes)
    size = len(given.colptr) - 1
    if (score is not None) != (drawing.method == "fastgcn"):
        raise ValueError(f"score: expected it only for method='fastgcn', found method={drawing.method!r}")
    if score is not None:
        check_vector("score", score, size)
        check_readable("score", score, seeds.device, "the seeds are")
        score = score.contiguous()
    try:
        *buffers, counts = OPS.sample_layers_bulk(
            given.colptr, given.row, given.edge_id, given.spread, given.seeds, score, given.seed_ptr, hops, given.keys,
            choices_of(drawing), options_of(drawing, layers, include_dst), resolve_threads(threads),
        )  # fmt: skip
        node, pointer, edge_index, edge, weight = buffers
        frontier_grows = layers and include_dst
        return split_bulk(
            len(given.keys), len(hops), frontier_grows, True, node, pointer, edge_index, edge, weight, counts
        )
    except RuntimeError as failed:
        error = failed
    check_ids("seeds", seeds, size, "nodes")
    raise error


class PreparedLayerBulks:
    """:func:`sample_layers_bulk` with a graph and options, for any number of batches."""

    def __init__(
        self,
        colptr: Tensor,
        row: Sequence[Tensor],
        edge_id: Sequence[Tensor] | None,
        spread: Sequence[int],
        num_nodes: Sequence[int],
        drawing: LayerDrawing,
        device: torch.device,
        *,
        score: Tensor | None,
        layers: bool,
        include_dst: bool,
    ) -> None:
        self._graph = colptr, row
        self._num_nodes, self._drawing, self._device = num_nodes, drawing, device
        self._options = {
            "edge_id": edge_id,
            "spread": spread,
            "score": score,
            "layers": layers,
            "include_dst": include_dst,
        }

    def sample(self, seeds: Tensor, key: int) -> Sample:
        """The sample of a batch; ``seeds`` may lie in host memory."""
        return self.sample_many([seeds], [key])[0]

    def sample_many(self, seeds: Sequence[Tensor], keys: Sequence[int]) -> list[Sample]:
        """The samples of many batches; ``seeds`` may lie in host memory."""
        there = torch.cat(list(seeds)).to(self._device, non_blocking=True)
        ends = [0, *accumulate(map(len, seeds))]
        return sample_layers_bulk(
            *self._graph,
            there,
            ends,
            self._num_nodes,
            keys,
            self._drawing,
            **self._options,  # type: ignore[arg-type]
        )
