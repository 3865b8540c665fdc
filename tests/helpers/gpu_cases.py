"""Random calls of operators on a GPU, or on an emulated one, against what the CPU's operators or plain torch give.

``put(tensor, place)`` gives a copy in the memory of the GPU (``"GPU"``) or in pinned host memory (``"pinned"``).
"""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import reference
import torch
from helpers.graphs import Graph, assert_same, graph_of_degrees, with_tensors
from helpers.sampling_cases import random_case, turned
from torch import Tensor

from torch_gnnscale import ops
from torch_gnnscale.ops.layer_drawing import AGGREGATIONS, METHODS, SCHEMES_OF, SCORES, WEIGHTS

Put = Callable[[Tensor, str], Tensor]
PLACES = ["GPU", "pinned"]
INDEX = [torch.int32, torch.int64]
SHORT = [torch.float16, torch.bfloat16]
DTYPES = [torch.uint8, torch.int16, torch.float32, torch.float64, torch.complex128, *SHORT]
ROW_BYTES = [1, 2, 3, 4, 7, 8, 12, 16, 17, 31, 32, 64, 65, 100, 128, 200, 256, 511, 512, 513, 1000, 2048, 4096, 5000]


def number(generator: torch.Generator, least: int, most: int) -> int:
    """One of [least, most]."""
    return int(torch.randint(least, most + 1, (), generator=generator))


def choice(generator: torch.Generator, options):
    return options[number(generator, 0, len(options) - 1)]


def strided(values: Tensor, put: Put, place: str, offset: int, padding: int) -> Tensor:
    """A copy of a matrix at any alignment and stride, in a room that ends with its last row."""
    count, width = values.shape
    room = torch.empty(offset + max(count * (width + padding) - padding, 0), dtype=values.dtype)
    room.as_strided((count, width), (width + padding, 1), offset).copy_(values)
    return put(room, place).as_strided((count, width), (width + padding, 1), offset)


class GatheredTable(NamedTuple):
    """A table, and what is gathered from it."""

    table: ops.TieredTable
    index: Tensor
    counts: Tensor
    rows: Tensor
    """As expected."""
    of_tiers: Tensor
    """Expected counts."""

    def check(self, found: Tensor) -> None:
        assert found.dtype == self.rows.dtype
        assert torch.equal(found.cpu(), self.rows)
        assert torch.equal(self.counts[:, 0].cpu(), self.of_tiers)


