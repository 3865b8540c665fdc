"""Programs made of RelBench's own functions, as its examples are, run with our loader by import and under patch_pyg."""

import pytest
import torch

import torch_gnnscale

pytestmark = pytest.mark.slow  # relbench takes seconds to import

BEGIN = """
import torch
from relbench import load_dataset
from relbench.modeling.graph import *
from {links} import LinkNeighborLoader
from relbench.modeling.nn import HeteroEncoder, HeteroGraphSAGE, HeteroTemporalEncoder
from relbench.modeling.utils import get_stype_proposal
from torch_frame.config.text_embedder import TextEmbedderConfig
from {loader} import NeighborLoader

torch.manual_seed(0)
dataset = load_dataset(folder)
task = dataset.load_task(name)
db = task.get_db()
col_to_stype_dict = get_stype_proposal(db)
data, col_stats_dict = make_pkey_fkey_graph(
    db,
    col_to_stype_dict=col_to_stype_dict,
    text_embedder_cfg=TextEmbedderConfig(text_embedder=lambda texts: torch.ones(len(texts), 4), batch_size=256),
    remove_columns=task.hidden_columns(),
)


class Model(torch.nn.Module):
    def __init__(self, data, col_stats_dict, channels, out_channels):
        super().__init__()
        self.encoder = HeteroEncoder(
            channels,
            {{node_type: data[node_type].tf.col_names_dict for node_type in data.node_types}},
            col_stats_dict,
            torch_frame_model_kwargs={{"channels": channels, "num_layers": 1}},
        )
        self.temporal_encoder = HeteroTemporalEncoder([t for t in data.node_types if "time" in data[t]], channels)
        self.gnn = HeteroGraphSAGE(data.node_types, data.edge_types, channels, "sum", 2)
        self.head = torch.nn.Linear(channels, out_channels)

    def forward(self, batch, entity_table):
        seed_time = batch[entity_table].seed_time
        x_dict = self.encoder(batch.tf_dict)
        rel_time_dict = self.temporal_encoder(seed_time, batch.time_dict, batch.batch_dict)
        for node_type, rel_time in rel_time_dict.items():
            x_dict[node_type] = x_dict[node_type] + rel_time
        x_dict = self.gnn(x_dict, batch.edge_index_dict)
        return self.head(x_dict[entity_table][: seed_time.size(0)])


losses, rows = [], []
"""

ENTITY = """
loader_dict = {{}}
for split in ["train", "val", "test"]:
    table_input = get_node_train_table_input(table=task.get_table(split), task=task)
    loader_dict[split] = NeighborLoader(
        data, num_neighbors=[-1, -1], time_attr="time", input_nodes=table_input.nodes, input_time=table_input.time,
        transform=table_input.transform, batch_size=64, temporal_strategy="uniform", shuffle=split == "train",
        num_workers=0, persistent_workers=False,
    )
model = Model(data, col_stats_dict, 8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for batch in loader_dict["train"]:
    optimizer.zero_grad()
    pred = model(batch, task.entity_table).view(-1)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(pred, batch[task.entity_table].y.float())
    loss.backward()
    optimizer.step()
    losses.append(float(loss))
for batch in loader_dict["test"]:
    rows += [batch[t].n_id.sort().values.tolist() for t in sorted(batch.node_types)]
    rows += [sorted(zip(*batch[t].edge_index.tolist())) != [] for t in batch.edge_types]
    assert model(batch, task.entity_table).shape == (batch[task.entity_table].batch_size, 1)
"""

RECOMMENDATION = """
table_input = get_link_train_table_input(task.get_table("train"), task, num_dst_nodes(db, task))
loader = LinkNeighborLoader(
    data=data, num_neighbors=[4, 4], time_attr="time", src_nodes=table_input.src_nodes,
    dst_nodes=table_input.dst_nodes, num_dst_nodes=table_input.num_dst_nodes, src_time=table_input.src_time,
    share_same_time=True, batch_size=8, temporal_strategy="uniform", shuffle=False, num_workers=0,
)
model = Model(data, col_stats_dict, 8, 8)
for src_batch, batch_pos_dst, batch_neg_dst in loader:
    x_src = model(src_batch, task.src_entity_table)
    pos, neg = (model(batch, task.dst_entity_table) for batch in (batch_pos_dst, batch_neg_dst))
    loss = -torch.nn.functional.logsigmoid((x_src * (pos - neg)).sum(1)).mean()
    loss.backward()
    losses.append(float(loss))
    for batch in (src_batch, batch_pos_dst, batch_neg_dst):
        for t in batch.node_types:
            if "time" in batch[t]:
                (seed_time,) = batch.collect("seed_time").values()
                assert bool((batch[t].time <= seed_time[batch[t].batch]).all())
seed_time = int(dataset.val_timestamp.timestamp()) // 1000  # as RelBench's function reads datetimes of pandas 3
for of, count in ((task.src_entity_table, 60), (task.dst_entity_table, table_input.num_dst_nodes)):
    found = NeighborLoader(
        data, num_neighbors=[-1, -1], time_attr="time", input_nodes=of,
        input_time=torch.full((data[of].num_nodes,), seed_time), batch_size=64, shuffle=False,
    )
    rows += [model(batch, of).shape == (batch[of].batch_size, 8) for batch in found]
"""


def run(program, loader, folder, name, links="relbench.modeling.loader"):
    """(losses, rows) that a program leaves; ``links``: the module of its LinkNeighborLoader."""
    names = {"folder": folder, "name": name}
    exec(compile((BEGIN + program).format(loader=loader, links=links), name, "exec"), names)
    assert len(names["losses"]) > 2
    assert all(loss == loss for loss in names["losses"])
    return names["losses"], names["rows"]


@pytest.fixture(scope="module")
def plain_shop(shop, tmp_path_factory):
    """The shop without lists, which parquet gives as arrays, of which torch_frame finds no type, and without missing
    numbers, whose gradients are nan in RelBench's model."""
    import shutil

    import pandas as pd

    folder = tmp_path_factory.mktemp("plain") / "shop"
    shutil.copytree(shop, folder)
    for table, column in (("products", "labels"), ("customers", "age")):
        file = folder / "db" / f"{table}.parquet"
        pd.read_parquet(file).drop(columns=column).to_parquet(file)
    return folder


def test_a_program_of_an_entity_task(plain_shop):
    _, ours = run(ENTITY, "torch_gnnscale", plain_shop, "customer-orders")
    with torch_gnnscale.patch_pyg():
        _, patched = run(ENTITY, "torch_geometric.loader", plain_shop, "customer-orders")
    assert ours == patched
    assert len(ours) > 10


def test_a_program_of_a_recommendation_with_both_imports_changed(plain_shop):
    _, rows = run(RECOMMENDATION, "torch_gnnscale", plain_shop, "customer-products", "torch_gnnscale.relational")
    assert rows
    assert all(rows)


def test_a_program_of_a_recommendation(plain_shop):
    with torch_gnnscale.patch_pyg():
        for loader in ("torch_geometric.loader", "torch_gnnscale"):
            _, rows = run(RECOMMENDATION, loader, plain_shop, "customer-products")
            assert rows
            assert all(rows)
    assert torch.is_grad_enabled()
