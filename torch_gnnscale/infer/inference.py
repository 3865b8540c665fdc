"""Inference on all nodes of a graph, layer by layer, by one process, or by ranks that read each other's rows in
steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from .. import machine
from ..distributed.own_rows import MappedRows, OwnRows
from ..distributed.row_exchange import RowKind
from ..loader.sharing import waiting_to_tell
from ..memory import Budget
from ..nn.layered import default_call
from ..ops.arguments import check_int
from .disk import DiskRows, check_folder, check_space, missing, part_folder
from .look import Look, fingerprint, look, of_model, of_nodes
from .part_graph import InferenceSteps, PartOfGraph, RowsOfParts, features_of_part, ids_at_owners
from .plan import StagePlan, Table
from .stage import Places, Rows, Stage
from .staged_graph import StagedGraph, WholeGraph
from .staged_model import StagedModel
from .work import (
    Masks,
    Sets,
    Work,
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


def infer_over_ranks(
    model: StagedModel, graph: PartOfGraph, out: Path | None, nodes: Mapping[Any, Tensor] | None, batch_size: int,
    memory: int, progress: bool,
) -> dict[Any, Tensor]:  # fmt: skip
    """The results of this rank's nodes, by type, in the order of their ids. Arguments and errors as of :func:`infer`.

    Args:
        model: in evaluation mode.
        graph: this rank's part.
        out: the folder of all ranks' folders.
        nodes: by type, stored ids of all nodes whose results are wanted; None: all.
        batch_size, memory, progress: of :func:`infer`.
    """
    with InferenceSteps(graph.features) as steps, ExitStack() as opened:
        options = {"batch_size": batch_size, "memory": memory}
        alike = {"out": out is not None, "nodes": of_nodes(nodes), **options}
        steps.alike({**alike, "model": steps.all_made(lambda: of_model(model.module))})
        graph.join(steps)
        small = graph.small()
        looked = steps.all_made(lambda: look(model, graph, small))
        plan = looked.plan
        steps.alike({"calls of layers": [[call.title, call.level, len(call.inputs)] for call in plan.calls]})
        own = None if nodes is None else {t: _own(graph, t, ids) for t, ids in nodes.items()}

        def at_owners(masks: Masks, others: Mapping[Any, Tensor]) -> None:
            sent = ids_at_owners(steps, [graph.bounds[t] for t in masks], [others[t] for t in masks])
            for mask, ids in zip(masks.values(), sent, strict=True):
                mask[ids] = True

        sets = sets_of_stages(plan, graph, own, at_owners)
        steps.all_made(lambda: refuse_hubs(plan, graph, sets, memory))
        none = torch.empty(0, dtype=torch.int64)
        places = {} if own is None else {t: Places(own.get(t, none)) for t in plan.results}
        if out is None:
            rows = Rows(plan, graph, places)
        else:
            number, count = steps.ranks.rank, steps.ranks.world
            partition = [number, count, graph.features.parts.fingerprint]
            of = steps.all_made(lambda: fingerprint(model.module, graph, plan, nodes, partition=partition, **options))
            users, folder = graph.part.user_ids, part_folder(out, number)
            ids = {t: users[t] if own is None else users[t][own.get(t, none) - graph.first[t]] for t in plan.results}

            new = missing(folder)

            def on_disk() -> DiskRows:
                check_folder(out, count)
                return opened.enter_context(closing(DiskRows(plan, graph, places, folder, of, ids, new)))

            begun = steps.all_made(lambda: on_disk() if folder.exists() else None)  # before others make a folder
            rows = steps.all_made(lambda: on_disk() if begun is None else begun)
        if not all(steps.gather(_is_finished(rows))):
            _check_space(steps, rows, peak_of(plan, sets, _stage_of(rows, plan)))
            _Run(looked, graph, sets, rows, steps, batch_size, memory).stages(progress)
        return steps.all_made(rows.finish if isinstance(rows, DiskRows) else rows.results)


def _own(graph: PartOfGraph, node_type: Any, ids: Tensor) -> Tensor:
    """Those of some nodes that are this rank's: each once, rising."""
    first = graph.first[node_type]
    return torch.unique(ids[(ids >= first) & (ids < first + graph.sizes[node_type])])


def _is_finished(rows: Rows) -> bool:
    return isinstance(rows, DiskRows) and rows.finished


def _stage_of(rows: Rows, plan: StagePlan) -> int:
    """The stage with which a rank goes on: one more than the last if its results are there."""
    return plan.stages[-1] + 1 if _is_finished(rows) else rows.stage


def _check_space(steps: InferenceSteps, rows: Rows, peak: int) -> None:
    """Raises on all ranks unless their disks, or machines, have place for the rows of all ranks that share them."""
    if isinstance(rows, DiskRows):
        needed = steps.all_made(lambda: rows.needed(peak))
        of_ranks = steps.gather((machine.identity(), needed))
        steps.all_made(lambda: check_space([of for place, of in of_ranks if place == machine.identity()], needed))
        return
    of_machines = steps.gather((machine.identity(), peak))
    total = sum(of for place, of in of_machines if place == machine.identity())
    steps.all_made(lambda: check_memory(total, " of this machine's ranks"))


