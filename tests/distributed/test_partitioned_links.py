"""Links, their negatives and anchors where edges are in parts: every batch is the one that ranks make where each maps
the whole graph."""

import pytest
import torch
from helpers.cluster import cluster
from helpers.hetero import AUTHOR, CITES, WRITES, make_hetero, with_times, with_weights
from helpers.parts import REPLICATED, check_topologies, homogeneous, of_both_topologies
from helpers.slow import in_turns, quick
from torch_geometric.sampler import NegativeSampling

from torch_gnnscale import AnchorLoader, LinkNeighborLoader
from torch_gnnscale.distributed import open_part

TRIPLETS = NegativeSampling("triplet", 2)
MODES = {
    "links": ("links", {}),
    "binary": ("links", {"neg_sampling": "binary"}),
    "triplets, global": ("links", {"neg_sampling": TRIPLETS, "seed_order": "global"}),
    "trees": ("links", {"neg_sampling": "binary", "disjoint": True}),
    "times": ("links", {"neg_sampling": "binary", "time_attr": "time", "edge_label_time": 60}),
    "windows": ("links", {"time_attr": "time", "edge_label_time": 30, "edge_label_start_time": 3}),
    "bulk": ("links", {"neg_sampling": TRIPLETS, "bulk": 2, "weight_attr": "weight"}),
    "anchors": ("anchors", {}),
    "negatives of anchors": ("anchors", {"neg_sampling": TRIPLETS, "num_positives": 2, "replace": True}),
    "anchors, global": ("anchors", {"seed_order": "global", "num_positives": -1}),
    "anchors in time": ("anchors", {"neg_sampling": TRIPLETS, "time_attr": "time", "anchor_time": 60}),
    "anchors in bulk": ("anchors", {"neg_sampling": TRIPLETS, "bulk": 3}),
}
TYPED = {
    **MODES,
    "two relations": ("relations", {"neg_sampling": "binary"}),
    "two relations, triplets, trees": ("relations", {"neg_sampling": TRIPLETS, "disjoint": True, "bulk": 2}),
}
LAYER_WISE = {
    f"{method}, {kind}": (kind, {"method": method, "neg_sampling": TRIPLETS, "num_neighbors": [9, 6]})
    for method in ("ladies", "fastgcn", "labor")
    for kind in ("links", "anchors")
}


def links_of(part, of, edge_type):
    """Every third edge, of this part or of all; the destination decides which part has one."""
    data = with_weights(with_times(make_hetero())) if part.parts.hetero else homogeneous()
    ends = (data if edge_type is None else data[edge_type]).edge_index[:, ::3]
    if of == "part":
        node_type = None if edge_type is None else edge_type[-1]
        ends = ends[:, torch.isin(ends[1], part.stored.user_ids[node_type])]
    return ends


def loader_of(part, of, options):
    kind, typed = options.pop("kind"), part.parts.hetero
    stores, edge_type = (part.features, part.graph), WRITES if typed else None
    shared = {"num_neighbors": [3, 2], "batch_size": 8, "shuffle": True, "seed": 3, "uneven": "serve"}
    options = {**shared, **options}
    if kind == "anchors":
        anchors = part.input_nodes(None, of, AUTHOR if typed else None)
        count = part.parts.book.num_nodes(AUTHOR if typed else None)
        lists = torch.arange(count + 1) * 3, torch.arange(3 * count) * 7 % (40 if typed else 200)
        if "anchor_time" in options:
            options["anchor_time"] = torch.full((len(anchors[1] if typed else anchors),), options["anchor_time"])
        given = (edge_type, *lists) if typed else lists
        return AnchorLoader(stores, anchors=anchors, **{"positives": given, **options})
    if kind == "relations":
        links = {edge_type: links_of(part, of, edge_type) for edge_type in (WRITES, CITES)}
        return LinkNeighborLoader(stores, edge_label_index=links, **options)
    links = links_of(part, of, edge_type)
    for name in ("edge_label_time", "edge_label_start_time"):
        if name in options:
            options[name] = torch.full((links.size(1),), options[name])
    return LinkNeighborLoader(stores, edge_label_index=(edge_type, links) if typed else links, **options)


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """directories(K, whether there are types)."""
    made = {}

    def of(count, typed):
        if (count, typed) not in made:
            if typed:
                data = with_weights(with_times(make_hetero()))
                owners = {of: torch.arange(data[of].num_nodes) * 7 % count for of in data.node_types}
            else:
                data = homogeneous()
                data.weight = torch.arange(data.num_edges) % 4 / 2
                owners = torch.arange(200) * 7 % count
            folder = tmp_path_factory.mktemp("parts")
            made[count, typed] = of_both_topologies(data, folder, count, owners, ["time"], ["weight"])
        return made[count, typed]

    return of


CASES = [
    *in_turns([(2, 2, False), (3, 3, False), (2, 4, False)], MODES, "negatives of anchors"),
    *in_turns([(2, 2, True), (2, 4, True)], TYPED, "binary"),
    *in_turns([(2, 4, False), (2, 2, False)], LAYER_WISE, "ladies, links", fast=-1),
]


@pytest.mark.parametrize(("count", "world", "typed", "kind", "options"), CASES)
def test_batches_are_those_of_a_replicated_graph(directories, count, world, typed, kind, options):
    check_topologies(directories(count, typed), world, loader_of, {"kind": kind, **options})


def refused(path, kind, options):
    with open_part(path) as part:
        loader_of(part, "part", {"kind": kind, **options})


REFUSED = {
    "exclusions": ("links", {"exclude_seed_edges": True}, "exclude_seed_edges=True"),
    "reverses": ("links", {"exclude_seed_edges": "reverse"}, "exclude_seed_edges='reverse'"),
    "strict": ("links", {"neg_sampling": "binary", "strict_negatives": True}, "strict_negatives"),
    "edges as positives": ("anchors", {"positives": None}, "positives of the graph's edges"),
    "exclusions of anchors": ("anchors", {"exclude_seed_edges": True}, "exclude_seed_edges=True"),
    "strict anchors": ("anchors", {"neg_sampling": TRIPLETS, "strict_negatives": True}, "strict_negatives"),
}


@pytest.mark.parametrize(("kind", "options", "what"), quick(REFUSED, "exclusions", "strict anchors"))
def test_what_is_refused_when_a_loader_is_made(directories, kind, options, what):
    found = cluster(2).results(refused, directories(2, False)[1], kind, options)
    hint = ", or give lists" if kind == "anchors" and "positives" in options else ""
    assert found == [(False, f"NotImplementedError: {what}{REPLICATED}{hint}")] * 2
