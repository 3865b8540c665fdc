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

from .. import machine, ops
from ..memory import Budget
from ..memory.budget import budget_bytes, format_bytes, is_bytes
from ..nn.layered import Layered
from ..nn.weigh import Weighed, default_call
from ..ops.arguments import as_ids, as_tensor, check_int
from ..sampler.sources import of_type
from .disk import DiskRows
from .fingerprint import fingerprint
from .graph import WholeGraph
from .model import StagedModel
from .nodes import Sets, batches, first_hub, num_edges, sets_of_stages
from .plan import Plan, Table
from .rows import Places, Rows
from .stage import Stage
from .trial import look


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
        data: a Data, a HeteroData or a (FeatureStore, GraphStore) pair, as a loader takes it.
        call: ``call(model, batch)`` returns a row for each node of the batch, by type in a graph with types. A batch
            has the graph's attributes, ``edge_index``, and ``n_id`` and ``e_id``: the ids of its nodes and edges.
        out: the folder of the results and of the rows between stages; None: all of them are in memory. With a folder,
            an inference that was stopped goes on where it was, if it is called with the same arguments.
        nodes: ids or a mask of the nodes whose results are wanted, by type in a graph with types; None: all nodes. Only
            what they depend on is computed.
        batch_size: how many nodes are computed at a time, at most.
        memory: about how much the rows of a batch's neighbors take at most; a batch that would need more is cut.
        progress: show a progress bar, if stderr is a terminal.

    Returns:
        The results: [N, ...], or [len(nodes), ...] in the order of ``nodes``; by node type in a graph with types. With
        ``out``, they are memory-mapped from the folder's ``nodes.npy``, or from ``TYPE.npy``; what is written to them
        does not reach the files.

    Raises:
        ValueError: the model is in training mode, reads more than a node and its neighbors in a layer, or changes the
            order of its layers; ``out`` holds another inference.
        NotImplementedError: a model on a GPU, or stores that several ranks read together.
        FileExistsError: ``out`` holds something else.
        MemoryError, OSError: there is too little memory or disk space for the rows.
    """
    batch_size = check_int("batch_size", batch_size, 1)
    if not callable(call):
        raise TypeError(f"call: expected a function of a model and a batch, found {call!r}")
    if not isinstance(progress, bool):
        raise TypeError(f"progress: expected a bool, found {progress!r}")
    most = _bytes(memory)
    staged = _staged(model, call)
    graph = WholeGraph(data)
    wanted = None if nodes is None else _wanted(nodes, graph)
    plan = look(staged, graph)
    sets = sets_of_stages(plan, graph, wanted)
    _refuse_hubs(plan, graph, sets, most)
    options = {"batch_size": batch_size, "memory": most}
    places = _places(wanted, plan, graph)
    if out is None:
        in_memory = Rows(plan, graph.sizes, places)
        if (peak := _peak(plan, sets)) > (available := machine.available_memory()):
            raise MemoryError(
                f"out: expected {format_bytes(peak)} of memory for rows of nodes, found {format_bytes(available)}; "
                f"name a folder for them"
            )
        _run(staged, graph, plan, sets, in_memory, batch_size, most, progress)
        found = in_memory.results()
    else:
        of = fingerprint(staged.module, graph, plan, wanted, **options)
        with closing(DiskRows(plan, graph.sizes, places, Path(out), of)) as on_disk:
            if not on_disk.finished:
                on_disk.check_space(_peak(plan, sets))
                _run(staged, graph, plan, sets, on_disk, batch_size, most, progress)
            found = on_disk.finish()
    return found if graph.hetero else found[None]


def _bytes(memory: Any) -> int:
    try:
        if is_bytes(memory):
            return budget_bytes("memory", memory, 0)
    except (TypeError, ValueError):
        pass
    raise ValueError(f"memory: expected bytes or a string such as '1GiB', found {memory!r}")


def _staged(model: nn.Module, call: Callable[[Any, Any], Any]) -> StagedModel:
    """The model, which may have been narrowed.

    Raises:
        ValueError: it is in training mode or weighed, or has no layers.
        NotImplementedError: it is on a GPU.
    """
    if isinstance(model, Layered):
        model, call = model.module, model.call if call is default_call else call  # type: ignore[assignment]
    if isinstance(model, Weighed):
        raise ValueError("model: expected one that takes all edges, found what weigh() returned, for edges of samples")
    training = next((name for name, module in model.named_modules() if module.training), None)
    if training is not None:
        of = f"its module {training} " if training else ""
        raise ValueError(f"model: expected it in evaluation mode, found {of}in training; call model.eval()")
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if value.device.type != "cpu":
            raise NotImplementedError(
                f"model: inference on {value.device}, where {name} is, is not implemented; use model.cpu()"
            )
    return StagedModel(model, call)


def _wanted(nodes: Any, graph: WholeGraph) -> dict[Any, Tensor]:
    """The stored ids of the nodes that a user named, by type."""
    by_type = nodes if graph.hetero else {None: nodes}
    if not isinstance(by_type, Mapping):
        raise TypeError(f"nodes: expected ids or masks by node type, found {type(nodes).__name__}")
    found = {}
    for node_type, of_nodes in by_type.items():
        if node_type not in graph.sizes:
            raise ValueError(f"nodes: expected node types of {list(graph.sizes)}, found {node_type!r}")
        name, size = "nodes" if node_type is None else f"nodes[{node_type!r}]", graph.sizes[node_type]
        ids = _ids(name, as_tensor(name, of_nodes), size)
        if (at := ops.first_outside(ids, size)) >= 0:
            raise IndexError(f"{name}[{at}] = {int(ids[at])} is out of range: expected nodes in [0, {size})")
        found[node_type] = graph.stored_ids(ids, node_type)
    return found


def _ids(name: str, nodes: Tensor, size: int) -> Tensor:
    """The ids in a vector of ids or a mask."""
    if nodes.dtype == torch.bool:
        if nodes.shape != (size,):
            raise IndexError(f"{name}: expected a mask of {size} nodes, found shape {tuple(nodes.shape)}")
        return nodes.nonzero().view(-1)
    if nodes.dim() != 1:
        raise ValueError(f"{name}: expected a vector, found shape {tuple(nodes.shape)}")
    return as_ids(name, nodes)


def _places(wanted: Mapping[Any, Tensor] | None, plan: Plan, graph: WholeGraph) -> dict[Any, Places]:
    """Where results are put that are not in the order of all stored nodes."""
    if wanted is not None:
        none = torch.empty(0, dtype=torch.int64)
        return {node_type: Places(wanted.get(node_type, none)) for node_type in plan.results}
    if graph.order is None:
        return {}
    return {t: Places(graph.stored_ids(torch.arange(graph.sizes[t]), t)) for t in plan.results}


def _peak(plan: Plan, sets: Mapping[int, Sets]) -> int:
    """The most bytes that all tables together take in a stage."""
    results = set(plan.results.values())

    def size(table: Table) -> int:
        return table.row_bytes * sets[table.written][table.node_type].count

    return max(
        sum(size(t) for t in plan.tables if t.written <= stage and (t.last >= stage or t in results))
        for stage in plan.stages
    )


def _refuse_hubs(plan: Plan, graph: WholeGraph, sets: Mapping[int, Sets], memory: int) -> None:
    """Raises ValueError if a node has more edges than are held at a time, and a layer needs all of them at once."""
    for call in plan.calls:
        if call.refusal is None:
            continue
        if (hub := first_hub(graph, sets[call.level], _most_edges(plan, call.level, memory))) is not None:
            node_type, seed = hub
            node = f"node {int(graph.user_ids(seed, node_type))}{of_type(node_type)}"
            raise ValueError(
                f"{call.title}: expected a layer that takes the sum, mean, max or min of messages, found "
                f"{call.refusal}; {node} has more neighbors than memory= holds, which must be larger for this layer"
            )


def _run(
    model: StagedModel, graph: WholeGraph, plan: Plan, sets: Mapping[int, Sets], rows: Rows, size: int, memory: int,
    progress: bool,
) -> None:  # fmt: skip
    """Goes through the stages that are left."""
    total = sum(of.count for of_stage in sets.values() for of in of_stage.values())
    with tqdm(total=total, desc="inference", unit="node", disable=None if progress else True, leave=False) as bar:
        for number in plan.stages:
            of_stage = sets[number]
            if number < rows.stage:
                bar.update(sum(of.count for of in of_stage.values()))
                continue
            rows.begin(number)
            stage = Stage(number, plan, model, graph, rows)
            most_edges = _most_edges(plan, number, memory)
            for done, part in enumerate(batches(graph, of_stage, size, most_edges), 1):
                if done > rows.batches:
                    seeds = {t: of_stage[t].slice(*bounds) for t, bounds in part.items()}
                    if sum(map(len, seeds.values())) == 1 and num_edges(graph, of_stage, part) > most_edges:
                        node_type, seed = next((t, ids) for t, ids in seeds.items() if len(ids))
                        stage.run_in_pieces(node_type, seed, most_edges)
                    else:
                        stage.run(seeds)
                    rows.done(done)
                bar.update(sum(end - first for first, end in part.values()))
            rows.end(number)


def _most_edges(plan: Plan, stage: int, memory: int) -> int:
    """How many edges a batch has at most. An edge takes about its ids, its source's row and its message."""
    inputs = {table for call in plan.calls if call.level == stage for table in call.inputs.values()}
    return max(1, memory // (48 + 2 * sum(table.row_bytes for table in inputs)))
