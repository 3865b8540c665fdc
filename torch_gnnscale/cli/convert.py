"""The command gnnscale convert: a graph from files of edges, rows, labels and data splits."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.typing import EdgeType, NodeType

from .. import files
from ..datasets import saved
from ..datasets.archives import loaded
from ..feature import FeatureStore
from ..splits import SUBSETS
from ..topology import EdgeFiles, build_on_disk
from ..topology.edge_sources import Ends
from ..topology.edge_text import HEADERS
from .options import check_at_least, naming_options

ROW_TYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
"""The NumPy dtypes of features."""


def read_rows(file: str | Path) -> Tensor:
    """Features of all nodes, memory-mapped: ``.npy`` of shape [N, F], a dtype of :data:`ROW_TYPES`.

    Raises:
        ValueError: names the file, what was expected and what was found.
        OSError: the file cannot be read.
    """
    rows = _vectors(file)
    if rows.ndim != 2 or str(rows.dtype) not in ROW_TYPES:
        raise ValueError(
            f"{file}: expected features of shape (nodes, features) and a type of {', '.join(ROW_TYPES)}, found shape "
            f"{rows.shape} and type {rows.dtype}"
        )
    return torch.from_numpy(rows)


def read_labels(file: str | Path) -> Tensor:
    """The class of each node: ``.npy`` of integers, shape [N] or [N, 1], -1 where it is unknown. int64, shape [N].

    Raises:
        ValueError, OSError: as of :func:`read_rows`.
    """
    labels = _vectors(file)
    if labels.dtype.kind not in "iu" or labels.ndim not in (1, 2) or labels.size != len(labels):
        raise ValueError(
            f"{file}: expected one class for each node, integers of shape (nodes,), found shape {labels.shape} and "
            f"type {labels.dtype}"
        )
    classes = torch.from_numpy(labels.astype(np.int64).reshape(-1))
    if len(classes) and (lowest := int(classes.min())) < -1:
        raise ValueError(f"{file}: expected classes of at least 0, or -1 where they are unknown, found {lowest}")
    return classes


def read_splits(file: str | Path, count: int) -> dict[str, Tensor]:
    """The masks of a data split: ``.npz`` of the arrays ``train``, ``val`` and ``test``, each of ids of nodes or a bool
    mask [N]; no node may be in two of them.

    Args:
        file: the archive.
        count: N, the number of nodes.

    Raises:
        ValueError, OSError: as of :func:`read_rows`.
    """
    arrays = loaded(Path(file))
    if isinstance(arrays, np.ndarray) or set(arrays) != set(SUBSETS):
        found = "a single array" if isinstance(arrays, np.ndarray) else sorted(arrays)
        raise ValueError(f"{file}: expected an archive (.npz) of the arrays {', '.join(SUBSETS)}, found {found}")
    masks: dict[str, Tensor] = {}
    for subset in SUBSETS:
        given, mask = arrays[subset], torch.zeros(count, dtype=torch.bool)
        if given.dtype == np.bool_:
            if given.shape != (count,):
                raise ValueError(f"{file}, {subset}: expected a mask of {count} nodes, found shape {given.shape}")
            mask = torch.from_numpy(given)
        elif given.ndim == 1 and (given.dtype.kind in "iu" or not given.size):
            for found in (given.min(), given.max()) if given.size else ():
                if not 0 <= found < count:
                    raise ValueError(f"{file}, {subset}: expected nodes in [0, {count}), found {found}")
            mask[torch.from_numpy(given.astype(np.int64))] = True
        else:
            raise ValueError(
                f"{file}, {subset}: expected ids of nodes, shape (m,), or a mask, found shape {given.shape} and type "
                f"{given.dtype}"
            )
        for other, taken in masks.items():
            if (both := (mask & taken).nonzero()).numel():
                raise ValueError(
                    f"{file}: expected each node in one split, found {int(both[0])} in {other} and {subset}"
                )
        masks[subset] = mask
    if not bool(masks["train"].any()):
        raise ValueError(f"{file}, train: expected at least one node, found none")
    return masks


def _vectors(file: str | Path) -> np.ndarray:
    """The array of a ``.npy`` file, mapped copy-on-write."""
    array = loaded(Path(file), mapped=True)
    if not isinstance(array, np.ndarray) or not array.ndim:
        raise ValueError(f"{file}: expected an array of a row for each node (.npy), found another")
    return array


_DENSE = 1 << 28
"""Up to so many nodes, gaps between ids are taken as they are."""
_GAP = 64
"""Above, so many nodes per edge are taken for ids that have to be numbered anew."""


def add_command(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
    """Adds the command and its options; ``parents`` have --debug."""
    command = commands.add_parser(
        "convert",
        parents=parents,
        help="build a graph from files of edges, on disk",
        description="Sorts edges by destination in bounded memory and saves the graph, ready to be opened mapped. With "
        "rows, labels and splits of its nodes beside it, train and partition take it as --dataset.",
    )
    add = command.add_argument
    add("sources", nargs="+", help=".npy of shape [2, E], .parquet or text files of edges")
    add("--out", required=True, help="a new directory")
    add(
        "--types",
        nargs=3,
        metavar=("SRC", "REL", "DST"),
        help="each column has ids of a type of nodes (user buys item); by default both have ids of the same nodes",
    )
    add(
        "--columns", nargs=2, metavar=("SRC", "DST"), help="of sources and destinations: their names, or numbers from 0"
    )
    add(
        "--header",
        choices=HEADERS,
        default="auto",
        help="of text files: a first line that names the columns, or asked for",
    )
    add(
        "--nodes",
        type=int,
        nargs="+",
        metavar="N",
        help="number of nodes, or of those of SRC and DST; by default that of rows, else one more than the largest id, "
        "which takes a pass",
    )
    named = "with --types TYPE=FILE"
    add("--x", nargs="+", metavar="FILE", help=f"features of the nodes: .npy, shape [N, F]; {named}, or several")
    add("--y", metavar="FILE", help=f"their classes: .npy of integers, shape [N], -1: unknown; {named}")
    add("--split", metavar="FILE", help=f".npz of train, val and test: ids or masks of these nodes; {named}")
    add("--no-edge-ids", action="store_true", help="do not keep the way back to the edges' order in the files")
    add("--memory", type=float, default=1.0, help="GiB that may be used to sort")


def convert(args: argparse.Namespace) -> None:
    """Files of edges to a saved graph; see ``gnnscale convert --help``."""
    if not 0 < args.memory < math.inf:
        raise ValueError(f"--memory: expected a finite number of GiB above 0, found {args.memory}")
    edge_type: EdgeType | None = None if args.types is None else tuple(args.types)
    if wrong := [name for name in edge_type or () if not name or "." in name or "__" in name]:
        raise ValueError(f"--types: expected names without '.' and '__', of which modules are made, found {wrong[0]!r}")
    types: list[NodeType | None] = [None, None] if edge_type is None else [edge_type[0], edge_type[-1]]
    with naming_options({"columns": "--columns", "header": "--header"}):
        edges = EdgeFiles(args.sources, None if args.columns is None else tuple(args.columns), args.header)
    files.check_unused(Path(args.out))
    features, labelled = _rows(args, types)
    counts = _counts(args, types, features)
    if set(types) <= counts.keys():
        reading = _Reading(edges, [counts[node_type] for node_type in types])
    else:
        reading = _Reading(edges, _counted(edges, types, counts))
    build: dict[str, Any] = {
        "edge_type": edge_type,
        "edge_ids": not args.no_edge_ids,
        "num_edges": edges.count(),
        "memory": math.ceil(args.memory * 2**30),
        "progress": True,
    }
    src, dst = (count.nodes for count in reading.counts)
    with naming_options({"size": "--nodes"}):
        if features.all_attrs():
            with files.creating(args.out) as folder:
                build_on_disk(folder / "graph", reading.chunks(), (src, dst), **build)
                saved.save(folder, features, *labelled)
        else:
            build_on_disk(args.out, reading.chunks(), (src, dst), **build)
    print(reading.report(edge_type, args.out))
    print(_next_step(args.out, edge_type, bool(features.all_attrs()), bool(labelled)))


# Rows and numbers of nodes ############################################################################################


class _Count(NamedTuple):
    """How many nodes a type has."""

    nodes: int
    said_by: str
    """An option, or the largest id."""


def _rows(args: argparse.Namespace, types: Sequence[NodeType | None]) -> tuple[FeatureStore, tuple[Any, ...]]:
    """The rows of --x, --y and --split; and the metric and the labelled type if there are labels."""
    given = {f"--{name}": _by_type(f"--{name}", getattr(args, name), types) for name in ("x", "y", "split")}
    features = FeatureStore()
    for node_type, file in given["--x"].items():
        features.put_tensor(read_rows(file), group_name=node_type, attr_name="x", index=None)
    if not given["--y"] and not given["--split"]:
        return features, ()
    for option, others in (("--y", ("--x", "--split")), ("--split", ("--x", "--y"))):
        for node_type in given[option]:
            if missing := [other for other in others if node_type not in given[other]]:
                raise ValueError(f"{option}: expected {' and '.join(missing)} of the same nodes beside it, found none")
    ((node_type, labels),) = given["--y"].items()
    y, count = read_labels(labels), features.get_tensor_size(group_name=node_type, attr_name="x")[0]
    if len(y) != count:
        raise ValueError(
            f"{labels}: expected classes of {count} nodes, as {given['--x'][node_type]} has, found {len(y)}"
        )
    masks = read_splits(given["--split"][node_type], count)
    for name, tensor in {"y": y, **{f"{subset}_mask": mask for subset, mask in masks.items()}}.items():
        features.put_tensor(tensor, group_name=node_type, attr_name=name, index=None)
    return features, ("accuracy", node_type)


def _by_type(option: str, given: str | list[str] | None, types: Sequence[NodeType | None]) -> dict[Any, str]:
    """The files of an option by type: FILE of nodes without types, else TYPE=FILE."""
    found: dict[Any, str] = {}
    for text in [] if given is None else [given] if isinstance(given, str) else given:
        node_type, equals, file = (None, "", text) if types[0] is None else text.partition("=")
        if node_type not in types or (equals != "=" and types[0] is not None):
            raise ValueError(f"{option}: expected TYPE=FILE with a type of {_distinct(types)}, found {text!r}")
        if node_type in found:
            raise ValueError(f"{option}: expected one file{_of(node_type)}, found {found[node_type]} and {file}")
        found[node_type] = file
    return found


def _counts(args: argparse.Namespace, types: Sequence[NodeType | None], features: FeatureStore) -> dict[Any, _Count]:
    """What --nodes and --x say of the numbers of nodes."""
    kinds, counts = _distinct(types), {}
    if args.nodes is not None:
        if len(args.nodes) != len(kinds):
            raise ValueError(f"--nodes: expected {len(kinds)}, found {len(args.nodes)}")
        for node_type, nodes in zip(kinds, args.nodes, strict=True):
            check_at_least(0, {"nodes": nodes})
            counts[node_type] = _Count(nodes, "--nodes")
    for node_type in kinds:
        if (size := features.get_tensor_size(group_name=node_type, attr_name="x")) is not None:
            found = counts.setdefault(node_type, _Count(size[0], "--x"))
            if found.nodes != size[0]:
                raise ValueError(f"--nodes: expected {size[0]}{_of(node_type)}, the rows of --x, found {found.nodes}")
    return counts


def _counted(edges: EdgeFiles, types: Sequence[NodeType | None], known: dict[Any, _Count]) -> list[_Count]:
    """The number of nodes of both ends: where nothing says it, one more than the largest id; reads all edges."""
    *ends, total = edges.ends()
    if not total:
        named = ", ".join(str(source) for source in edges.sources)
        raise ValueError(f"{named}: expected edges, found none; --nodes makes a graph of nodes without edges")
    counts = dict(known)
    for node_type in set(types) - known.keys():
        last = max((end for end, of in zip(ends, types, strict=True) if of == node_type), key=lambda end: end.largest)
        nodes = last.largest + 1
        if nodes > max(_DENSE, _GAP * total):
            raise ValueError(
                f"{last.file}: expected ids that are numbered from 0 without large gaps, found id {last.largest} among "
                f"{total:,} edges; number the nodes anew, or say how many there are by --nodes"
            )
        counts[node_type] = _Count(nodes, "the largest id")
    return [counts[node_type] for node_type in types]


# Edges ################################################################################################################


class _Reading:
    """Edges that are read once, the ids in their columns noted.

    Args:
        edges: the files.
        counts: of sources and of destinations.
    """

    def __init__(self, edges: EdgeFiles, counts: Sequence[_Count]) -> None:
        self.edges, self.counts, self.ends = edges, counts, [Ends(), Ends()]
        self.total = 0

    def chunks(self) -> Iterator[Tensor]:
        """The edges; ValueError, which names the file, for an id that no node has."""
        for file, chunk in self.edges.chunks_of_files():
            self.ends = [end.with_ids(file, ids) for end, ids in zip(self.ends, chunk, strict=True)]
            for end, count in zip(self.ends, self.counts, strict=True):
                if end.largest >= count.nodes:
                    raise ValueError(
                        f"{count.said_by}: expected more than {end.largest} nodes, an id in {end.file}, found "
                        f"{count.nodes}"
                    )
            self.total += chunk.size(1)
            yield chunk

    def report(self, edge_type: EdgeType | None, out: str) -> str:
        """What the columns are, and what is in ``out``."""
        sources, destinations = (_range(end) for end in self.ends)
        src, dst = (count.nodes for count in self.counts)
        edges, nodes = "edges", f"{src:,} nodes"
        columns = f"sources: {sources}; destinations: {destinations}\n"
        shared = max(end.smallest for end in self.ends)
        if edge_type is None or edge_type[0] == edge_type[-1]:
            columns += "both columns are ids of the same nodes"
            if shared <= min(end.largest for end in self.ends):
                columns += f": source {shared} and destination {shared} are one node"
            if edge_type is None:
                columns += " (for ids of two kinds of nodes: --types SRC REL DST)"
        else:
            columns += f"sources are ids of {edge_type[0]} nodes, destinations of {edge_type[-1]} nodes"
            nodes = f"{src:,} {edge_type[0]} nodes, {dst:,} {edge_type[-1]} nodes"
        if edge_type is not None:
            edges = f"edges {' '.join(edge_type)}"
        return f"{columns}\n{nodes}, {self.total:,} {edges} in {out}"


def _range(end: Ends) -> str:
    return "no ids" if end.largest < 0 else f"ids {end.smallest} to {end.largest}"


def _next_step(out: str, edge_type: EdgeType | None, rows: bool, labels: bool) -> str:
    """What to do with what was written."""
    folder = f"{out}/graph" if rows else out
    opened = f"GraphStore.open({folder!r})" + (f", FeatureStore.open({f'{out}/features'!r})" if rows else "")
    if labels:
        return f"gnnscale train --task {'nodes' if edge_type is None else 'hetero'} --dataset {out}; {opened}"
    return opened if edge_type is None else f"gnnscale train --task links --dataset {out}; {opened}"


def _distinct(types: Sequence[NodeType | None]) -> list[Any]:
    return list(dict.fromkeys(types))


def _of(node_type: NodeType | None) -> str:
    return "" if node_type is None else f" of {node_type}"
