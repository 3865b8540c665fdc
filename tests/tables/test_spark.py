"""Spark writes the bytes that DuckDB writes, and says what it says of dirty tables."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from helpers.on_spark import PARTS, said
from helpers.tables import put

from torch_gnnscale import tables
from torch_gnnscale.tables import Schema
from torch_gnnscale.tables.engine import DuckDB

SCHEMA = {
    "nodes": {"user": {"files": "users*", "key": "k", "columns": {"c": "category"}, "owner": "c"}},
    "edges": {
        "user.knows.user": {
            "files": "links*", "source": "a", "destination": "b", "weight": "w", "undirected": "reverse",
            "dangling": "drop",
        },
    },
}  # fmt: skip
DIRTY = json.loads(json.dumps(SCHEMA).replace('"drop"', '"error"'))


def files_of(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.slow
def test_spark_writes_the_same_bytes(tmp_path):
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("pyspark is not installed")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, and there is no java")
    put(tmp_path / "users-0.parquet", pa.table({"k": ["ü", "b", "z"], "c": ["B", None, "A"]}))
    put(tmp_path / "users-1.parquet", pa.table({"k": ["a", "zz"], "c": ["C", "B"]}))
    put(tmp_path / "links-0.csv", pa.table({"a": ["ü", "b", "ü"], "b": ["a", "zz", "a"], "w": [0.5, 1.0, 0.25]}))
    put(tmp_path / "links-1.csv", pa.table({"a": ["z", "zz", None], "b": ["nobody", "a", "a"], "w": [1.0, 2.0, 3.0]}))
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "dirty.json").write_text(json.dumps(DIRTY))
    tables.build(Schema.parse(SCHEMA, tmp_path), tmp_path / "duckdb", parts=PARTS)
    assert len(list((tmp_path / "duckdb").glob("edges/user.knows.user/part=*"))) == 2
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([root, f"{root}/tests"])}
    program = [sys.executable, "-u", "-m", "helpers.on_spark", str(tmp_path)]
    with (tmp_path / "printed").open("w") as printed:
        process = subprocess.Popen(program, env=environment, stdout=printed, stderr=printed, start_new_session=True)
        try:
            process.wait(timeout=540)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, (tmp_path / "printed").read_text()
    ours, theirs = files_of(tmp_path / "spark"), files_of(tmp_path / "duckdb")
    assert [name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)] == []
    text = json.loads((tmp_path / "said.json").read_text())
    assert text == said(DIRTY, tmp_path, None)
    assert f"{tmp_path}/links-1.csv: row 3: column a: expected a key of nodes.user, found nothing" in text


def test_engines_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(ImportError, match=r"torch_gnnscale\[spark\]"):
        tables.Spark()
    schema = Schema.parse({"nodes": {"item": {"files": "items*", "key": "item_id"}}}, tmp_path)
    with pytest.raises(ValueError, match="engine: expected one only beside parts, found DuckDB"):
        tables.build(schema, tmp_path / "graph", engine=DuckDB())
