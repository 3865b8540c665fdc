"""What the stores of a part refuse without other ranks, by its whole message."""

import pytest
import torch
from helpers.data import make_data
from helpers.hetero import make_hetero
from helpers.parts import REPLICATED, homogeneous
from helpers.refused import refuses
from torch import distributed as dist
from torch_geometric.data import TensorAttr

from torch_gnnscale import NeighborSampler, partition
from torch_gnnscale.comm.mesh import transport_of
from torch_gnnscale.comm.rendezvous import Card, check_cards
from torch_gnnscale.distributed import open_part
from torch_gnnscale.distributed.buffer import Kept, capacities
from torch_gnnscale.distributed.lookahead import Lookahead
from torch_gnnscale.distributed.policies import MassiveGNN, Policy, Static
from torch_gnnscale.sampler.executor import Drawing
from torch_gnnscale.sampler.minibatch import PreparedSeeds

MOST = 2**62
UNKNOWN = "transport: expected one of ('auto', 'gloo', 'nccl', 'memory'), found 'mpi'"
MEMORY = "a number and a unit such as '8GiB', '500MB' or '25%'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory of one part of edges, with two splits and one of links."""
    data, path = homogeneous(), tmp_path_factory.mktemp("refused") / "parts"
    data.val_mask = ~data.train_mask
    links = {"train": data.edge_index[:, :3]}
    partition.write(data, path, parts=1, method="ranges", topology="partitioned", graph_attrs=["time"], links=links)
    return path


@pytest.fixture(scope="module")
def part(folder):
    with open_part(folder) as opened:
        yield opened


def sampler(part, **options) -> NeighborSampler:
    return NeighborSampler((part.features, part.graph), [2], **options)


DRAWING = Drawing([[2]], False, False, False, False, "directional")
OF_EDGES = TensorAttr((None, None), "kind", None)
SPLITS, LINKS = [(None, "train"), (None, "val")], [(None, "train")]
UNCHANGED = "rows of a partitioned graph do not change; write the parts again"
PART = [
    (lambda part: sampler(part, sample_direction="backward"), NotImplementedError,
     f"sample_direction='backward'{REPLICATED}"),
    (lambda part: part.graph.executor(None, torch.device("meta")), NotImplementedError, f"device='meta'{REPLICATED}"),
    (lambda part: sampler(part).executor.draw([PreparedSeeds([torch.arange(2)], (0,), pairs=[None])], [1], DRAWING),
     NotImplementedError, f"exclusion of edges{REPLICATED}"),
    (lambda part: part.graph.remove_edge_index(edge_type=None, layout="csc"), NotImplementedError,
     "edges of a partitioned graph do not change; write the parts again"),
    (lambda part: part.features.remove_tensor(TensorAttr(None, "x", None)), NotImplementedError, UNCHANGED),
    (lambda part: part.features.put_tensor(torch.ones(200), TensorAttr(None, "z", None)), NotImplementedError,
     UNCHANGED),
    (lambda part: part.features.get_tensor(OF_EDGES), RuntimeError,
     "((None, None), 'kind'): expected an attribute of the whole graph, found one in parts; what samplers read of all "
     "nodes or edges (times, weights) is to be named when the parts are written: graph_attrs=['kind']"),
    (lambda part: part.features.get_tensor(TensorAttr(None, "x", torch.tensor([0, 200]))), IndexError,
     "index[1] = 200 is out of range: expected rows in [0, 200)"),
    (lambda part: part.features.get_tensor(TensorAttr((None, None), "kind", torch.tensor([-1]))), IndexError,
     "index[0] = -1 is out of range: expected rows in [0, 1500)"),
    (lambda part: part.input_nodes("lost"), ValueError, f"split: expected one of {SPLITS}, found 'lost'"),
    (lambda part: part.input_nodes("train", node_type="a"), ValueError,
     f"split: expected one of {SPLITS}, found ('a', 'train')"),
    (lambda part: part.links("val"), ValueError, f"split: expected one of {LINKS}, found 'val'"),
    (lambda part: part.links("train", edge_type="a"), ValueError,
     f"split: expected one of {LINKS}, found ('a', 'train')"),
    (lambda part: part.input_nodes("train", "both"), ValueError, "of: expected 'part' or 'all', found 'both'"),
    (lambda part: part.links("train", "both"), ValueError, "of: expected 'part' or 'all', found 'both'"),
]  # fmt: skip


