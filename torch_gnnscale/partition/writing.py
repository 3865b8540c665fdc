"""Writes a graph in parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from .. import files, machine
from ..memory import Budget, budget_bytes
from ..ops.arguments import check_choice, check_int, to_int
from ..topology.graph_store import relation_entry
from . import directory
from .assignment import METHODS, assign
from .directory import TOPOLOGIES, check_part_number
from .input_graph import InputGraph, given_owners, input_graph_of
from .part_writer import PartWriter
from .whole import BALANCED, report

_STREAMED = 1 << 30  # bytes of memory, unless the user says how many


def write(
    data: Any,
    out: str | os.PathLike,
    parts: int | None = None,
    *,
    method: str = "auto",
    owners: Any = None,
    topology: str = "replicated",
    splits: Mapping[str, Any] | None = None,
    links: Mapping[str, Any] | None = None,
    graph_attrs: Sequence[str] = (),
    balance: Sequence[str] = BALANCED,
    seed: int = 0,
    memory: Budget | None = None,
    only: Sequence[int] | None = None,
    about: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> list[int]:
    """Partitions a graph and writes it, its rows and its data splits in parts, for :func:`open_parts`.

    The first call chooses the parts and writes the book, the ids and, if it is replicated, the graph; then it writes
    the parts. Calls with ``only`` write some of them, so that several machines can share the work. The first of these
    calls writes the book; the later ones get the same data and arguments. A call that finds all parts written checks
    their manifests and marks the directory as complete. A part that is there already is not written again.

    Takes ``memory`` bytes and 16 bytes per node besides the data, not counting the pages of mapped files, which the
    system takes back. Edges that are not a CSC are sorted in memory. Choosing the parts may take more (see ``method``).

    Args:
        data: a Data, a HeteroData or a (FeatureStore, GraphStore) pair, in the user's ids; mapped stores are streamed.
        out: the directory: a new one, or with ``only`` one that an earlier call has begun.
        parts: their number, K; with ``only`` by default that of the book.
        method: how parts are chosen, see :func:`torch_gnnscale.partition.assign`.
        owners: a partition to use instead of ``method``: the part of each node, any integer type, shape [n]; by type if
            the graph has types.
        topology: ``replicated``: the graph is stored once, whole, for every rank to map; ``partitioned``: each part
            stores the edges of its nodes.
        splits: nodes by name of the split: ids, or a mask; in a graph with types a pair of the type and these. The
            attributes ``train_mask``, ``val_mask`` and ``test_mask`` of nodes are splits unless others are given.
        links: links by name of the split: ids of edges [m], or a mask of edges, by which a part also has their
            attributes; or ends [2, m], of any nodes. In a graph with types a pair of the edge type and these. A link
            belongs to its destination's part.
        graph_attrs: names of attributes that samplers need of the whole graph (times, weights); they are stored whole,
            in addition to the rows of the parts.
        balance: what ``method`` balances.
        seed: of the method.
        memory: bytes that may be used; by default 1 GiB, and for choosing the parts as in
            :func:`torch_gnnscale.partition.assign`.
        only: the parts to write, by default all.
        about: a value of the user's that JSON can hold; :class:`StoredParts` has it as ``about``.
        progress: show a progress bar, if stderr is a terminal.

    Returns:
        The parts that are still to be written: [] if the directory is complete.

    Raises:
        FileExistsError: ``out`` is not empty; or it has a book, and ``only`` is not given.
        TypeError, ValueError, IndexError: more parts than nodes, unless ``owners`` are given; a malformed graph, split,
            link, partition or argument; rows that are missing;
            arguments, edges, or sizes of rows, splits and links that differ from those of the first call (values of
            these are not compared), or a first call by a version that kept no checksums of edges; a damaged part.
        OSError: a file that cannot be written.
    """
    check_choice("topology", topology, TOPOLOGIES)
    path = Path(out)
    streamed = _STREAMED if memory is None else budget_bytes("memory", memory, machine.available_memory())
    inputs = input_graph_of(data, splits, links)
    begun = check_out(out, only)
    if parts is None and begun:
        parts = directory.load_book(path)[0].num_parts
    if parts is None:
        raise ValueError("parts: expected their number, found None")
    parts, seed = check_int("parts", parts, 1), to_int("seed", seed)
    if parts > (count := sum(inputs.num_nodes.values())) and owners is None:
        raise ValueError(f"parts: expected at most {count}, the number of nodes, found {parts}")
    if only is not None and not isinstance(only, Iterable):
        raise TypeError(f"only: expected a list of parts, found {type(only).__name__}")
    wanted = sorted({check_part_number("only", part, parts) for part in (range(parts) if only is None else only)})
    check_choice("method", method, METHODS)
    try:
        about = directory.plain(dict(about or {}))
    except (TypeError, ValueError) as error:
        raise TypeError(f"about: expected what JSON keeps, found {error}") from None
    given = given_of(
        inputs, graph_attrs, parts=parts, topology=topology, seed=seed, balance=list(balance),
        method=method if owners is None else "owners", about=about,
    )  # fmt: skip
    checked = None if owners is None else given_owners(owners, inputs.num_nodes, parts)
    writer = PartWriter(path, inputs, streamed)
    if begun:
        writer.resume(given, checked)
    else:
        train = inputs.train()
        assigned = {"method": "owners"}
        if checked is None:
            found = assign(
                inputs.relations, inputs.num_nodes, parts, method=method, train=train, balance=balance, seed=seed,
                memory=memory,
            )  # fmt: skip
            checked, assigned = found.owner, {name: value for name, value in found._asdict().items() if name != "owner"}
            del found
        counted = report(inputs.relations, checked, parts, train).to_dict()
        writer.begin(given, checked, {"report": counted, "assigned": assigned})
    del checked
    return finish(writer, wanted, parts, writer.part, progress)


def finish(
    writer: PartWriter, wanted: Iterable[int], parts: int, make: Callable[[int], None], progress: bool
) -> list[int]:  # fmt: skip
    """Writes those of some parts that are not there, by ``make``, and marks a complete directory.

    Returns:
        The parts that are still to be written.
    """
    path = writer.path
    for part in tqdm(wanted, desc="parts", unit=" parts", disable=None if progress else True):
        if not (directory.part_folder(path, part) / files.MANIFEST).exists():
            make(part)
    missing = directory.missing_parts(path, parts)
    if not missing:
        _complete(path, parts, writer.fingerprint)
    return missing


def check_out(out: str | os.PathLike, only: Sequence[int] | None) -> bool:
    """Whether an earlier call has begun the directory; FileExistsError or OSError if it cannot be written to."""
    path = Path(out)
    begun = (path / "book" / files.MANIFEST).exists()
    if begun and only is None:
        raise FileExistsError(
            f"{out}: expected a new or an empty directory, found a book in it; say which parts: only= (--only)"
        )
    if begun:
        files.check_writable(path)
    else:
        files.check_unused(path)
    return begun


def given_of(inputs: InputGraph, graph_attrs: Sequence[str], **arguments: Any) -> dict[str, Any]:
    """What the book says of the data and the arguments, as JSON has it; equal in all calls."""
    names = {rows.meta.attr_name for rows in inputs.rows}
    if unknown := [name for name in graph_attrs if name not in names]:
        raise ValueError(f"graph_attrs: expected names of {sorted(names)}, found {unknown}")
    composites = [whole.entry(group) for (group, _), whole in inputs.composites.items()]
    found = {
        "num_nodes": [[files.check_name(node_type), count] for node_type, count in inputs.num_nodes.items()],
        "relations": [
            relation_entry(files.check_name(edge_type), csc.num_src, csc.num_dst, csc.num_edges)
            for edge_type, csc in inputs.relations.items()
        ],
        "rows": [directory.rows_entry(rows.meta) for rows in inputs.rows],
        **({"composites": composites} if composites else {}),
        "splits": [[node_type, split, len(ids)] for (node_type, split), ids in inputs.splits.items()],
        "links": [[edge_type, split, ends.size(1)] for (edge_type, split), ends in inputs.links.items()],
        "graph_attrs": list(graph_attrs),
        "edge_checksums": inputs.edge_checksums(),
    }
    return directory.plain(found | arguments)


def _complete(path: Path, parts: int, fingerprint: int) -> None:
    """Checks the parts, all of which are there, and marks the directory as complete."""
    checksums = []
    for part in range(parts):
        folder = directory.part_folder(path, part)
        _, meta = files.load(folder, directory.PART, verify=False)
        directory.check_part_of(folder, meta, part, fingerprint)
        checksums.append(files.checksum(folder))
    mark = {"fingerprint": fingerprint, "parts": checksums}
    try:
        with files.creating(path / "complete") as folder:
            files.finish(folder, directory.COMPLETE, {}, mark)
    except OSError:  # it is marked: by an earlier call, or by another machine that has just written the last part
        if not (path / "complete" / files.MANIFEST).exists():
            raise
        _, found = files.load(path / "complete", directory.COMPLETE)
        if found != mark:
            raise ValueError(f"{path / 'complete'}: expected the parts that are there, found others") from None
