"""Operators that sample."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .arguments import MAX_COUNT, OPS, check_ids, check_int, check_key, check_tensor, resolve_threads
from .bulk import sample_bulk
from .samples import MAX_RELATIONS, SUBGRAPHS, Sample, Subgraph, check_fanouts


def sample_neighbors(
    colptr: Sequence[Tensor],
    row: Sequence[Tensor],
    seeds: Sequence[Tensor],
    fanouts: Sequence[int] | Sequence[Sequence[int]],
    key: int,
    *,
    edge_id: Sequence[Tensor | None] | None = None,
    weight: Sequence[Tensor | None] | None = None,
    time: Sequence[Tensor | None] | None = None,
    seed_time: Sequence[Tensor | None] | None = None,
    exclude: Sequence[Tensor | None] | None = None,
    src_type: Sequence[int] | None = None,
    dst_type: Sequence[int] | None = None,
    sizes: Sequence[int] | None = None,
    replace: bool = False,
    disjoint: bool = False,
    last: bool = False,
    layers: bool = False,
    subgraph: Subgraph = "directional",
    reverse: Sequence[int] | None = None,
    with_edge_id: bool = True,
    with_col: bool = True,
    threads: int = 0,
) -> Sample:
    """Draws all hops of a batch and writes them as CSC with local ids (FastSample, section 3.2, algorithm 1).

    In each hop every relation in turn expands the nodes of its destination type that the hop before found. Draw k of a
    node is a function of (key, node, tree, hop, relation, k). Of d candidates, the stored neighbors that neither time
    nor ``exclude`` rules out, a node of fanout at least d keeps all, in stored order. Else, k are drawn:

    - uniformly, by Floyd's method from ``floor(r * range / 2^64)``, without replacement;
    - by weight, one after the other in proportion to the weights of those that are left, by integers;
    - with replacement, k independent ones.

    The graph must have been checked (:func:`check_colptr`, :func:`first_outside`).

    Seeds on a GPU are sampled there by :func:`sample_bulk`, as a bulk of one batch: with the same result, and by its
    rules of where the graph may lie.

    Args:
        colptr: per relation, int64, shape [num_dst + 1].
        row: per relation, sources, int32 or int64, shape [E]; any stride.
        seeds: per node type, int32 or int64, shape [s]; repeats keep rows of their own.
        fanouts: of each hop; -1 takes all candidates. One list for every relation, or a list a relation.
        key: 64 bits, from :func:`torch_gnnscale.random.batch_key`.
        edge_id: per relation, the original id of each stored edge, or None where it is the position.
        weight: per relation, sums of positive integer weights over each column up to and with each stored edge (see
            :func:`weight_sums`): int64, shape [E], increasing in a column; None draws uniformly.
        time: per relation, the time of each stored edge: int64, shape [E], not decreasing in a column. A tree has only
            edges of times up to its seed's. Needs ``disjoint``.
        seed_time: per node type, int64, shape [s]; needed for types with seeds where ``time`` is given.
        exclude: per relation, pairs (source, destination) that are not sampled: int64, shape [2, m], sorted by
            destination, then source.
        src_type: per relation, the node type of its sources; 0 by default.
        dst_type: per relation, the node type of its destinations; 0 by default.
        sizes: per node type, how many nodes there are; by default what the relations into it say.
        replace: draw with replacement.
        disjoint: every seed's tree has nodes of its own.
        last: of candidates with times, only the last k are candidates of a fanout of k.
        layers: expand every node found so far in each hop (the papers' rule), not only the new ones (PyG's rule). Hop
            h then has columns of its own, one for each node known before it.
        subgraph: ``directional``, the edges that were drawn; ``bidirectional``, these and their reverses, each once,
            sorted by source in a column; ``induced``, all edges between the sampled nodes (of one tree), in stored
            order, as far as time and ``exclude`` allow.
        reverse: per relation, the one that holds its reverse edges, or -1 for none; by default a relation between nodes
            of one type is its own. Matters where ``subgraph`` is bidirectional.
        with_edge_id: return original edge ids.
        with_col: return destinations beside the sources.
        threads: see the module.

    Raises:
        TypeError, ValueError, IndexError: wrong dtypes, shapes, numbers of entries or fanouts; ids out of range.
        NotImplementedError: seeds on a GPU with types, weights, times, exclusions, disjoint trees or another subgraph.
        RuntimeError: the graph is malformed after all.
    """
    relations, types = len(colptr), len(seeds)
    if types == 0:
        raise ValueError("seeds: expected one entry a node type, found none")
    if any(isinstance(entry, Tensor) and entry.device.type == "cuda" for entry in seeds):
        modes = {
            "a graph of several types or relations": types > 1 or relations != 1,
            "weight": _some(weight),
            "time": _some(time),
            "exclude": _some(exclude),
            "disjoint=True": disjoint,
            f"subgraph={subgraph!r}": subgraph != "directional",
        }
        if unknown := [mode for mode, asked in modes.items() if asked]:
            raise NotImplementedError(
                f"{unknown[0]} is not implemented for seeds on a GPU; sample with all tensors in host memory"
            )
        return sample_bulk(
            colptr[0], row[0], seeds[0], [0, len(seeds[0])], check_fanouts(fanouts, 1), [key],
            edge_id=None if edge_id is None else edge_id[0], replace=replace, layers=layers, with_edge_id=with_edge_id,
            with_col=with_col,
        )[0]  # fmt: skip
    per_relation: dict[str, list] = {
        name: list(given) if given is not None else [default] * relations
        for name, given, default in (
            ("row", row, None),
            ("edge_id", edge_id, None),
            ("weight", weight, None),
            ("time", time, None),
            ("exclude", exclude, None),
            ("src_type", src_type, 0),
            ("dst_type", dst_type, 0),
        )
    }
    for name, entries in per_relation.items():
        if len(entries) != relations:
            raise ValueError(f"{name}: expected one entry for each of {relations} relations, found {len(entries)}")
    seed_times = list(seed_time) if seed_time is not None else [None] * types
    if len(seed_times) != types:
        raise ValueError(f"seed_time: expected one entry for each of {types} node types, found {len(seed_times)}")
    if relations > MAX_RELATIONS:
        raise ValueError(f"colptr: expected at most {MAX_RELATIONS} relations, found {relations}")
    for name in ("src_type", "dst_type"):
        for entry in per_relation[name]:
            check_int(name, entry, 0, types - 1)
    flat = check_fanouts(fanouts, relations)
    counts = _check_sizes(sizes, colptr, per_relation["dst_type"], types)
    for r in range(relations):
        _check_relation(r, colptr[r], per_relation, counts)
    if subgraph not in SUBGRAPHS:
        raise ValueError(f"subgraph: expected one of {tuple(SUBGRAPHS)}, found {subgraph!r}")
    if layers and subgraph != "directional":
        raise ValueError(f"layers: expected subgraph='directional', whose hops have edges, found {subgraph!r}")
    timed = any(entry is not None for entry in per_relation["time"])
    if timed and not disjoint:
        raise ValueError("time: expected disjoint=True, for each seed has a time of its own")
    for t in range(types):
        check_ids(f"seeds[{t}]" if types > 1 else "seeds", seeds[t], counts[t], "nodes", threads)
        if timed and len(seeds[t]):
            _check_vector(f"seed_time[{t}]", seed_times[t], len(seeds[t]))
    reverses = _check_reverse(reverse, per_relation["src_type"], per_relation["dst_type"])
    return Sample(
        *OPS.sample_neighbors(
            [entry.contiguous() for entry in colptr],
            per_relation["row"],
            per_relation["edge_id"],
            [None if entry is None else entry.contiguous() for entry in per_relation["weight"]],
            [None if entry is None else entry.contiguous() for entry in per_relation["time"]],
            [None if entry is None else entry.contiguous() for entry in per_relation["exclude"]],
            per_relation["src_type"],
            per_relation["dst_type"],
            reverses,
            counts,
            [entry.contiguous() for entry in seeds],
            [None if entry is None else entry.contiguous() for entry in seed_times],
            flat,
            check_key(key),
            replace,
            disjoint,
            last,
            layers,
            SUBGRAPHS.index(subgraph),
            with_edge_id,
            with_col,
            resolve_threads(threads),
        )
    )


def _some(entries: Sequence[Tensor | None] | None) -> bool:
    return entries is not None and any(entry is not None for entry in entries)


def weight_sums(colptr: Tensor, weight: Tensor) -> Tensor:
    """Sums of integer weights over each column, for :func:`sample_neighbors`.

    A weight becomes ``round(2^32 w / max)``, max being the column's largest, and at least 1: a ratio of two weights of
    a column is kept up to a relative error of ``2^-33 max / w`` each, where ``w`` is not below ``2^-32 max``.

    Args:
        colptr: int64, shape [num_dst + 1].
        weight: positive and finite, any real dtype, shape [E], in stored order.

    Returns:
        int64, shape [E]: the sum over the column up to and with each edge.

    Raises:
        TypeError, ValueError: not such a vector; a weight that is not positive and finite.
    """
    check_tensor("weight", weight)
    if weight.dtype == torch.bool or weight.is_complex():
        raise TypeError(f"weight: expected real numbers, found {weight.dtype}")
    if weight.dim() != 1:
        raise ValueError(f"weight: expected a vector, found shape {tuple(weight.shape)}")
    if len(weight) != int(colptr[-1]):
        raise ValueError(f"weight: expected one for each of {int(colptr[-1])} edges, found {len(weight)}")
    values = weight.to(torch.float64)
    wrong = ~((values > 0) & torch.isfinite(values))
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0])
        raise ValueError(f"weight[{at}] = {float(values[at])}: expected a positive and finite number")
    degree = colptr.diff()
    largest = torch.segment_reduce(values, "max", lengths=degree, initial=0) if len(degree) else values
    share = values / largest.repeat_interleave(degree)
    integer = (share * float(1 << 32)).round().clamp_(min=1).to(torch.int64)
    sums = integer.cumsum(0)  # modulo 2^64, as are the differences
    before = torch.cat([sums.new_zeros(1), sums])[colptr[:-1]]
    return sums - before.repeat_interleave(degree)


def _check_vector(name: str, value: Tensor | None, size: int) -> None:
    if not isinstance(value, Tensor) or value.dtype != torch.int64:
        found = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name}: expected an int64 vector, found {found}")
    if value.shape != (size,):
        raise ValueError(f"{name}: expected shape ({size},), found {tuple(value.shape)}")


def _check_sizes(sizes: Sequence[int] | None, colptr: Sequence[Tensor], dst_type: list[int], types: int) -> list[int]:
    """How many nodes each type has."""
    for r, pointer in enumerate(colptr):
        check_tensor("colptr", pointer)
        if pointer.dtype != torch.int64 or pointer.dim() != 1 or pointer.numel() == 0:
            raise TypeError(f"colptr: expected an int64 vector, found {pointer.dtype} {tuple(pointer.shape)}")
        if sizes is not None and len(sizes) == types and pointer.numel() - 1 != sizes[dst_type[r]]:
            raise ValueError(
                f"colptr[{r}]: expected {sizes[dst_type[r]] + 1} entries for {sizes[dst_type[r]]} nodes, found "
                f"{pointer.numel()}"
            )
    if sizes is not None:
        if len(sizes) != types:
            raise ValueError(f"sizes: expected one for each of {types} node types, found {len(sizes)}")
        return [check_int("sizes", size, 0, MAX_COUNT) for size in sizes]
    known = {t: pointer.numel() - 1 for t, pointer in zip(dst_type, colptr, strict=True)}
    if missing := [t for t in range(types) if t not in known]:
        raise ValueError(f"sizes: expected them, for no relation leads to node types {missing}")
    return _check_sizes([known[t] for t in range(types)], colptr, dst_type, types)


def _check_relation(r: int, colptr: Tensor, given: dict[str, list], sizes: list[int]) -> None:
    row, edge_id, exclude = given["row"][r], given["edge_id"][r], given["exclude"][r]
    check_ids("row", row)
    if edge_id is not None:
        check_ids("edge_id", edge_id)
        if len(edge_id) != len(row):
            raise ValueError(f"edge_id: expected one for each of {len(row)} edges, found {len(edge_id)}")
    for name in ("weight", "time"):
        if given[name][r] is not None:
            _check_vector(f"{name}[{r}]", given[name][r], len(row))
    if exclude is not None:
        check_tensor(f"exclude[{r}]", exclude)
        if exclude.dtype != torch.int64 or exclude.dim() != 2 or exclude.size(0) != 2:
            raise TypeError(
                f"exclude[{r}]: expected int64 of shape [2, m], found {exclude.dtype} {tuple(exclude.shape)}"
            )
        source, destination = exclude
        same = destination[1:] == destination[:-1]
        if bool(((destination[1:] < destination[:-1]) | (same & (source[1:] < source[:-1]))).any()):
            raise ValueError(f"exclude[{r}]: expected pairs sorted by destination, then source")


def _check_reverse(reverse: Sequence[int] | None, src_type: list[int], dst_type: list[int]) -> list[int]:
    if reverse is None:
        return [r if src == dst else -1 for r, (src, dst) in enumerate(zip(src_type, dst_type, strict=True))]
    if len(reverse) != len(src_type):
        raise ValueError(f"reverse: expected one entry for each of {len(src_type)} relations, found {len(reverse)}")
    for r, other in enumerate(reverse):
        check_int("reverse", other, -1, len(src_type) - 1)
        if other >= 0 and (src_type[other], dst_type[other]) != (dst_type[r], src_type[r]):
            raise ValueError(f"reverse[{r}]: expected a relation from type {dst_type[r]} to {src_type[r]}")
    return list(reverse)