@pytest.mark.parametrize(("ask", "error", "message"), PART, ids=[message for *_, message in PART])
def test_what_a_part_does_not_do(part, ask, error, message):
    with refuses(error, message):
        ask(part)


def test_what_a_part_says_of_itself(part):
    assert repr(part.graph) == "PartitionedGraphStore(part 0 of 1)"
    assert repr(part.features) == "PartitionedFeatureStore(part 0 of 1, 9 attributes)"
    assert part.features._get_tensor(TensorAttr(None, "lost", None)) is None
    assert part.features._get_tensor_size(TensorAttr(None, "lost", None)) is None
    (relation,) = sampler(part).graph.relations
    assert (relation.num_edges, relation.id_bound) == (1500, 1500)


@pytest.mark.slow
def test_the_only_type_of_a_split_is_meant(tmp_path):
    data = make_hetero()
    splits = {"train": ("paper", [1]), "val": ("author", [2]), "test": ("author", [3])}
    partition.write(data, tmp_path / "parts", 1, method="ranges", splits=splits)
    with open_part(tmp_path / "parts") as part:
        kind, ids = part.input_nodes("val")
        assert (kind, ids.tolist()) == ("author", [2])
        known = [("paper", "train"), ("author", "val"), ("author", "test")]
        with refuses(ValueError, f"split: expected one of {known}, found ('venue', 'train')"):
            part.input_nodes("train", node_type="venue")


@pytest.mark.parametrize(("ask", "option"), [("input_nodes", "splits"), ("links", "links")])
def test_splits_that_were_not_written(tmp_path, ask, option):
    partition.write(make_data(), tmp_path / "parts", 1, method="ranges", splits={})
    with open_part(tmp_path / "parts") as part:
        said = (
            f"split: expected one that was written, found none; partition.write(..., {option}={{'val': ...}}) writes it"
        )
        with refuses(ValueError, said):
            getattr(part, ask)("val")
        with pytest.raises(ValueError, match=r"'val'\): there is none$"):
            getattr(part.parts, ask)("val")


HALO = torch.tensor([1, 3, 5])
OPEN = [
    ({"consecutive": "ranks"}, ValueError, "consecutive: expected one of ('copies', 'parts'), found 'ranks'"),
    ({"transport": "mpi"}, ValueError, UNKNOWN),
    ({"policy": "static"}, ValueError, "policy, policy_options: expected none without a buffer"),
    ({"policy_options": {"delta": 1}}, ValueError, "policy, policy_options: expected none without a buffer"),
    ({"buffer": 0.5, "policy": "best"}, ValueError,
     "policy: expected one of ['massivegnn', 'static', 'lookahead'], found 'best'"),
    ({"buffer": 1.5}, ValueError, "buffer: expected a share of 0 to 1, found 1.5"),
    ({"buffer": -0.1}, ValueError, "buffer: expected a share of 0 to 1, found -0.1"),
    ({"buffer": "much"}, ValueError, f"buffer: expected {MEMORY}, found 'much'"),
    ({"buffer": [1]}, TypeError, "buffer: expected bytes, a share or a string such as '8GiB', found list"),
    ({"buffer": 0.5, "policy_options": {"gama": 0.9}}, ValueError,
     "policy_options: expected options of 'massivegnn' among ['gamma', 'delta'], found 'gama'"),
    ({"buffer": 0.5, "policy": "static", "policy_options": {"delta": 9}}, ValueError,
     "policy_options: expected options of 'static' among [], found 'delta'"),
    ({"buffer": 0.5, "policy": "lookahead", "policy_options": {"windows": 9}}, ValueError,
     "policy_options: expected options of 'lookahead' among ['window'], found 'windows'"),
    ({"buffer": 0.5, "policy_options": {"gamma": 2}}, ValueError, "gamma: expected 0 < gamma < 1, found 2"),
    ({"tiers": 3}, TypeError, "tiers: expected a mapping, such as {'host': '4GiB'}, found int"),
    ({"tiers": {"host": 1, "disk": 2}}, ValueError,
     "tiers: expected entries among ['gpu', 'peers', 'host', 'hotness', 'labelled', 'device'], found 'disk'"),
    ({"tiers": {"host": "much"}}, ValueError, f"host: expected {MEMORY}, found 'much'"),
    ({"tiers": {"gpu": "much"}}, ValueError, f"gpu: expected {MEMORY}, found 'much'"),
    ({"tiers": {"hotness": torch.ones(199)}}, ValueError, "hotness: expected 200 scores, found shape (199,)"),
    ({"tiers": {"labelled": torch.tensor([199, 200])}}, IndexError,
     "labelled[1] = 200 is out of range: expected nodes in [0, 200)"),
    ({"tiers": {"labelled": [1, 2]}}, TypeError, "labelled: expected a tensor of ids or a mask, found list"),
    ({"tiers": {"labelled": torch.ones(5, dtype=torch.bool)}}, ValueError,
     "labelled: expected a mask of 200 nodes, found (5,)"),
    ({"tiers": {"peers": 5}}, TypeError, "peers: expected a budget for each GPU, found 5"),
    ({"tiers": {"labelled": torch.tensor([-1])}}, IndexError,
     "labelled[0] = -1 is out of range: expected nodes in [0, 200)"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "error", "message"), OPEN, ids=[message for *_, message in OPEN])
