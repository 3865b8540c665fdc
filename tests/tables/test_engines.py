"""Spark and Ray write the bytes that DuckDB writes, and say what it says of dirty tables."""

import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from helpers.forked import run
from helpers.on_engine import PARTS, said
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
SPARK = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=2 "
    "--conf spark.log.level=ERROR --conf spark.ui.showConsoleProgress=false pyspark-shell",
}
RAY = {
    "RAY_ADDRESS": "local", "RAY_DATA_DEFAULT_MIN_PARALLELISM": "2", "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # 127.0.0.1 on Linux, too, not the machine's address
    "RAY_idle_worker_killing_time_threshold_ms": "600000",  # of processes that take seconds to import torch and PyG
    "RAY_worker_niceness": "0",
}  # fmt: skip


def files_of(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def environment(engine, folder):
    """The variables of the process that runs an engine, whose own files are in a folder; or why there is none."""
    if engine == "spark":
        if importlib.util.find_spec("pyspark") is None:
            pytest.skip("pyspark is not installed")
        if shutil.which("java") is None:
            pytest.skip("Spark needs Java, and there is no java")
        return SPARK
    for module in ("ray", "polars"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    return RAY | {"RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_TMPDIR": folder}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["spark", "ray"])
def test_engines_write_the_same_bytes(tmp_path, engine):
    put(tmp_path / "users-0.parquet", pa.table({"k": ["ü", "b", "z"], "c": ["B", None, "A"]}))
    put(tmp_path / "users-1.parquet", pa.table({"k": ["a", "zz"], "c": ["C", "B"]}))
    put(tmp_path / "links-0.csv", pa.table({"a": ["ü", "b", "ü"], "b": ["a", "zz", "a"], "w": [0.5, 1.0, 0.25]}))
    put(tmp_path / "links-1.csv", pa.table({"a": ["z", "zz", None], "b": ["nobody", "a", "a"], "w": [1.0, 2.0, 3.0]}))
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "dirty.json").write_text(json.dumps(DIRTY))
    tables.build(Schema.parse(SCHEMA, tmp_path), tmp_path / "duckdb", parts=PARTS)
    assert len(list((tmp_path / "duckdb").glob("edges/user.knows.user/part=*"))) == 2
    root = str(Path(__file__).parents[2])
    program = [sys.executable, "-u", "-m", "helpers.on_engine", engine, str(tmp_path)]
    with tempfile.TemporaryDirectory() as short, (tmp_path / "printed").open("w") as printed:
        given = os.environ | environment(engine, short) | {"PYTHONPATH": os.pathsep.join([root, f"{root}/tests"])}
        process = subprocess.Popen(program, env=given, stdout=printed, stderr=printed, start_new_session=True)
        try:
            process.wait(timeout=540)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, (tmp_path / "printed").read_text()
    ours, theirs = files_of(tmp_path / engine), files_of(tmp_path / "duckdb")
    assert [name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)] == []
    text = json.loads((tmp_path / "said.json").read_text())
    assert text == said(DIRTY, tmp_path)
    assert f"{tmp_path}/links-1.csv: row 3: column a: expected a key of nodes.user, found nothing" in text


@pytest.mark.parametrize(
    ("missing", "engine", "extra"), [("pyspark.sql", "spark", "spark"), ("ray", "ray", "ray"), ("polars", "ray", "ray")]
)
def test_packages_that_are_not_there(tmp_path, monkeypatch, missing, engine, extra):
    for module in ("ray", "ray.data", "polars"):
        monkeypatch.setitem(sys.modules, module, sys.modules[__name__])
    monkeypatch.setitem(sys.modules, missing, None)
    schema = Schema.parse({"nodes": {"item": {"files": "items*", "key": "item_id"}}}, tmp_path)
    with pytest.raises(ImportError, match=rf"pip install 'torch_gnnscale\[{extra}\]'"):
        tables.build(schema, tmp_path / "graph", parts=2, engine=engine)
    assert list(tmp_path.iterdir()) == []


def test_engines_that_are_not_there(tmp_path):
    schema = Schema.parse({"nodes": {"item": {"files": "items*", "key": "item_id"}}}, tmp_path)
    for engine, found in ((DuckDB(), "DuckDB"), ("spark", "spark")):
        with pytest.raises(ValueError, match=f"engine: expected duckdb where there are no parts, found {found}"):
            tables.build(schema, tmp_path / "graph", engine=engine)
    with pytest.raises(ValueError, match=r"engine: expected one of \['duckdb', 'spark', 'ray'\], found 'polars'"):
        tables.build(schema, tmp_path / "graph", parts=2, engine="polars")
    with pytest.raises(TypeError, match="engine: expected an Engine or one of duckdb, spark, ray, found NoneType"):
        tables.build(schema, tmp_path / "graph", parts=2, engine=None)


def test_spark_that_does_not_start(tmp_path):
    """In a process without Java."""
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("pyspark is not installed")
    program = "from torch_gnnscale import tables\ntry: tables.Spark()\nexcept OSError as error: print(error)"
    program = f"import os\nfor name in ('JAVA_HOME', 'SPARK_REMOTE'): os.environ.pop(name, None)\n{program}"
    done = run(program, PATH=str(tmp_path), SPARK_LOCAL_IP="127.0.0.1")
    assert done.stdout.startswith("Spark does not start: "), done
