"""The command ``gnnscale embed``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import files, tables
from .._library import needed
from ..datasets import task_of_part
from ..datasets.part_tasks import kind_of_parts
from ..distributed import open_part
from ..infer import infer, result_name
from ..infer.disk import part_folder
from ..tables import Ids
from ..tasks import TASKS, RelationalTrainer
from ..training import CHECKPOINT, RankGroup, Trainer
from ..training.checkpoint import load
from ..training.rank_group import launched, launched_ranks
from . import options as cli_options
from .options import as_option, naming_folder, naming_options

_ROWS = 1 << 16
"""In a row group of a parquet file."""


def add_command(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
    """Adds the command and its options; ``parents`` have --debug and those of :mod:`.options`."""
    command = commands.add_parser(
        "embed",
        parents=parents,
        help="compute what a trained model gives for every node",
        description="Computes the output of a trained model for all nodes, layer by layer, into files. A command that "
        "was stopped goes on where it was if it is given again. --dataset is by default the run's.",
    )
    add = command.add_argument
    add("--run", required=True, metavar="DIR", help="the folder of a run of gnnscale train")
    add("--out", required=True, metavar="DIR", help="a new directory, or that of a command that was stopped")
    add(
        "--format",
        choices=("npy", "parquet"),
        help="parquet, which has the nodes' ids, too, if the name of --out ends in .parquet, else npy",
    )
    add(
        "--parts",
        metavar="DIR",
        help="compute the nodes of these parts, each by a rank that torchrun starts, into OUT/part-0, OUT/part-1, ...",
    )
    add("--relbench", metavar="DATABASE", help="the database of a run of train --relbench")
    add("--cache", metavar="DIR", help="as of train --relbench")
    add("--batch-size", type=int, default=4096, help="nodes that are computed at a time")
    add("--memory", default="1GiB", help="about how much the rows of a batch's neighbors take")


def embed(args: argparse.Namespace) -> None:
    """A run to its model's rows of all nodes; see ``gnnscale embed --help``."""
    if args.format is None:
        args.format = "parquet" if args.out.endswith(".parquet") else "npy"
    if args.format == "parquet":
        _pyarrow()
    if args.relbench is not None:
        _embed_database(args)
        return
    if args.cache is not None:
        raise ValueError("--cache: expected --relbench beside it, found none")
    if args.parts is not None:
        _embed_part(args)
        return
    if (world := launched_ranks()) > 1:
        raise ValueError(f"WORLD_SIZE: expected 1 without --parts, found {world}")
    state, kind = _run_of(args)
    args.dataset = getattr(args, "dataset", state["run"]["task"])
    args.target = getattr(args, "target", state["run"].get("target"))
    task = cli_options.load(kind, args)
    if task.name != state["run"]["task"]:
        expected = state["run"]["task"]
        raise ValueError(f"--dataset: expected {expected!r}, which the run learned from, found {task.name!r}")
    for line in _embedded(args, _trained(TASKS[kind], task, state, RankGroup()), Path(args.out), _ids(args)):
        print(line)


def _embed_database(args: argparse.Namespace) -> None:
    """What a model of a relational database gives for all rows of the tables that its task asks about."""
    others = [name for name in cli_options.OPTIONS if name in args] + ["parts"] * (args.parts is not None)
    if others:
        raise ValueError(f"--{others[0]}: expected none beside --relbench, found {vars(args)[others[0]]!r}")
    state = _state_of(args)
    if (found := state["run"].get("trainer")) != RelationalTrainer.__name__:
        raise ValueError(f"--run: expected a run of gnnscale train --relbench, found one of a {found}")
    learned_from = state["run"]["task"]
    task = RelationalTrainer.load(args.relbench, learned_from.rpartition(" ")[2], cache=args.cache)
    if task.name != learned_from:
        raise ValueError(f"--relbench: expected {learned_from!r}, which the run learned from, found {task.name!r}")
    trainer = _trained(RelationalTrainer, task, state, RankGroup())
    with files.creating(args.out) as folder:
        lines = []
        for table, rows in trainer.embeddings().items():  # type: ignore[attr-defined]
            name = f"{result_name(table)}.{args.format}"
            if args.format == "parquet":
                _write_parquet(folder / name, rows, torch.arange(len(rows)))
            else:
                np.save(folder / name, rows.numpy())
            lines.append(f"{table}: {len(rows):,} rows of {rows.size(1)} numbers in {Path(args.out) / name}")
    print("\n".join(lines))


def _ids(args: argparse.Namespace) -> dict[str, Ids]:
    """The users' ids of a graph of tables, by type of nodes; none of another graph."""
    if args.format != "parquet" or not tables.is_saved(args.dataset):
        return {}
    return {name: tables.ids(args.dataset, name) for name in tables.about(args.dataset)["nodes"]}


