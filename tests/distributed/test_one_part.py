"""One part on one rank: plain stores, whose stored ids are the user's, with all that a part has."""

import weakref

import pytest
import torch
from helpers.cluster import cluster
from helpers.hetero import PAPER, make_hetero
from helpers.parts import (
    as_plain,
    batches_of_rank,
    expected_batches,
    homogeneous,
    loader_of_part,
    loader_over,
    with_links,
)
from helpers.slow import SLOW, quick
from torch_geometric.sampler import BaseSampler

from torch_gnnscale import partition
from torch_gnnscale.comm.liveness import AT_EXIT
from torch_gnnscale.comm.mesh import Ranks
from torch_gnnscale.distributed import open_part
from torch_gnnscale.distributed.part import Part
from torch_gnnscale.distributed.partitioned_features import PartRows
from torch_gnnscale.feature.contract import BoundedAttr
from torch_gnnscale.partition import open_parts


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """(data, a directory of one part)."""
    return with_links(tmp_path_factory, 1)


MODES = {
    "nodes": ("nodes", {}),
    "without threads": ("nodes", {"prefetch": 0}),
    "with threads": ("nodes", {"prefetch": 3}),
    "layers": ("nodes", {"layers": True}),
    "bulk": ("nodes", {"bulk": 3}),
    "links": ("links", {}),
    "global": ("nodes", {"seed_order": "global"}),
    "serve": ("nodes", {"uneven": "serve", "batch_size": 7}),
}


@pytest.mark.parametrize(("kind", "options"), quick(MODES, "bulk", "serve"))
@pytest.mark.parametrize("kept", [SLOW({}), SLOW({"buffer": 0.5}), {"buffer": "1KiB", "policy": "lookahead"}])
def test_batches_are_those_of_plain_stores(parts, kind, options, kept):
    data, path = parts
    assert [batches_of_rank(path, kind, 2, options, kept)] == expected_batches(data, path, kind, 2, options, 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:edge type")
def test_batches_of_a_typed_graph(tmp_path):
    data, path = make_hetero(), str(tmp_path / "parts")
    partition.write(data, path, parts=1, method="random", splits={"train": (PAPER, torch.arange(0, 40, 2))})
    options = {"batch_size": 4}
    assert [batches_of_rank(path, "nodes", 2, options)] == expected_batches(data, path, "nodes", 2, options, 1)


def test_a_bulk_does_not_keep_what_was_delivered(tmp_path):
    data = homogeneous()
    partition.write(data, tmp_path / "parts", parts=1, method="random", topology="partitioned")
    with open_part(tmp_path / "parts") as part:
        loader = loader_of_part(part, bulk=3, prefetch=0)
        rows = []
        for batch in loader:
            rows.append(weakref.ref(batch.x))
            assert [of() for of in rows] == [None] * (len(rows) - 1) + [batch.x]
    assert len(rows) > 3


@pytest.mark.slow
def test_an_attribute_of_all_edges_is_by_the_users_ids(tmp_path):
    data = homogeneous()
    partition.write(data, tmp_path / "parts", parts=1, method="random", graph_attrs=["kind"])
    with open_part(tmp_path / "parts") as part:
        found = part.features.get_tensor(group_name=(None, None), attr_name="kind", index=None)
    assert torch.equal(found, data.kind)


@pytest.mark.parametrize("topology", ["replicated", "partitioned"])
def test_a_graph_without_rows(tmp_path, topology):
    """Also where ranks sample together, and no number of rows is asked for."""
    data, path = homogeneous(), str(tmp_path / "parts")
    for name in set(data.keys()) - {"edge_index", "num_nodes"}:
        del data[name]
    data.num_nodes = 200
    splits = {"train": torch.arange(0, 200, 3)}
    partition.write(data, path, parts=1, method="random", topology=topology, splits=splits)
    found = cluster(2).run(batches_of_rank, path, "nodes", 1, {})
    assert found == expected_batches(data, path, "nodes", 1, {}, 2)


def test_nobody_is_met(parts):
    with open_part(parts[1]) as part:
        assert torch.equal(part.stored.user_ids[None], torch.arange(200))
        assert (part.features.collective, part.features.thread_safe, part.graph.order) == (False, True, None)
        list(loader_of_part(part))
        assert part.stats() == {}


def test_training_goes_on_where_it_was_stopped(parts):
    with open_part(parts[1]) as part:
        stores, seeds = (part.features, part.graph), part.input_nodes("train")
        whole = [as_plain(batch) for batch in loader_over(stores, seeds, "nodes", {})]
        stopped = loader_over(stores, seeds, "nodes", {})
        iterator = iter(stopped)
        found = [as_plain(next(iterator)) for _ in range(3)]
        state = stopped.state_dict()
        assert (state["seed_order"], state["ranks"], state["parts"], state["batch"]) == ("owned", 1, 1, 3)
        again = loader_over(stores, seeds, "nodes", {})
        again.load_state_dict(state)
        assert found + [as_plain(batch) for batch in again] == whole
        with pytest.raises(ValueError, match="expected a loader with ranks=2, found ranks=1"):
            again.load_state_dict({**state, "ranks": 2})
        for uneven in ("drop", "serve"):
            other = loader_over(stores, seeds, "nodes", {"uneven": uneven})
            for loader, saved, text in (
                (other, state, f"uneven='pad', found uneven='{uneven}'"),
                (again, other.state_dict(), f"uneven='{uneven}', found uneven='pad'"),
            ):
                with pytest.raises(ValueError, match=f"^state: expected a loader with {text}$"):
                    loader.load_state_dict(saved)


def test_after_close(parts):
    with open_part(parts[1]) as part:
        stores, seeds = (part.features, part.graph), part.input_nodes("train")
        loader = loader_over(stores, seeds, "nodes", {"prefetch": 0})
        kept = next(iter(loader)).x.clone()
        delivered = next(iter(loader_over(stores, seeds, "nodes", {"prefetch": 0})))
    assert torch.equal(delivered.x, kept)
    with pytest.raises(RuntimeError, match=r"^expected the stores of an open part, found that it was closed$"):
        list(loader)
    with pytest.raises(ValueError, match=r"^part: expected an open one, found one that is closed$"):
        loader_over(stores, seeds, "nodes", {})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_workers": 1, "multiprocessing_context": "fork"}, NotImplementedError,
         r"^worker processes \(num_workers=1\) with the stores of a part are not implemented; num_workers alone means"),
        ({"shard": False}, ValueError, r"^shard: expected True or None with the stores of a part, found False$"),
        ({"shard": (0, 1), "seed": 1}, ValueError,
         r"^shard: expected True or None with the stores of a part, found \(0, 1\)$"),
    ],
)  # fmt: skip
def test_what_is_refused(parts, options, error, message):
    with open_part(parts[1]) as part, pytest.raises(error, match=message):
        loader_of_part(part, **options)


