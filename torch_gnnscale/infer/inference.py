"""Inference on all nodes of a graph, layer by layer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from ..loader.sharing import waiting_to_tell
from ..memory import Budget
from ..nn.weigh import default_call
from ..ops.arguments import check_int
from .disk import DiskRows, check_space, fingerprint
from .graph import StagedGraph, WholeGraph
from .nodes import (
    Sets,
    bytes_of,
    check_memory,
    most_edges_of,
    peak_of,
    refuse_hubs,
    sets_of_stages,
    staged_model,
    wanted_nodes,
    work_of_stage,
)
from .over_ranks import infer_over_ranks
from .part_graph import PartOfGraph, features_of_part
from .plan import Plan
from .stage import Places, Rows, Stage
from .trial import Look, look


@torch.inference_mode(False)
@torch.no_grad()
def infer(
    model: nn.Module,
    data: Any,
    call: Callable[[Any, Any], Any] = default_call,
    *,
    out: str | os.PathLike | None = None,
    nodes: Any = None,
    batch_size: int = 4096,
    memory: Budget = "1GiB",
    progress: bool = True,
) -> Any:
    """Computes a model's output for all nodes of a graph, layer by layer, in bounded memory.

    Stage l = 1, 2, ... goes through all nodes in batches, and computes the l-th layer from the rows that stage l - 1
    left for a batch's nodes and all their neighbors. What follows a layer for each node by itself (activations, norms,
    residuals, JumpingKnowledge) is computed once per node. Rows that no later stage reads are deleted. The result is
    what ``call(model, graph)`` returns for the whole graph, up to the order in which floating-point sums are taken.

    Before it begins, the model is run on a small part of the graph, to see which layers it calls and which rows they
    read, and that stages give the same.

    Args:
        model: any module that :func:`torch_gnnscale.nn.narrow` takes, or what it returned; in evaluation mode, on the
            CPU.
        data: a Data, a HeteroData or a (FeatureStore, GraphStore) pair, as a loader takes it. With the stores of a part
            (:func:`torch_gnnscale.distributed.open_part`) all ranks call this together, with the same arguments. Each
            computes its share of its part's nodes, ``ids.tensor_split(part.ranks.copies)[part.ranks.copy]`` of their
            ids by type; if no other rank holds the part, all of them.
        call: ``call(model, batch)`` returns a row for each node of the batch, by type in a graph with types. A batch
            has the graph's attributes, ``edge_index``, and ``n_id`` and ``e_id``: the ids of its nodes and edges.
        out: the folder of the results and of the rows between stages; None: all of them are in memory. With a folder,
            an inference that was stopped goes on where it was, if it is called with the same arguments. Over ranks,
            rank r writes into the folder ``part-r`` in it: :func:`open_results`.
        nodes: ids or a mask of the nodes whose results are wanted, by type in a graph with types; None: all nodes. Only
            what they depend on is computed.
        batch_size: how many nodes are computed at a time, at most.
        memory: about how much the rows of a batch's neighbors take at most; a batch that would need more is cut.
        progress: show a progress bar, if stderr is a terminal; over ranks, on rank 0.

    Returns:
        The results: [N, ...], or [len(nodes), ...] in the order of ``nodes``; by node type in a graph with types. With
        ``out``, they are memory-mapped from the folder's ``nodes.npy``, or from ``TYPE.npy``; what is written to them
        does not reach the files. Over ranks, those of this rank's nodes, each once, by rising ids.

    Raises:
        ValueError: the model is in training mode, reads more than a node and its neighbors in a layer, changes the
            order of its layers, or computes something else after some calls; ``out`` holds another inference.
        NotImplementedError: a model on a GPU; parts with rows on a GPU; ``consecutive="parts"`` with several ranks per
            part.
        RuntimeError: another rank failed, or is gone; the message names it.
        FileExistsError: ``out`` holds something else.
        MemoryError, OSError: there is too little memory or disk space for the rows.
    """
    features = features_of_part(data)
    try:
        batch_size = check_int("batch_size", batch_size, 1)
        if not callable(call):
            raise TypeError(f"call: expected a function of a model and a batch, found {call!r}")
        if not isinstance(progress, bool):
            raise TypeError(f"progress: expected a bool, found {progress!r}")
        most, staged = bytes_of(memory), staged_model(model, call)
        graph = WholeGraph(data) if features is None else PartOfGraph(*data)
        wanted = None if nodes is None else wanted_nodes(nodes, graph)
        folder = None if out is None else Path(out)
    except Exception as error:
        if features is not None:
            why = f"{type(error).__name__}: {error}"
            with waiting_to_tell("computes no rows", "compute theirs", why):
                features.refuse(why)
        raise
    if isinstance(graph, PartOfGraph):
        found = infer_over_ranks(staged, graph, folder, wanted, batch_size, most, progress)
        return found if graph.hetero else found[None]
    looked = look(staged, graph, graph.small())
    plan = looked.plan
    sets = sets_of_stages(plan, graph, wanted)
    refuse_hubs(plan, graph, sets, most)
    options = {"batch_size": batch_size, "memory": most}
    places = _places(wanted, plan, graph)
    if folder is None:
        in_memory = Rows(plan, graph, places)
        check_memory(peak_of(plan, sets, in_memory.stage), "")
        _run(looked, graph, sets, in_memory, batch_size, most, progress)
        found = in_memory.results()
    else:
        of = fingerprint(staged.module, graph, plan, wanted, **options)
        with closing(DiskRows(plan, graph, places, folder, of)) as on_disk:
            if not on_disk.finished:
                needed = on_disk.needed(peak_of(plan, sets, on_disk.stage))
                check_space([needed], needed)
                _run(looked, graph, sets, on_disk, batch_size, most, progress)
            found = on_disk.finish()
    return found if graph.hetero else found[None]


def _places(wanted: Mapping[Any, Tensor] | None, plan: Plan, graph: StagedGraph) -> dict[Any, Places]:
    """Where results are put that are not in the order of all stored nodes."""
    if wanted is not None:
        none = torch.empty(0, dtype=torch.int64)
        return {node_type: Places(wanted.get(node_type, none)) for node_type in plan.results}
    if graph.order is None:
        return {}
    return {t: Places(graph.stored_ids(torch.arange(graph.sizes[t]), t)) for t in plan.results}


def _run(
    looked: Look, graph: StagedGraph, sets: Mapping[int, Sets], rows: Rows, size: int, memory: int, progress: bool
) -> None:
    """Goes through the stages that are left."""
    plan = looked.plan
    total = sum(of.count for of_stage in sets.values() for of in of_stage.values())
    with tqdm(total=total, desc="inference", unit="node", disable=None if progress else True, leave=False) as bar:
        for number in plan.stages:
            of_stage = sets[number]
            if number < rows.stage:
                bar.update(sum(of.count for of in of_stage.values()))
                continue
            rows.begin(number)
            stage, most_edges = Stage(number, plan, looked.model, graph, rows), most_edges_of(plan, number, memory)
            for work in work_of_stage(graph, of_stage, size, most_edges, plan.reads_edges(number)):
                if work.batch > rows.batches:
                    stage.run(stage.hop(work.seeds(of_stage), work.piece), work.piece)
                    if work.completes:
                        rows.done(work.batch)
                if work.completes:
                    bar.update(work.num_nodes)
            looked.check_again()
            rows.completed(number)
            rows.end(number)