class _Run:
    """Goes through the stages, in steps of all ranks. Arguments as of :func:`infer_over_ranks`."""

    def __init__(
        self, looked: Look, graph: PartOfGraph, sets: Mapping[int, Sets], rows: Rows,
        steps: InferenceSteps, batch_size: int, memory: int,
    ) -> None:  # fmt: skip
        self._looked, self._graph, self._plan, self._sets, self._rows = looked, graph, looked.plan, sets, rows
        self._steps, self._size, self._memory = steps, batch_size, memory

    def stages(self, progress: bool) -> None:
        """Runs those that any rank has left."""
        rows, plan, steps = self._rows, self._plan, self._steps
        last, finished = plan.stages[-1], _is_finished(rows)
        each = steps.gather((_stage_of(rows, plan), finished))
        first = min(stage for stage, _ in each)
        if any(stage > first + 1 or (finished and first <= last) for stage, finished in each):
            raise ValueError(
                f"out: expected folders of parts that are equally far, or one stage apart, found stages "
                f"{[stage for stage, _ in each]}, {last} being the last, of which finished: "
                f"{[finished for _, finished in each]}; delete the folders of all parts to begin anew"
            )
        left = {number: steps.all_made(partial(self._left, number)) for number in plan.stages if number >= first}
        counts = steps.gather([len(of_stage) for of_stage in left.values()])
        most = {number: max(of_ranks) for number, of_ranks in zip(left, zip(*counts, strict=True), strict=True)}
        silent = None if progress and steps.ranks.rank == 0 else True
        with tqdm(total=sum(most.values()), desc="inference", unit="step", disable=silent, leave=False) as bar:
            for number, works in left.items():
                self._stage(number, works, most[number], bar)

    def _left(self, number: int) -> list[Work]:
        """What is left to do in a stage."""
        rows, plan = self._rows, self._plan
        if number < rows.stage:
            return []
        done, most_edges = rows.batches if number == rows.stage else 0, most_edges_of(plan, number, self._memory)
        reads_edges = plan.reads_edges(number)
        works = work_of_stage(self._graph, self._sets[number], self._size, most_edges, reads_edges)
        return [work for work in works if work.batch > done]

    def _stage(self, number: int, works: list[Work], count: int, bar: tqdm) -> None:
        """Runs a stage in ``count`` steps. A rank that has less to do only sends rows in the other steps."""
        rows, steps = self._rows, self._steps
        error: Exception | None = None
        steps.all_made(lambda: rows.begin(number))
        stage = Stage(number, self._plan, self._looked.model, self._graph, rows)
        tables, exchange = steps.all_made(lambda: self._read_of_others(number))
        steps.begin(number, count, len(tables))
        for at in range(count):
            work, hop = works[at] if at < len(works) else None, None
            if work is not None and error is None:
                try:
                    hop = stage.hop(work.seeds(self._sets[number]), work.piece)
                except Exception as failed:
                    error = failed
            known: dict[Table, Tensor] = {}
            if tables:
                came = exchange.read(None if hop is None else [hop.nodes[t] for t in tables], error)
                for of_type, got in zip(tables.values(), came, strict=True):
                    known |= zip(of_type, got, strict=True)
            else:  # so that no rank waits at the end for longer than a step takes, and errors reach all at once
                steps.step(None, error, lambda _: None)
            if work is not None and hop is not None and error is None:
                try:
                    stage.run(hop, work.piece, known)
                    if work.completes:
                        rows.done(work.batch)
                except Exception as failed:
                    error = failed
            bar.update()

        def complete() -> None:
            if error is not None:
                raise error
            self._looked.check_again()
            rows.completed(number)

        steps.all_made(complete)  # no rank drops what another one may read still
        steps.all_made(lambda: rows.end(number))

    def _read_of_others(self, number: int) -> tuple[dict[Any, list[Table]], RowsOfParts]:
        """By type, the tables whose rows of neighbors a stage reads, and what reads them."""
        tables: dict[Any, list[Table]] = {}
        for call in self._plan.calls:
            for key, table in call.inputs.items():
                of_type = tables.setdefault(table.node_type, [])
                if call.level == number and key.place != 1 and table not in of_type:
                    of_type.append(table)
        tables = {node_type: of_type for node_type, of_type in tables.items() if of_type}
        bounds = [self._graph.bounds[node_type] for node_type in tables]
        kinds = [[RowKind(table.dtype, table.shape) for table in of_type] for of_type in tables.values()]
        own = [[self._own(table) for table in of_type] for of_type in tables.values()]
        return tables, RowsOfParts(self._steps, bounds, kinds, own)

    def _own(self, table: Table) -> OwnRows:
        if table.attribute is None:
            return MappedRows(self._rows.table(table))
        group, name = table.attribute
        return self._graph.features.own_rows((group, name))


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
        NotImplementedError: a model on a GPU; parts with rows on a GPU.
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


def _places(wanted: Mapping[Any, Tensor] | None, plan: StagePlan, graph: StagedGraph) -> dict[Any, Places]:
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
