"""The command ``gnnscale tables``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..tables import Schema, build, read_manifest
from ..tables.build import ENGINES
from ..tables.guess import guess
from ..tables.schema import pyyaml
from .options import naming_options


def add_command(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
    """Adds the command and its options; ``parents`` have --debug."""
    command = commands.add_parser(
        "tables",
        parents=parents,
        help="build a graph from tables with ids of any kind",
        description="Reads the tables that a schema names (parquet, CSV, TSV), numbers their nodes by sorted keys, and "
        "saves graph, features, labels, times, splits and ids, ready to be opened mapped.",
    )
    add = command.add_argument
    add(
        "schema",
        nargs="?",
        help="a YAML file: which columns of which files are nodes, edges and features; or a database's folder with "
        "RelBench's manifest.yaml",
    )
    add(
        "--init",
        nargs="+",
        metavar="TABLE",
        help="write a first schema of these files and directories to --out instead",
    )
    add("--out", required=True, metavar="DIR", help="a new directory, or with --init a new YAML file")
    add(
        "--memory", default="2GiB", help="what joins and sorts may use, such as 8GiB; larger ones use the disk of --out"
    )
    add("--parts", type=int, metavar="K", help="write tables of so many parts, for gnnscale partition --from-tables")
    add(
        "--engine",
        choices=[*ENGINES],
        default="duckdb",
        help="what joins and sorts: DuckDB in this process; with --parts also Spark, in the session that its "
        "environment describes, or Ray, in the cluster that RAY_ADDRESS names, both by default on this machine",
    )


def tables(args: argparse.Namespace) -> None:
    """A schema to a graph; see ``gnnscale tables --help``."""
    if (args.schema is None) == (args.init is None):
        raise ValueError(f"schema: expected one, or --init, found {'neither' if args.init is None else 'both'}")
    if args.init is not None:
        _init(args.init, Path(args.out))
        return
    there = Path(args.schema)
    if there.is_dir() or there.name == "manifest.yaml":
        schema, said = read_manifest(there if there.is_dir() else there.parent)
        print(*said, sep="\n")
    else:
        schema = Schema.read(there)
    with naming_options({"memory": "--memory", "parts": "--parts", "engine": "--engine"}):
        report = build(schema, args.out, memory=args.memory, parts=args.parts, say=print, engine=args.engine)
    if args.parts is not None:
        print(f"written: {args.out}; then: gnnscale partition --from-tables {args.out} --out parts")
        return
    for line in _next_steps(args.out, report):
        print(line)


def _init(paths: list[str], out: Path) -> None:
    """Writes a first schema, and prints what it guesses."""
    if out.exists():
        raise FileExistsError(f"--out: expected a new file, found {out}")
    schema, said = guess(paths, out.absolute().parent)
    text = pyyaml().safe_dump(schema, sort_keys=False, default_flow_style=None, allow_unicode=True)
    begin = "# A guess of gnnscale tables --init: splits, units and labels, which leave columns, are to be added."
    out.write_text(f"{begin}\n{text}", "utf-8")
    for line in said:
        print(line)
    print(f"written: {out}; then: gnnscale tables {out} --out graph")


def _next_steps(out: str, report: dict[str, Any]) -> list[str]:
    """What to do with what was written."""
    targets = [f"{name}.label" for name, table in report["nodes"].items() if {"classes", "split"} <= table.keys()]
    targets += list(report["edges"])
    trained = [f"gnnscale train --dataset {out} --target {target}" for target in targets[:1]]
    return [f"written: {Path(out)}; in a program: tables.open({out!r})", *trained]
