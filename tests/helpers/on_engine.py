"""A program that builds tables by part by an engine, and says what is wrong with dirty ones.

``python -m helpers.on_engine ENGINE FOLDER``: FOLDER has ``schema.json`` and ``dirty.json``, schemas of its tables;
writes ``ENGINE`` and ``said.json`` there. It fails unless all sockets are of 127.0.0.1.
"""

import json
import sys
from pathlib import Path

import psutil

from torch_gnnscale import tables
from torch_gnnscale.tables import Schema

PARTS = 3


def listening():
    """The addresses on which this process and those that it has started listen."""
    me = psutil.Process()
    found = [one for process in (me, *me.children(recursive=True)) for one in process.net_connections("inet")]
    return {one.laddr.ip.removeprefix("::ffff:") for one in found if one.status == psutil.CONN_LISTEN}


def said(schema, folder, engine="duckdb"):
    """What the error says."""
    try:
        tables.build(Schema.parse(schema, folder), folder / "none", parts=PARTS, engine=engine)
    except ValueError as error:
        return str(error)
    return "nothing"


def main():
    engine, folder = sys.argv[1], Path(sys.argv[2])
    schema, dirty = (json.loads((folder / f"{name}.json").read_text()) for name in ("schema", "dirty"))
    tables.build(Schema.parse(schema, folder), folder / engine, parts=PARTS, engine=engine, say=print)
    assert listening() == {"127.0.0.1"}, listening()
    (folder / "said.json").write_text(json.dumps(said(dirty, folder, engine)))


if __name__ == "__main__":
    main()
