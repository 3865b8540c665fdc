"""A first schema, guessed from files."""

import pyarrow as pa
import yaml
from helpers.command import refused_command
from helpers.tables import put

from torch_gnnscale import tables
from torch_gnnscale.cli import main
from torch_gnnscale.datasets import write_shop
from torch_gnnscale.tables.guess import guess


def test_the_shop(tmp_path, capsys):
    write_shop(tmp_path, 60, 100, 2000)
    out = tmp_path / "first.yaml"
    given = [str(tmp_path / name) for name in ("users.parquet", "items.csv", "orders")]
    main(["tables", "--init", *given, "--out", str(out)])
    assert capsys.readouterr().out == (
        "users: nodes, 60 rows; key user_id\nitems: nodes, 100 rows; key item_id\n"
        "users.orders.items: edges, 2,000 rows; from user_id to item_id\n"
        f"written: {out}; then: gnnscale tables {out} --out graph\n"
    )
    found = yaml.safe_load(out.read_text())
    assert found["nodes"]["users"] == {
        "files": "users.parquet", "key": "user_id",
        "columns": {"age": {"kind": "number", "missing": "mean"}, "premium": "boolean", "country": "category",
                    "joined": "time", "segment": "category"},
    }  # fmt: skip
    assert found["edges"] == {
        "users.orders.items": {
            "files": "orders", "source": "user_id", "destination": "item_id", "time": "at",
            "columns": {"payment": "category"}, "dangling": "drop", "undirected": "reverse",
        }
    }  # fmt: skip
    main(["tables", str(out), "--out", str(tmp_path / "graph")])
    assert len(tables.ids(tmp_path / "graph", "users")) == 60


def test_keys_of_a_node_table_and_what_is_left_out(tmp_path, capsys):
    staff = {
        "id": [1, 2, 3],
        "boss_id": pa.array([None, 1, 1], pa.int64()),
        "level": [1, 2, 3],
        "note": ["x", "y", "z"],
    }
    put(tmp_path / "staff.csv", pa.table(staff))
    main(["tables", "--init", str(tmp_path / "staff.csv"), "--out", str(tmp_path / "first.yaml")])
    assert "staff: nodes, 3 rows; key id; left out: note\n" in capsys.readouterr().out
    assert yaml.safe_load((tmp_path / "first.yaml").read_text()) == {
        "nodes": {"staff": {"files": "staff.csv", "key": "id", "columns": {"level": "number"}}},
        "edges": {"staff.boss.staff": {"table": "staff", "destination": "boss_id", "dangling": "drop"}},
    }
    main(["tables", str(tmp_path / "first.yaml"), "--out", str(tmp_path / "graph")])


def test_a_relation_has_the_name_of_its_column_without_its_ending(tmp_path):
    put(tmp_path / "guests.parquet", pa.table({"id": [11, 12, 13], "Host_ID": [12, None, 11]}))
    found, _ = guess([str(tmp_path / "guests.parquet")], tmp_path)
    assert found["edges"].keys() == {"guests.Host.guests"}


def test_text_with_missing_values(tmp_path):
    written = [["1", "u", "", "", ""], ["2", "u", "2.5", "true", "2024-01-02"], ["3", "v", "3", "", "2024-01-03"]]
    lines = [["id", "letter", "number", "flag", "day"], *written, ["4", "v", "", "false", ""]]
    (tmp_path / "some.csv").write_text("".join(f"{','.join(line)}\n" for line in lines))
    found, _ = guess([str(tmp_path / "some.csv")], tmp_path)
    assert found["nodes"]["some"]["columns"] == {
        "letter": "category", "number": {"kind": "number", "missing": "mean"},
        "flag": {"kind": "boolean", "missing": "mean"}, "day": {"kind": "time", "missing": "mean"},
    }  # fmt: skip


def test_what_cannot_be_guessed(tmp_path, capsys):
    put(tmp_path / "a.csv", pa.table({"x": [1, 1]}))

    def refused(*arguments):
        return refused_command(capsys, "tables", *arguments)

    out, csv = tmp_path / "s.yaml", tmp_path / "a.csv"
    assert "tables: expected one with a column whose values are all there" in refused("--init", csv, "--out", out)
    assert "tables: expected names that differ, found 'a' twice" in refused("--init", csv, csv, "--out", out)
    assert f"--out: expected a new file, found {csv}" in refused("--init", csv, "--out", csv)
    assert "schema: expected one, or --init, found neither" in refused("--out", out)
    assert "schema: expected one, or --init, found both" in refused(csv, "--init", csv, "--out", out)