def test_how_a_part_is_not_opened(folder, given, error, message):
    with refuses(error, message):
        open_part(folder, **given)


BY_ITSELF = [
    (lambda: Static(-1, HALO, HALO), ValueError, f"capacity: expected 0 <= capacity <= {MOST}, found -1"),
    (lambda: Static(1, HALO, HALO[:2]), ValueError, "degree: expected shape (3,) like halo, found (2,)"),
    (lambda: MassiveGNN(1, HALO, HALO, gamma=1.0), ValueError, "gamma: expected 0 < gamma < 1, found 1.0"),
    (lambda: MassiveGNN(1, HALO, HALO, gamma=0), ValueError, "gamma: expected 0 < gamma < 1, found 0"),
    (lambda: MassiveGNN(1, HALO, HALO, delta=0), ValueError, f"delta: expected 1 <= delta <= {MOST}, found 0"),
    (lambda: Lookahead(1, window="all"), ValueError,
     "window: expected a number of batches or 'epoch', found 'all'"),
    (lambda: Lookahead(1, window=-1), ValueError, f"window: expected 0 <= window <= {MOST}, found -1"),
    (lambda: Lookahead(-1), ValueError, f"capacity: expected 0 <= capacity <= {MOST}, found -1"),
    (lambda: Kept(None, None, {"delta": 1}), ValueError, "policy, policy_options: expected none without a buffer"),
    (lambda: capacities("1.5", {}, {}, {}), ValueError, f"buffer: expected {MEMORY}, found '1.5'"),
    (lambda: transport_of("mpi"), ValueError, UNKNOWN),
    (lambda: check_cards([Card("m", "one", "10.0.0.1", None), Card("m", "one", "10.0.0.1", "no luck")]), ValueError,
     "rank 1: no luck"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "error", "message"), BY_ITSELF, ids=[message for *_, message in BY_ITSELF])
def test_what_is_refused_by_itself(make, error, message):
    with refuses(error, message):
        make()


def test_a_policy_without_its_methods():
    """Pythons word it differently."""
    with pytest.raises(TypeError, match=r"^Can't instantiate abstract class Policy w.*start'?, '?step'?$"):
        Policy()


def test_the_last_that_is_made():
    """The values next to those that are refused."""
    assert Static(0, HALO, HALO).start().tolist() == []
    assert Static(4, HALO, HALO).capacity == 3
    assert MassiveGNN(1, HALO, HALO, gamma=1 - 1e-9, delta=1).delta == 1
    assert MassiveGNN(1, HALO, HALO, gamma=1e-9).gamma == 1e-9
    assert (Lookahead(0, window=0).window, Lookahead(0).capacity) == (0, 0)
    assert transport_of("gloo") == "gloo"


def test_nccl_without_a_gpu():
    if torch.cuda.is_available():
        pytest.skip("torch sees a CUDA device")
    needed = "a GPU that torch sees and NCCL in torch"
    missing = "GPU that torch sees" + ("" if dist.is_nccl_available() else " and no NCCL in torch")
    with refuses(ValueError, f"transport='nccl': expected {needed}, found no {missing}"):
        transport_of("nccl")
