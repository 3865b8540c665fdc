"""Graphs that are kept on disk equal those that are made anew."""

import shutil

import pytest
import torch

from torch_gnnscale import relational

pytestmark = pytest.mark.slow  # relbench takes seconds to import


def said(value):
    """A value with its types and those of its entries: NumPy's numbers are Python's."""
    if isinstance(value, (list, tuple)):
        return type(value), [said(entry) for entry in value]
    if isinstance(value, torch.Tensor) and value.dim():
        return value.dtype, value.tolist()
    return value.item() if hasattr(value, "item") else value


def assert_equal(kept, made):
    assert kept.data.node_types == made.data.node_types
    assert kept.data.edge_types == made.data.edge_types
    for of in made.data.node_types:
        assert kept.data[of].tf == made.data[of].tf
        assert kept.data[of].num_nodes == made.data[of].num_nodes
        assert ("time" in kept.data[of]) == ("time" in made.data[of])
        if "time" in made.data[of]:
            assert torch.equal(kept.data[of].time, made.data[of].time)
    for of in made.data.edge_types:
        assert torch.equal(kept.data[of].edge_index, made.data[of].edge_index)

    def statistics(graph):
        return {(of, name, kind): said(value) for of, columns in graph.col_stats.items()
                for name, entries in columns.items() for kind, value in entries.items()}  # fmt: skip

    assert statistics(kept) == statistics(made)


def ids_of(loader):
    return [{of: batch[of].n_id.tolist() for of in batch.node_types} for batch in loader]


@pytest.mark.parametrize("task", ["customer-orders", "review-stars"])
def test_what_is_kept_equals_what_is_made(shop, graph_of, tmp_path, monkeypatch, task):
    made = graph_of(task)
    first = relational.open_task(shop, task, cache=tmp_path)
    monkeypatch.setattr("torch_gnnscale.relational.task_graph.database_graph", None)
    again = relational.open_task(shop, task, cache=tmp_path)
    assert_equal(first, made)
    assert_equal(again, made)
    loaders = relational.task_loaders(shop, task, [3, 3], cache=tmp_path, batch_size=8, seed=0)
    assert ids_of(loaders["val"]) == ids_of(made.loaders([3, 3], batch_size=8, seed=0)["val"])
    assert len([*tmp_path.iterdir()]) == 1


def test_tasks_that_see_the_same_share_what_is_kept(shop, tmp_path):
    for count, task in enumerate(["customer-orders", "customer-spending", "review-stars"]):
        relational.open_task(shop, task, cache=tmp_path)
        assert len([*tmp_path.iterdir()]) == [1, 1, 2][count]
    relational.open_task(shop, "customer-orders", cache=tmp_path, text_embedder=relational.HashedWords(8))
    assert len([*tmp_path.iterdir()]) == 3


def test_changed_tables_are_read_again(shop, tmp_path):
    import pandas as pd

    shutil.copytree(shop, tmp_path / "shop")
    relational.open_task(tmp_path / "shop", "customer-orders", cache=tmp_path / "cache")
    file = tmp_path / "shop" / "db" / "products.parquet"
    frame = pd.read_parquet(file)
    frame.loc[3, "price"] = 1e6
    frame.to_parquet(file)
    graph = relational.open_task(tmp_path / "shop", "customer-orders", cache=tmp_path / "cache")
    assert graph.data["products"].tf.get_col_feat("price")[3] == 1e6
    assert len([*(tmp_path / "cache").iterdir()]) == 2


def test_damage_is_found(shop, tmp_path):
    relational.open_task(shop, "customer-orders", cache=tmp_path)
    (folder,) = tmp_path.iterdir()
    file = folder / "edges-0.npy"
    content = bytearray(file.read_bytes())
    content[-8] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"edges-0\.npy: checksum of block 0"):
        relational.open_task(shop, "customer-orders", cache=tmp_path)


def test_an_embedder_must_say_what_it_does(shop, tmp_path):
    def embed(texts):
        return torch.zeros(len(texts), 2)

    assert relational.open_task(shop, "customer-orders", text_embedder=embed).data["reviews"].tf is not None
    with pytest.raises(ValueError, match=r"^cache: expected a text_embedder whose repr says what it makes of texts"):
        relational.open_task(shop, "customer-orders", text_embedder=embed, cache=tmp_path)