def _embed_part(args: argparse.Namespace) -> None:
    """Embeds with the other ranks, each its share of the nodes of its part."""
    if given := [name for name in cli_options.OPTIONS if name in args]:
        raise ValueError(
            f"--{given[0]}: expected none beside --parts, which hold the data set, found {vars(args)[given[0]]!r}"
        )
    with launched(), open_part(args.parts) as part:
        ranks = RankGroup(part.ranks)
        state, kind = ranks.first(lambda: _run_of(args))
        if (expected := kind_of_parts(part.parts)) != kind:
            raise ValueError(f"--run: expected one of {expected!r}, as {args.parts} was written for, found {kind!r}")
        task, learned_from = task_of_part(part, everyone=ranks.everyone), state["run"]["task"]
        if task.name != learned_from:
            raise ValueError(f"--parts: expected {learned_from!r}, which the run learned from, found {task.name!r}")
        alone = part.ranks.parts == 1 and not part.features.collective
        folder = Path(args.out) if alone else part_folder(Path(args.out), part.ranks.rank)
        own = {t: of.tensor_split(part.ranks.copies)[part.ranks.copy] for t, of in part.stored.user_ids.items()}
        of_part = _embedded(args, _trained(TASKS[kind], task, state, ranks), folder, own)
        for lines in ranks.everyone(of_part):
            for line in lines if ranks.is_first else ():
                print(line)


def _embedded(args: argparse.Namespace, trainer: Trainer, folder: Path, ids: Mapping[Any, Tensor | Ids]) -> list[str]:
    """Computes the rows, and writes those of this process into ``folder``; says by type how many there are and where.

    Args:
        args: of the command.
        trainer: of the run.
        folder: of this process's rows.
        ids: by type, the user's ids of these rows; by default, they are 0, 1, ...
    """
    model, call = trainer.inference()
    options = {name: as_option(name) for name in ("out", "batch_size", "memory")} | {"model": "--run"}
    with naming_options(options), naming_folder(args.out):
        found = infer(model, trainer.task.data, call, out=args.out, batch_size=args.batch_size, memory=args.memory)
    lines = []
    for node_type, rows in (found if isinstance(found, dict) else {None: found}).items():
        file = folder / f"{result_name(node_type)}.{args.format}"
        if args.format == "parquet":
            with naming_folder(args.out):
                _write_parquet(file, rows, ids.get(node_type, torch.arange(len(rows))))
        of = "" if node_type is None else f"{node_type}: "
        lines.append(f"{of}{len(rows):,} rows of {rows.shape[1:].numel()} numbers in {file}")
    return lines


def _state_of(args: argparse.Namespace) -> dict[str, Any]:
    """The state of the run."""
    state = load(Path(args.run))
    if state is None:
        raise ValueError(f"--run: expected the folder of a run of gnnscale train, found no {CHECKPOINT} in {args.run}")
    return state


def _run_of(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """The state of the run, and its task."""
    state = _state_of(args)
    found = state["run"].get("trainer")
    if found == RelationalTrainer.__name__:
        raise ValueError("--relbench: expected the database that the run learned from, found none")
    kind = next((kind for kind, trainer in TASKS.items() if trainer.__name__ == found), None)
    if kind is None:
        raise NotImplementedError(f"--run {args.run}: a run of a {found} is not implemented; use one of a task")
    return state, kind


def _trained(kind: type[Trainer], task: Any, state: dict[str, Any], ranks: RankGroup) -> Trainer:
    """The trainer of the run, its model that of the best epoch, in evaluation mode."""
    names = {field.name for field in fields(kind.config_type)}
    run = {name: value for name, value in state["run"].items() if name in names}
    trainer = kind(task, kind.config_type(**run | _on_cpu(names)), quiet=True, ranks=ranks)
    trainer.model.load_state_dict(state["model"] if state["best_model"] is None else state["best_model"])
    trainer.model.eval()
    return trainer


def _on_cpu(names: set[str]) -> dict[str, Any]:
    return {"device": "cpu"} if "device" in names else {}


def _pyarrow() -> Any:
    why = "--format parquet needs pyarrow: pip install 'torch_gnnscale[files]'"
    needed("pyarrow.parquet", why)  # an attribute of pyarrow, once it is imported
    return needed("pyarrow", why)


def _write_parquet(file: Path, rows: Tensor, ids: Tensor | Ids) -> None:
    """The columns ``id`` and ``row``, a list of numbers."""
    pyarrow = _pyarrow()
    flat = rows.reshape(len(rows), rows.shape[1:].numel())
    width, partial = flat.size(1), file.with_name(f".partial-{file.name}")
    kind = pyarrow.list_(pyarrow.from_numpy_dtype(flat.numpy().dtype), width)

    def named(first: int, last: int) -> Any:
        return ids.names(torch.arange(first, last)) if isinstance(ids, Ids) else pyarrow.array(ids[first:last].numpy())

    schema = pyarrow.schema([("id", named(0, 0).type), ("row", kind)])
    try:
        with pyarrow.parquet.ParquetWriter(partial, schema) as writer:
            for first in range(0, len(flat), _ROWS):
                part = flat[first : first + _ROWS]
                of_rows = named(first, first + len(part))
                values = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(part.reshape(-1).numpy()), width)
                writer.write_table(pyarrow.table([of_rows, values], schema))
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
