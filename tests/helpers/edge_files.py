"""Files of edges of every kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import Tensor


def write(path: Path, edges: Tensor) -> Path:
    """The edges as a file of the path's kind."""
    array = edges.numpy()
    if path.suffix == ".npy":
        np.save(path, array)
    elif path.suffix == ".parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table({"weight": array[0] * 0.5, "dst": array[1], "src": array[0]}), path)
    else:
        pytest.importorskip("pyarrow")
        mark = {".csv": ",", ".tsv": "\t", ".txt": " ", ".edges": ";"}[path.suffix]
        lines = [f"{a}{mark}{b}" for a, b in array.T]
        head = {".csv": [f"src{mark}dst"], ".txt": ["# from somewhere", "# 100 nodes"]}.get(path.suffix, [])
        path.write_text("\n".join(head + lines) + "\n")
    return path