def test_after_an_error_a_part_waits_a_moment_for_the_other_ranks(parts):
    part, waits = open_part(parts[1]), []
    close, part.close = part.close, waits.append
    with part:
        pass
    with pytest.raises(ZeroDivisionError), part:
        raise ZeroDivisionError
    assert waits == [None, AT_EXIT]
    close()


def test_seeds_and_links_are_those_of_the_part_or_of_all(tmp_path_factory):
    path = with_links(tmp_path_factory, 2)[1]
    with open_parts(path) as opened:
        part = Part.__new__(Part)
        part.parts, part.stored = opened, opened.part(1)
        assert part.input_nodes("train") is part.stored.seeds[None, "train"]
        assert part.links("train") is part.stored.links[None, "train"]
        assert torch.equal(part.input_nodes("train", "all"), opened.input_nodes("train"))
        assert torch.equal(part.links("train", "all"), opened.links("train"))
        assert len(part.links("train")[0]) < len(opened.links("train")[0])
        for asked in (part.input_nodes, part.links):
            with pytest.raises(ValueError, match=r"^of: expected 'part' or 'all', found 'both'$"):
                asked("train", "both")
        rows = PartRows(opened, part.stored, Ranks(1, 2, 1, 2), print, object)
        for name, size in (("x", opened.attrs[0].shape), ("n_id", ())):
            attr = {"group_name": None, "attr_name": name, "index": None}
            assert rows.get_tensor_size(**attr) == (200, *size)
        with pytest.raises(IndexError, match=r"^index\[0\] = 200 is out of range: expected rows in \[0, 200\)$"):
            rows.get_tensor(group_name=None, attr_name="x", index=torch.tensor([200]))


def test_ranks_are_awaited_as_long_as_the_user_says(parts):
    with open_part(parts[1], timeout=7.5) as part:
        assert part._rendezvous._timeout == 7.5


def test_attributes_as_pyg_lists_them(parts):
    with open_part(parts[1]) as part:
        names = {(attr.group_name, attr.attr_name) for attr in part.features.all_attrs()}
        of_nodes = {(attr.group_name, attr.attr_name) for attr in part.features.get_all_tensor_attrs()}
        assert ((None, None), "kind") in names
        assert of_nodes == {key for key in names if key[0] is None}


def test_ids_of_tables_with_more_rows_are_checked(parts):
    """A loader says below what its ids are, which may be more than the rows of this part's table."""
    ids = torch.tensor([3, 199, 200])
    with open_part(parts[1]) as part:
        assert torch.equal(part.features.get_tensor(BoundedAttr(None, "x", ids[:2], 200, ids[:2])), parts[0].x[ids[:2]])
        with pytest.raises(IndexError, match=r"^index.2. = 200 is out of range: expected rows in .0, 200"):
            part.features.get_tensor(BoundedAttr(None, "x", ids, 201, ids))


def test_rows_of_a_part_do_not_change(parts):
    with open_part(parts[1]) as part:
        with pytest.raises(NotImplementedError, match=r"^rows of a partitioned graph do not change; write the parts"):
            part.features.put_tensor(torch.zeros(200), group_name=None, attr_name="z", index=None)
        with pytest.raises(IndexError, match=r"^index\[0\] = 200 is out of range: expected rows in \[0, 200\)$"):
            part.features.get_tensor(group_name=None, attr_name="x", index=torch.tensor([200]))


class Foreign(BaseSampler):
    """A sampler without keys."""

    def sample_from_nodes(self, inputs):
        raise AssertionError

    sample_from_edges = sample_from_nodes


def test_a_sampler_without_keys_is_refused(parts):
    with (
        open_part(parts[1]) as part,
        pytest.raises(
            ValueError, match=r"^neighbor_sampler: expected a KeyedSampler with the stores of .*found Foreign$"
        ),
    ):
        loader_of_part(part, neighbor_sampler=Foreign())