def random_table(seed: int, put: Put, most: int) -> GatheredTable:
    """Rows of any width, dtype, tiers and parts, through a map or not; each sixth time of one memory without a map."""
    generator = torch.Generator().manual_seed(seed)
    dtype = choice(generator, DTYPES)
    width = max(1, choice(generator, ROW_BYTES) // dtype.itemsize)
    spread = [number(generator, 1, 3) for _ in range(number(generator, 1, 4))] if seed % 6 else [1]
    sizes = [number(generator, 0, 60) for _ in spread]
    total = sum(sizes)
    table = torch.randint(0, 250, (total, width), generator=generator).to(dtype)
    parts = [
        strided(tier[p::count], put, choice(generator, PLACES), number(generator, 0, 9), number(generator, 0, 9))
        for tier, count in zip(table.split(sizes), spread, strict=True)
        for p in range(count)
    ]
    ids, place = total, None
    if seed % 2:
        ids = number(generator, 0, 80) if total else 0
        place = torch.randint(max(total, 1), (ids,), generator=generator).to(choice(generator, INDEX))
    count = number(generator, 0, most) if ids else 0
    index = torch.randint(max(ids, 1), (count,), generator=generator).to(choice(generator, INDEX))
    wide = {torch.float16: torch.float32, torch.bfloat16: torch.float64}.get(dtype, dtype) if seed % 3 else dtype
    places = (index if place is None else place[index.long()]).long()
    ends = torch.tensor(sizes).cumsum(0)
    return GatheredTable(
        ops.TieredTable(parts, spread, None if place is None else put(place, "GPU"), dtype=wide),
        put(index, "GPU"),
        put(torch.zeros(len(spread), 2, dtype=torch.int64), "GPU"),
        table[places].to(wide),
        torch.bincount(torch.bucketize(places, ends, right=True), minlength=len(sizes)),
    )


def check_random_gather(seed: int, put: Put, most: int = 3000) -> None:
    """Rows of one table, as :func:`random_table` makes it."""
    of = random_table(seed, put, most)
    parts, spread, place, _, dtype = of.table
    of.check(ops.gather_tiers(parts, of.index, spread=spread, place=place, dtype=dtype, counts=of.counts))


def check_random_tables(seed: int, put: Put, most: int = 3000) -> None:
    """Rows of several tables, gathered together, with and without counts."""
    generator = torch.Generator().manual_seed(seed)
    tables = [random_table(20 * seed + k, put, most) for k in range(number(generator, 0, choice(generator, [2, 19])))]
    found = ops.gather_tables(
        [of.table for of in tables], [of.index for of in tables], counts=[of.counts for of in tables]
    )
    for of, rows in zip(tables, found, strict=True):
        of.check(rows)
    uncounted = ops.gather_tables([of.table for of in tables], [of.index for of in tables])
    assert all(map(torch.equal, uncounted, found))


def check_random_sample(seed: int, put: Put, most: int = 4000) -> None:
    """Batches of a graph of at most so many nodes, whose edges lie in parts, in any memory and at any stride."""
    generator = torch.Generator().manual_seed(seed)
    nodes = number(generator, 1, most)
    degrees = (torch.rand(nodes, generator=generator) ** -0.7 * number(generator, 0, 9)).long().clamp(max=3000)
    graph = graph_of_degrees(degrees.tolist(), seed=seed, dtype=choice(generator, INDEX))
    if choice(generator, [False, True]):
        edge_id = (torch.arange(len(graph.row)) * 7 + 3).flip(0).to(choice(generator, INDEX))
        graph = Graph(graph.colptr, graph.row, edge_id)

    cuts = sorted(number(generator, 0, len(graph.row)) for _ in range(number(generator, 0, 3)))
    spread = [number(generator, 1, choice(generator, [1, 4, 8])) for _ in range(len(cuts) + 1)]

    def parts_of(values: Tensor) -> list[Tensor]:
        return [
            strided(part[:, None], put, choice(generator, PLACES), number(generator, 0, 5), seed % 2)[:, 0]
            for (first, last), count in zip(pairwise([0, *cuts, len(values)]), spread, strict=True)
            for part in (values[first:last][p::count] for p in range(count))
        ]

    batches = [
        torch.randint(nodes, (number(generator, 0, min(most, 300)),), generator=generator) for _ in range(1 + seed % 7)
    ]
    fanouts = [choice(generator, [-1, 0, 1, 3, 10, 40]) for _ in range(number(generator, 0, 3))]
    options = {"replace": bool(seed & 1) and -1 not in fanouts, "layers": bool(seed & 2)}
    ends = [0, *torch.tensor([len(batch) for batch in batches]).cumsum(0).tolist()]
    found = ops.sample_bulk(
        put(graph.colptr, choice(generator, PLACES)), parts_of(graph.row), put(torch.cat(batches), "GPU"), ends,
        fanouts, list(range(len(batches))), edge_id=None if graph.edge_id is None else parts_of(graph.edge_id),
        spread=spread, **options,
    )  # fmt: skip
    for key, (sample, seeds) in enumerate(zip(found, batches, strict=True)):
        here = with_tensors(sample, Tensor.cpu)
        assert_same(here, graph.sample(ops, seeds, fanouts, key, **options))


def stored_edges(graph: ops.Relations, generator: torch.Generator, put: Put) -> list[ops.StoredEdges]:
    """The edges of all relations in parts, in any memory."""
    found = []
    for r, colptr in enumerate(graph.colptr):
        edges = len(graph.row[r])
        cuts = sorted(number(generator, 0, edges) for _ in range(number(generator, 0, 2)))
        spread = [number(generator, 1, 3) for _ in range(len(cuts) + 1)]

        def parts_of(values: Tensor | None, cuts=cuts, spread=spread, edges=edges) -> list[Tensor] | None:
            if values is None:
                return None
            return [
                put(values[first:last][p::count], choice(generator, PLACES))
                for (first, last), count in zip(pairwise([0, *cuts, edges]), spread, strict=True)
                for p in range(count)
            ]

        values = [parts_of(of[r]) for of in (graph.row, graph.edge_id, graph.weight, graph.time)]
        ends = graph.src_type[r], graph.dst_type[r], graph.reverse[r]
        found.append(ops.StoredEdges(put(colptr, choice(generator, PLACES)), *values, spread, *ends))
    return found


def check_random_bulk(seed: int, put: Put, threads: int = 0) -> None:
    """Batches of a graph of any number of relations, in every mode of bulks: those that the CPU draws one by one."""
    (graph, seeds, fanouts, key), options = random_case(seed)
    generator = torch.Generator().manual_seed(seed)
    times, starts, exclude = (options.pop(name) for name in ("seed_time", "seed_start_time", "exclude"))
    expected = ops.PreparedNeighbors(graph, fanouts, **options)
    batches = [
        (seeds, key, times, starts, exclude),
        (turned(seeds), 5, turned(times), turned(starts), None),
        ([ids[:3] for ids in seeds], -6, None if times is None else [time[:3] for time in times], None, exclude),
        ([ids[:0] for ids in seeds], 7, None if times is None else [time[:0] for time in times], None, None),
    ][: number(generator, 1, 4)]  # fmt: skip
    device = put(torch.zeros(1), "GPU").device
    bulks = ops.PreparedBulks(stored_edges(graph, generator, put), graph.sizes, fanouts, device, **options)
    for sample, of in zip(bulks.sample_many(*zip(*batches, strict=True), threads=threads), batches, strict=True):
        assert_same(with_tensors(sample, Tensor.cpu), expected.sample(*of))


def random_drawing(generator: torch.Generator) -> ops.LayerDrawing:
    """Options of layer-wise sampling."""
    method = choice(generator, METHODS)
    may_keep, flag = method != "labor", choice(generator, [False, True])
    return ops.LayerDrawing(
        method,
        choice(generator, SCHEMES_OF[method]),
        choice(generator, SCORES if may_keep else SCORES[:1]),
        choice(generator, AGGREGATIONS),
        choice(generator, WEIGHTS),
        keep_known=may_keep and flag,
        layer_dependency=not may_keep and flag,
    )


def check_random_layers(seed: int, put: Put, most: int = 2000) -> None:
    """Layer-wise batches of a graph of at most so many nodes, whose edges lie in parts, in any memory."""
    generator = torch.Generator().manual_seed(seed)
    nodes = number(generator, 1, choice(generator, [5, 60, most]))
    degrees = (torch.rand(nodes, generator=generator) ** -0.7 * number(generator, 0, 9)).long().clamp(max=900)
    graph = graph_of_degrees(degrees.tolist(), seed=seed, dtype=choice(generator, INDEX))
    if choice(generator, [False, True]):
        edge_id = (torch.arange(len(graph.row)) * 7 + 3).flip(0).to(choice(generator, INDEX))
        graph = Graph(graph.colptr, graph.row, edge_id)
    batches = [torch.randint(nodes, (number(generator, 0, 40),), generator=generator) for _ in range(1 + seed % 5)]
    num_nodes = [choice(generator, [-1, 0, 1, 3, 10, 50]) for _ in range(number(generator, 0, 3))]
    drawing, layers = random_drawing(generator), choice(generator, [False, True])
    options = {"layers": layers, "include_dst": not layers or drawing.keep_known or choice(generator, [False, True])}
    stored = graph.relations()
    score = ops.node_scores(stored, drawing.scores) if drawing.method == "fastgcn" else None
    cut, peers = number(generator, 0, len(graph.row)), number(generator, 1, 4)

    def parts_of(values: Tensor) -> list[Tensor]:
        parts = values[:cut], *(values[cut:][p::peers] for p in range(peers))
        return [put(part.contiguous(), choice(generator, PLACES)) for part in parts]

    found = ops.sample_layers_bulk(
        put(graph.colptr, choice(generator, PLACES)), parts_of(graph.row), put(torch.cat(batches), "GPU"),
        [0, *torch.tensor([len(batch) for batch in batches]).cumsum(0).tolist()], num_nodes,
        list(range(seed, seed + len(batches))), drawing,
        edge_id=None if graph.edge_id is None else parts_of(graph.edge_id),
        spread=[1, peers], score=None if score is None else put(score, choice(generator, PLACES)), **options,
    )  # fmt: skip
    for key, (sample, seeds) in enumerate(zip(found, batches, strict=True), start=seed):
        here = with_tensors(sample, Tensor.cpu)
        by = reference if nodes <= 60 else ops  # the twin, where it is not too slow
        assert_same(here, by.sample_layers(stored, seeds, num_nodes, key, drawing, score=score, **options))


def check_random_choice(seed: int, put: Put) -> None:
    """Candidates with scores of any spread, drawn by every scheme."""
    generator = torch.Generator().manual_seed(seed)
    count = choice(generator, [0, 1, 7, 300])
    node = torch.randperm(4 * count + 1, generator=generator)[:count] * choice(generator, [1, 1 << 30])
    score = (2.0 ** (torch.rand(count, generator=generator) * choice(generator, [0, 5, 50]))).long()
    scheme, drawn = choice(generator, SCHEMES_OF["ladies"]), choice(generator, [-1, 0, 1, 5, 40, 299, 300])
    at, correction = ops.choose_nodes(put(node, "GPU"), put(score, "GPU"), drawn, scheme, seed, seed % 64)
    expected = reference.choose_nodes(
        dict(zip(node.tolist(), score.tolist(), strict=True)), drawn, scheme, seed, seed % 64
    )
    found = dict(zip(node[at.cpu()].tolist(), correction.tolist(), strict=True))
    assert found == {v: entry.rounded for v, entry in expected.items()}
    assert at.tolist() == sorted(at.tolist())


def check_random_cut(seed: int, put: Put, most: int = 200) -> None:
    """Batches of a few or many nodes, over a few ranks, of which some own nothing."""
    generator = torch.Generator().manual_seed(seed)
    hops, parts = number(generator, 1, 3), number(generator, 1, 5)
    sizes = [number(generator, 0, choice(generator, [0, 3, most])) for _ in range(hops + 1)]
    total, scale = sum(sizes), choice(generator, [1, 1 << 20, 1 << 50])
    node = torch.randperm(total, generator=generator) * scale
    node[: sizes[0]] = node[: sizes[0]][torch.randint(max(sizes[0], 1), (sizes[0],), generator=generator)]
    first = {int(of): i for i, of in reversed(list(enumerate(node)))}
    ends = torch.tensor(sizes).cumsum(0).repeat_interleave(torch.tensor(sizes))
    reach = torch.cat([ends[sizes[0] :], ends[-1:].expand(sizes[0])])[: total - sizes[-1]]
    degrees = torch.randint(5, reach.shape, generator=generator) * (reach > 0)
    colptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    picks = torch.randint(1 << 40, (int(colptr[-1]),), generator=generator) % reach.repeat_interleave(degrees)
    row = torch.tensor([first[int(node[at])] for at in picks], dtype=torch.int64)
    of_ids = torch.randint(number(generator, 1, parts), (max(total, 1),), generator=generator)
    owner = of_ids[node // scale].to(choice(generator, INDEX))
    given = [put(values, "GPU") for values in (node, colptr, row, owner)]
    for part in range(parts):
        found = ops.cut_batch(given[0], sizes, *given[1:], parts, part)
        for ours, theirs in zip(found, reference.cut_batch(node, sizes, colptr, row, owner, parts, part), strict=True):
            assert torch.equal(ours.cpu(), theirs) if isinstance(theirs, Tensor) else ours == theirs


def check_random_aggregation(seed: int, put: Put, most: int = 600) -> None:
    """The operators on columns of some or many entries, of rows of any width and alignment, in one table or two."""
    generator = torch.Generator().manual_seed(seed)
    dtype, id_dtype = choice(generator, [torch.float32, torch.float64, *SHORT]), choice(generator, INDEX)
    count, columns = number(generator, 0, choice(generator, [0, 20, most])), number(generator, 0, 12)
    num_rows, heads = number(generator, 1, 40), number(generator, 1, 3)
    width = heads * choice(generator, [0, 1, 3, 4, 8, 11, 16, 32])
    # Few distinct values, so that extremes tie.
    values = choice(generator, [lambda *size: torch.randn(*size, generator=generator, dtype=dtype),
                                lambda *size: torch.randint(-2, 3, size, generator=generator).to(dtype)])  # fmt: skip

    def there(tensor: Tensor) -> Tensor:
        """A copy of rows or ids, which may begin anywhere in a room of the GPU's memory."""
        room = put(torch.cat([tensor.new_zeros(seed % 3), tensor.flatten()]), "GPU")
        return room[seed % 3 :].view(tensor.shape)

    def both(name: str, *args: Tensor | int | str | None, **options: Tensor | int | None) -> Tensor:
        """What the CPU's operator and the GPU's, which are equal, return."""
        call = getattr(ops, name)
        expected = call(*args, **options)
        moved = {key: there(value) if isinstance(value, Tensor) else value for key, value in options.items()}
        found = call(*(there(value) if isinstance(value, Tensor) else value for value in args), **moved)
        found = tuple(part.cpu() for part in found) if isinstance(found, tuple) else found.cpu()
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        return expected

    def by_twin(name: str, *args: Tensor | int | str, **options: Tensor | int | None) -> Tensor:
        return getattr(reference, name)(*args, **options)

    cuts = torch.randint(count + 1, (columns,), generator=generator).sort().values
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), cuts])
    if columns:
        ptr[-1] = count
    else:
        count = 0
    node, edge = torch.randint(num_rows, (count,), generator=generator), torch.randperm(count, generator=generator)
    for column in range(columns):  # rising in each column
        edge[ptr[column] : ptr[column + 1]] = edge[ptr[column] : ptr[column + 1]].sort().values
    pairs = put(torch.stack([node, edge], 1).to(id_dtype), "GPU")  # two columns of one table, as coo_to_csc gives them
    node, edge = node.to(id_dtype), edge.to(id_dtype) if seed % 2 else None
    x, weight = values(num_rows, width), values(count, heads) if seed % 5 else None
    if seed % 7 == 0 and width:
        x[number(generator, 0, num_rows - 1), number(generator, 0, width - 1)] = float("nan")
    cut = {"edge": edge, "num_edges": number(generator, 0, count) if seed % 3 else None}
    first = number(generator, 0, num_rows) if seed % 4 == 0 else num_rows
    more = x[first:] if seed % 4 == 0 else None
    for reduce in ops.REDUCTIONS:
        given = {**cut, "weight": weight if reduce in ("sum", "mean") else None}
        expected = by_twin("aggregate", ptr, node, x, reduce, **given)
        found = both("aggregate", ptr, node, x[:first], reduce, **given, more=more)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    strided = {"edge": None if edge is None else pairs[:, 1], "num_edges": cut["num_edges"]}
    found = ops.aggregate(put(ptr, "GPU"), pairs[:, 0], put(x, "GPU"), **strided)
    torch.testing.assert_close(
        found.cpu(), by_twin("aggregate", ptr, node, x, **cut), rtol=0, atol=0, equal_nan=True
    )  # fmt: skip
    y = values(columns, width)
    found = both("edge_dot", ptr, node, x, y, heads, edge=edge)
    torch.testing.assert_close(found, by_twin("edge_dot", ptr, node, x, y, heads, edge=edge), equal_nan=True)
    if dtype.itemsize > 2:
        of_columns, of_entries = (
            values(columns, heads) if seed % 2 else None,
            values(count, heads) if seed % 3 else None,
        )
        scores = ptr, node, values(num_rows, heads), of_columns, of_entries
        weight = both("edge_attention", *scores)
        torch.testing.assert_close(weight, by_twin("edge_attention", *scores))
        args = *scores, weight, values(count, heads)
        found = both("edge_attention_backward", *args)
        torch.testing.assert_close(found, by_twin("edge_attention_backward", *args), rtol=1e-4, atol=1e-5)
    extreme = ops.aggregate(ptr, node, x, "min")
    share = both("share_of_extremes", ptr, node, x, extreme, y)
    expected = by_twin("share_of_extremes", ptr, node, x, extreme, y)
    torch.testing.assert_close(share, expected, rtol=0, atol=0, equal_nan=True)
    # Columns become sources, whose entries lead to some of the rows above.
    args = ptr, node, y, x, values(num_rows, width)
    found = both("extreme_backward", *args, **cut)
    torch.testing.assert_close(found, by_twin("extreme_backward", *args, **cut), rtol=0, atol=0, equal_nan=True)


