"""The command ``gnnscale embed``."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..infer import infer, result_name
from ..tasks import TASKS
from ..training import CHECKPOINT, Trainer
from ..training.checkpoint import load
from . import data as cli_data
from .errors import as_option, naming_folder, naming_options

_ROWS = 1 << 16
"""In a row group of a parquet file."""


def add_command(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
    """Adds the command and its options; ``parents`` have --debug and those of :mod:`.cli_data`."""
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
        default="npy",
        help="parquet: also a file with the nodes' ids for each type",
    )
    add("--batch-size", type=int, default=4096, help="nodes that are computed at a time")
    add("--memory", default="1GiB", help="about how much the rows of a batch's neighbors take")


def embed(args: argparse.Namespace) -> None:
    """A run to its model's rows of all nodes; see ``gnnscale embed --help``."""
    if args.format == "parquet":
        _pyarrow()
    trainer = _trained(args)
    model, call = trainer.inference()
    options = {name: as_option(name) for name in ("out", "batch_size", "memory")} | {"model": "--run"}
    with naming_options(options), naming_folder(args.out):
        found = infer(model, trainer.task.data, call, out=args.out, batch_size=args.batch_size, memory=args.memory)
    for node_type, rows in (found if isinstance(found, dict) else {None: found}).items():
        file = Path(args.out) / f"{result_name(node_type)}.{args.format}"
        if args.format == "parquet":
            with naming_folder(args.out):
                _write_parquet(file, rows)
        of = "" if node_type is None else f"{node_type}: "
        print(f"{of}{len(rows):,} rows of {rows[0].numel() if len(rows) else 0} numbers in {file}")


def _trained(args: argparse.Namespace) -> Trainer:
    """The trainer of the run, its model that of the best epoch, in evaluation mode."""
    state = load(Path(args.run))
    if state is None:
        raise ValueError(f"--run: expected the folder of a run of gnnscale train, found no {CHECKPOINT} in {args.run}")
    run = state["run"]
    kind = next((kind for kind, trainer in TASKS.items() if trainer.__name__ == run.get("trainer")), None)
    if kind is None:
        found = run.get("trainer")
        raise NotImplementedError(f"--run {args.run}: a run of a {found} is not implemented; use one of a task")
    args.dataset = getattr(args, "dataset", run["task"])
    task = cli_data.load(kind, args)
    if task.name != run["task"]:
        raise ValueError(f"--dataset: expected {run['task']!r}, which the run learned from, found {task.name!r}")
    names = {field.name for field in fields(TASKS[kind].config_type)}
    config = TASKS[kind].config_type(**{name: value for name, value in run.items() if name in names} | _on_cpu(names))
    trainer = TASKS[kind](task, config, quiet=True)
    trainer.model.load_state_dict(state["model"] if state["best_model"] is None else state["best_model"])
    trainer.model.eval()
    return trainer


def _on_cpu(names: set[str]) -> dict[str, Any]:
    return {"device": "cpu"} if "device" in names else {}


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("--format parquet needs pyarrow: pip install 'torch_gnnscale[files]'") from error
    return pyarrow


def _write_parquet(file: Path, rows: Tensor) -> None:
    """The columns ``id`` and ``row``, a list of numbers."""
    pyarrow = _pyarrow()
    flat = rows.reshape(len(rows), rows.shape[1:].numel())
    width, partial = flat.size(1), file.with_name(f".partial-{file.name}")
    kind = pyarrow.list_(pyarrow.from_numpy_dtype(flat.numpy().dtype), width)
    schema = pyarrow.schema([("id", pyarrow.int64()), ("row", kind)])
    with pyarrow.parquet.ParquetWriter(partial, schema) as writer:
        for first in range(0, len(flat), _ROWS):
            part = flat[first : first + _ROWS]
            ids = pyarrow.array(torch.arange(first, first + len(part)).numpy())
            values = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(part.reshape(-1).numpy()), width)
            writer.write_table(pyarrow.table([ids, values], schema))
    partial.replace(file)
