"""A program that builds tables by part by Spark, and says what is wrong with dirty ones.

``python -m helpers.on_spark FOLDER``: FOLDER has ``schema.json`` and ``dirty.json``, schemas of its tables; writes
``spark`` and ``said.json`` there. It fails unless all sockets are of 127.0.0.1.
"""

import json
import os
import sys
from pathlib import Path

import psutil

from torch_gnnscale import tables
from torch_gnnscale.tables import Schema

PARTS = 3


def spark():
    """An engine of two processes beside this one."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2", "spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false",
    }  # fmt: skip
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return tables.Spark(builder.getOrCreate())


def listening():
    """The addresses on which this process and those that it has started listen."""
    me = psutil.Process()
    found = [one for process in (me, *me.children(recursive=True)) for one in process.net_connections("tcp")]
    return {one.laddr.ip.removeprefix("::ffff:") for one in found if one.status == psutil.CONN_LISTEN}


def said(schema, folder, engine):
    """What the error says."""
    try:
        tables.build(Schema.parse(schema, folder), folder / "none", parts=PARTS, engine=engine)
    except ValueError as error:
        return str(error)
    return "nothing"


def main():
    folder = Path(sys.argv[1])
    engine = spark()
    schema, dirty = (json.loads((folder / f"{name}.json").read_text()) for name in ("schema", "dirty"))
    tables.build(Schema.parse(schema, folder), folder / "spark", parts=PARTS, engine=engine, say=print)
    assert listening() == {"127.0.0.1"}, listening()
    (folder / "said.json").write_text(json.dumps(said(dirty, folder, engine)))


if __name__ == "__main__":
    main()