def check_random_shuffle(seed: int, put: Put, most: int = 1000) -> None:
    """Rows of tables in any memory, taken or added, and dropped by their ids."""
    generator = torch.Generator().manual_seed(seed)
    dtype = choice(generator, [torch.float32, torch.float64, *SHORT])
    width, count = number(generator, 1, 70), number(generator, 0, most)
    sizes = [number(generator, 1, 60) for _ in range(number(generator, 1, 4))]
    tables = [torch.randn(size, width, generator=generator).to(dtype) for size in sizes]
    there = [
        strided(table, put, choice(generator, PLACES), number(generator, 0, 9), number(generator, 0, 9))
        for table in tables
    ]
    part = torch.randint(len(sizes), (count,), generator=generator)
    row = torch.randint(1 << 20, (count,), generator=generator) % torch.tensor(sizes)[part]
    ptr, base = None, None
    if seed % 3:
        cuts = torch.randint(count + 1, (number(generator, 0, 80),), generator=generator).sort().values
        ptr = torch.cat([torch.tensor([0]), cuts, torch.tensor([count])])
    if seed % 2:
        base = torch.randn(count if ptr is None else len(ptr) - 1, width, generator=generator).to(dtype)
    given = [None if tensor is None else put(tensor, "GPU") for tensor in (base, part, row, ptr)]
    found = ops.shuffle_rows(given[0], there, *given[1:])
    expected = reference.shuffle_rows(base, tables, part, row, ptr)
    assert torch.equal(found.cpu(), expected)
    id = torch.randint(1 << 40, (len(expected),), generator=generator)
    found = ops.dropout_rows(put(expected, "GPU"), put(id, "GPU"), seed, 0.3)
    assert torch.equal(found.cpu(), reference.dropout_rows(expected, id, seed, 0.3))
