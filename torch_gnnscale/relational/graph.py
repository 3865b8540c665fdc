"""From a database to a graph: RelBench's own conversion, with times in seconds and texts as numbers."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from ..random import seeded_draws
from .columns import seconds

TextEmbedder = Callable[[list[str]], Tensor]
"""Makes a row of each text; called once for a column with text."""


def database_graph(
    database: Any, hidden: Iterable[tuple[str, str]], text_embedder: TextEmbedder
) -> tuple[HeteroData, dict]:
    """The graph of a database: a node per row, and for each foreign key the edges to the rows it points to, and back.

    Args:
        database: RelBench's; its tables are changed.
        hidden: (table, column): columns that are left out of the rows.
        text_embedder: of columns with text.

    Returns:
        (data, column statistics), as of RelBench's ``make_pkey_fkey_graph``: each type has ``tf``, a TensorFrame, and,
        if its table has times, ``time``: int64, seconds since 1970, rounded up; NEVER where it is missing.
    """
    from relbench.modeling.graph import make_pkey_fkey_graph
    from relbench.modeling.utils import get_stype_proposal
    from torch_frame.config import TextEmbedderConfig

    for table in database.table_dict.values():
        _lists_of_arrays(table.df)
    with seeded_draws(0):  # it looks at a random sample of the rows
        kinds = get_stype_proposal(database)
    for table, column in hidden:
        kinds.get(table, {}).pop(column, None)
    config = TextEmbedderConfig(text_embedder=text_embedder, batch_size=None)
    data, statistics = make_pkey_fkey_graph(database, kinds, text_embedder_cfg=config)
    for name, table in database.table_dict.items():
        data[name].num_nodes = len(table)
        if table.time_col is not None:  # RelBench's are a thousandth of these for datetime64[us], pandas 3's default
            data[name].time = seconds(table.df[table.time_col], f"{name}.{table.time_col}", "up")
    return data, statistics


def _lists_of_arrays(frame: Any) -> None:
    """Makes lists of arrays, as which parquet's lists are read: torch_frame finds types of lists only."""
    for column in frame.columns:
        values = frame[column]
        if values.dtype == object and any(isinstance(value, np.ndarray) for value in values.iloc[:1000]):
            frame[column] = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]


@dataclass(frozen=True)
class HashedWords:
    """Makes a row of each text: the sum of a signed unit vector for each word, of length 1 (feature hashing).

    Word w adds 1 - 2 b to column h mod ``width``, where h = CRC-32(w) // 2 and b = CRC-32(w) mod 2.

    Args:
        width: how many numbers a text has.
    """

    width: int = 64

    def __call__(self, texts: list[str]) -> Tensor:
        """Rows of the texts: float32, shape [len(texts), width]; zeros for one without words."""
        row, column, sign = [], [], []
        for number, text in enumerate(texts):
            for word in re.findall(r"\w+", str(text).lower()):
                code = zlib.crc32(word.encode())
                row.append(number)
                column.append(code // 2 % self.width)
                sign.append(1.0 - 2 * (code % 2))
        found = torch.zeros(len(texts), self.width)
        found.index_put_((torch.tensor(row, dtype=torch.int64), torch.tensor(column, dtype=torch.int64)),
                         torch.tensor(sign), accumulate=True)  # fmt: skip
        return torch.nn.functional.normalize(found)
