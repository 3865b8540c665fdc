"""Samples of random databases are what a search in their tables finds."""

import pytest
import torch
from helpers.slow import NIGHTLY, SLOW

HOPS = 2


def random_database(seed):
    """Two to five tables: keys that are missing here and there, rows with and without times, in parts of a second."""
    import numpy as np
    import pandas as pd
    from relbench.base import Database, Table

    draws = np.random.default_rng(seed)
    sizes = {f"table {k}": int(draws.integers(1, 14)) for k in range(draws.integers(2, 6))}
    tables = {}
    for name, rows in sizes.items():
        columns = {"id": np.arange(rows), "x": draws.normal(size=rows), "of": draws.choice(["a", "b"], rows)}
        frame = pd.DataFrame(columns)
        keys = {}
        for number in range(draws.integers(0, 4)):
            other = str(draws.choice(list(sizes)))
            column, missing = draws.integers(0, sizes[other], rows).astype(float), draws.random(rows) < 0.2
            column[missing] = np.nan
            frame[f"key {number}"], keys[f"key {number}"] = column, other
        timed = draws.random() < 0.7
        if timed:
            unit = str(draws.choice(["s", "ms", "us", "ns"]))
            moments = 10**9 + draws.integers(0, 40, rows) / 4
            frame["at"] = pd.Series(pd.to_datetime(moments, unit="s")).dt.as_unit(unit)
            frame.loc[draws.random(rows) < 0.1, "at"] = pd.NaT
        tables[name] = Table(frame, keys, "id", "at" if timed else None)
    return Database(tables)


def search(database, seed, moment):
    """The rows that are found from a row in so many hops, as (table, row), none later than ``moment``."""
    tables = database.table_dict

    def known(of, row):
        table = tables[of]
        return table.time_col is None or bool(table.df[table.time_col].iloc[row] <= moment)

    def near(of, row):
        for column, other in tables[of].fkey_col_to_pkey_table.items():
            if (key := tables[of].df[column].iloc[row]) == key:
                yield other, int(key)
        for other, table in tables.items():
            for column, to in table.fkey_col_to_pkey_table.items():
                if to == of:
                    yield from ((other, int(at)) for at in (table.df[column] == row).to_numpy().nonzero()[0])

    found = frontier = {seed}
    for _ in range(HOPS):
        frontier = {entry for node in frontier for entry in near(*node) if known(*entry)} - found
        found = found | frontier
    return found


@pytest.mark.parametrize(
    "seed", [seed if seed < 2 else SLOW(seed) if seed < 6 else NIGHTLY(seed) for seed in range(200)]
)
def test_samples_are_what_a_search_finds(seed):
    import numpy as np
    import pandas as pd

    from torch_gnnscale import NeighborLoader
    from torch_gnnscale.relational import HashedWords
    from torch_gnnscale.relational.database_graph import database_graph

    database, plain = random_database(seed), random_database(seed)
    draws = np.random.default_rng(seed)
    hidden = [(of, "x") for of in database.table_dict if draws.random() < 0.5]
    data, _ = database_graph(database, hidden, HashedWords(4))
    columns = {of: [name for names in data[of].tf.col_names_dict.values() for name in names] for of in data.node_types}
    for of, names in columns.items():
        assert ("x" in names) == ((of, "x") not in hidden)
        assert "id" not in names
    if not data.edge_types:
        return
    of = str(draws.choice(sorted(plain.table_dict)))
    rows = torch.from_numpy(draws.integers(0, len(plain.table_dict[of]), 6))
    moments = 10**9 + torch.from_numpy(draws.integers(-1, 11, 6))
    timed = any("time" in data[name] for name in data.node_types)
    options = {"input_time": moments, "time_attr": "time"} if timed else {"disjoint": True}
    for batch in NeighborLoader(data, [-1] * HOPS, (of, rows), batch_size=4, **options):
        trees = [set() for _ in range(batch[of].batch_size)]
        for store in batch.node_stores:
            assert store.tf == data[store._key].tf[store.n_id]
            for node, tree in zip(store.n_id.tolist(), store.batch.tolist(), strict=True):
                trees[tree].add((store._key, node))
        for place, tree in zip(batch[of].input_id.tolist(), trees, strict=True):
            moment = pd.Timestamp(int(moments[place]), unit="s")
            assert tree == search(plain, (of, int(rows[place])), moment if timed else pd.Timestamp.max)
