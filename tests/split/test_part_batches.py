"""What loaders of split batches refuse over the stores of a part, on all ranks."""

import pytest
import torch
from helpers.cluster import cluster
from helpers.hetero import PAPER, make_hetero
from helpers.parts import HERE, REPLICATED, loader_over
from helpers.slow import SLOW, quick
from helpers.split import GivenPlan, random_owners
from helpers.split_parts import parts_of_owners, split_loader
from torch import distributed as dist

from torch_gnnscale import LinkNeighborLoader, partition
from torch_gnnscale.distributed import open_part

TOPOLOGIES = ["partitioned", "replicated"]
OWN, OTHERS = random_owners(200, 2), random_owners(200, 2, seed=2)
FIRST = int(((OWN == 0) & (OTHERS == 1)).nonzero()[0])
assert int((OWN[:FIRST] == 0).sum()) != FIRST, "which is its place in part 0"


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """parts(topology): the directory of two parts of the owners ``OWN``, written once."""
    of = parts_of_owners(lambda: tmp_path_factory.mktemp("parts"))
    return lambda topology: of(tuple(OWN.tolist()), 2, topology)


def refused(path, plans, options, kept, make=split_loader):
    """The error of a loader on this rank, whose plan is plans[rank % len(plans)]."""
    try:
        with open_part(path, **kept) as part:
            make(part, plans[dist.get_rank() % len(plans)], options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


PLANS = [
    ([GivenPlan(OTHERS, 3)], "expected a plan of 2 parts, as the graph has, found one of 3"),
    SLOW([GivenPlan(OTHERS[:100], 2)], "expected a plan of 200 nodes, found one of 100"),
    ([GivenPlan(torch.cat([OWN, OWN[:1]]), 2)], "expected a plan of 200 nodes, found one of 201"),
    SLOW(
        [GivenPlan(OTHERS, 2)],
        f"expected parts that were written by the plan's owners, found node {FIRST} of part 1 in part 0; "
        f"partition.write(..., owners=plan.owners) writes them",
    ),
    (
        [GivenPlan(OWN, 2), GivenPlan(OTHERS, 2, "other")],
        "plan: expected the same on all ranks, found ['given', 'other']",
    ),
]


def refused_by_rank_1(path, options):
    """As of :func:`refused`, where rank 0 has the options of a usual loader."""
    return refused(path, [GivenPlan(OWN, 2)], options if dist.get_rank() == 1 else {}, {"timeout": 60})


@pytest.mark.parametrize(
    ("options", "said"),
    [({"layers": True}, "NotImplementedError: layers=True with split parallelism is not implemented"),
     ({"batch_size": 0}, "ValueError: batch_size should be a positive integer value, but got batch_size=0")],
    ids=["layers", "batch_size"],
)  # fmt: skip
def test_what_one_rank_refuses_is_told_to_all(parts, options, said):
    """At once: no rank waits for the timeout of the parts."""
    assert cluster(2).run(refused_by_rank_1, parts("partitioned"), options) == [f"ValueError: rank 1: {said}", said]


@pytest.mark.parametrize(("plans", "text"), PLANS)
@pytest.mark.parametrize("topology", quick(TOPOLOGIES, "partitioned"))
def test_plans_by_which_the_parts_were_not_written(parts, topology, plans, text):
    text = f"ValueError: split{' ' if text.startswith('plan') else ': '}{text}"
    assert cluster(2).run(refused, parts(topology), plans, {}, {}) == [text] * 2


LACKS = " with split parallelism is not implemented"
PROCESSES = {"num_workers": 2, "multiprocessing_context": "fork"}
OF_BOTH = [
    ({"layers": True}, {}, f"layers=True{LACKS}"),
    ({"disjoint": True}, {}, f"disjoint=True{LACKS}"),
    ({"time_attr": "time"}, {}, f"time_attr, input_time{LACKS}"),
    ({"time_attr": "date"}, {}, f"time_attr, input_time{LACKS}"),
    ({"subgraph_type": "induced"}, {}, f"subgraph_type='induced'{LACKS}"),
    ({"subgraph_type": "bidirectional"}, {}, f"subgraph_type='bidirectional'{LACKS}"),
    ({"directed": False}, {}, f"subgraph_type='induced'{LACKS}"),
    (PROCESSES, {}, "worker processes (num_workers=2) with the stores of a part are not implemented; num_workers alone "
     "means threads"),
    ({"edge_layout": "EdgeIndex"}, {}, "edge_layout='EdgeIndex' with split= is not implemented; use 'coo'"),
    ({}, {"buffer": 0.5}, "open_part(buffer=0.5) with split= is not implemented"),
    ({}, HERE, "open_part(transport='nccl') with split= is not implemented; use 'auto'"),
]  # fmt: skip
REFUSED = [
    *(SLOW(topology, *case) for topology in TOPOLOGIES for case in OF_BOTH),
    ("partitioned", {"method": "ladies"}, {}, f"split= of a LayerSampler{REPLICATED}"),
    ("partitioned", {"bulk": 2}, {}, f"bulk=2 of split batches{REPLICATED}"),
]  # fmt: skip


@pytest.mark.parametrize(("topology", "options", "kept", "text"), REFUSED)
def test_refused_by_name(parts, topology, options, kept, text):
    found = cluster(2).run(refused, parts(topology), [GivenPlan(OWN, 2)], options, kept)
    assert found == [f"NotImplementedError: {text}"] * 2


def link_loader(part, plan, options):
    links = torch.tensor([[0, 1], [2, 3]])
    return LinkNeighborLoader((part.features, part.graph), [3, 2], edge_label_index=links, split=plan, **options)


@pytest.mark.slow
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_links(parts, topology):
    text = "NotImplementedError: links with split= are not implemented; use NeighborLoader"
    found = cluster(2).run(refused, parts(topology), [GivenPlan(OWN, 2)], {}, {}, link_loader)
    assert found == [text] * 2


def typed_loader(part, plan, options):
    return loader_over((part.features, part.graph), (PAPER, torch.arange(5)), "nodes", {"split": plan, **options})


@pytest.mark.parametrize("topology", [SLOW("partitioned"), "replicated"])
def test_types(tmp_path, topology):
    partition.write(make_hetero(), tmp_path / "parts", parts=2, method="random", topology=topology)
    found = cluster(2).run(refused, str(tmp_path / "parts"), [GivenPlan(OWN, 2)], {}, {}, typed_loader)
    assert found == [f"NotImplementedError: HeteroData{LACKS}"] * 2
