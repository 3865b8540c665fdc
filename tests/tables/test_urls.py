"""Tables by URL are those of files on a disk, and so are their errors."""

import copy
import traceback
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pyarrow as pa
import pytest
from helpers.buckets import PLACES, place
from helpers.lists import Lists
from helpers.tables import SHOP, arrays, put, same, shop, write

from torch_gnnscale import tables
from torch_gnnscale.distributed import open_part
from torch_gnnscale.remote import hiding_secrets, without_secrets
from torch_gnnscale.tables import Schema
from torch_gnnscale.tables.guess import guess


def at(url):
    """The shop's schema, with tables at a URL."""
    schema = copy.deepcopy(SHOP)
    schema["nodes"]["user"]["files"] = f"{url}/users/"
    schema["nodes"]["item"]["files"] = [f"{url}/items-0.csv.gz", f"{url}/items-[1-9].csv.gz"]
    schema["edges"]["user.buys.item"]["files"] = f"{url}/orders-*.parquet"
    return schema


def here_and_there(path, url, files):
    """Schemas of the shop's tables in files, and of the same at the URL."""
    found = shop()
    write(folder := path / "here", {"orders": found["orders"]}, 3)
    write(folder, {"items": found["items"]}, 2, ".csv.gz")
    users = found["users"].drop_columns("country")
    for country, rows in (("DE", users.slice(0, 12)), ("%C3%84gypten", users.slice(12))):
        (folder / "users" / f"country={country}").mkdir(parents=True)
        put(folder / "users" / f"country={country}" / "0.parquet", rows)
    put(folder / "users" / "_left_out.parquet", pa.table({"a": [1]}))
    for file in folder.rglob("*.*"):
        files.pipe_file(f"{url}/{file.relative_to(folder)}", file.read_bytes())
    return Schema.parse(at("here"), path), Schema.parse(at(url), path)


@pytest.mark.parametrize("kind", PLACES)
def test_tables_by_url(tmp_path, monkeypatch, kind):
    """A directory with folders that name a column, packed text, globs."""
    with place(kind, monkeypatch) as (url, files):
        here, there = here_and_there(tmp_path, url, files)
        assert tables.build(here, tmp_path / "a") == tables.build(there, tmp_path / "b")
        same(arrays(tmp_path / "a"), arrays(tmp_path / "b"))
        schema, said = guess([f"{url}/orders-0.parquet", f"{url}/items-0.csv.gz"], tmp_path)
        assert schema["nodes"]["items-0"]["files"] == f"{url}/items-0.csv.gz", said


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLACES)
def test_an_engine_reads_tables_by_url(tmp_path, monkeypatch, kind):
    with place(kind, monkeypatch) as (url, files):
        both = here_and_there(tmp_path, url, files)
        here, there = (tables.build(of, tmp_path / f"{i}", parts=2, engine=Lists()) for i, of in enumerate(both))
        assert here == there


@pytest.mark.parametrize("kind", PLACES)
def test_errors_name_the_url(tmp_path, monkeypatch, kind):
    put(tmp_path / "users.csv", pa.table({"k": ["a", "b", "a"], "n": ["1", "x", "2"]}))
    with place(kind, monkeypatch) as (url, files):
        files.pipe_file(f"{url}/users.csv", (tmp_path / "users.csv").read_bytes())
        files.pipe_file(f"{url}/none.parquet", b"PAR1, and nothing else")

        def said(file, **columns):
            schema = {"nodes": {"user": {"files": f"{url}/{file}", "key": "k", "columns": columns}}}
            with pytest.raises((ValueError, OSError)) as raised:
                tables.build(Schema.parse(schema, tmp_path), tmp_path / "graph")
            assert not (tmp_path / "graph").exists()
            return str(raised.value)

        twice = "row 3: column k: expected each key once, found 'a' as in"
        assert said("users.csv") == f"nodes.user: {url}/users.csv: {twice} {url}/users.csv, row 1"
        number = "row 2: column n: expected a finite number, found 'x'"
        assert said("users.csv", n="number") == f"nodes.user: {url}/users.csv: {number}"
        assert said("users.csv", m="number").startswith(f"nodes.user: {url}/users.csv: column m: expected it, found")
        assert said("none.parquet").startswith(f"nodes.user: {url}/none.parquet: expected a parquet file, found")
        for nothing in ("users.tsv", "nothing/", "nothing/*.csv"):
            assert said(nothing) == f"nodes.user: expected files {url}/{nothing}, found none"


def test_a_file_system_that_does_not_answer(tmp_path, monkeypatch):
    import fsspec

    def refused(self, path):
        raise RuntimeError("no credentials")

    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "isdir", refused)
    schema = Schema.parse({"nodes": {"user": {"files": "memory://place/u.csv", "key": "k"}}}, tmp_path)
    with pytest.raises(OSError, match=r"^nodes.user: memory://place/u.csv cannot be read: no credentials$"):
        tables.build(schema, tmp_path / "graph")
    schema = Schema.parse({"nodes": {"user": {"files": "nofs://place/u.csv", "key": "k"}}}, tmp_path)
    with pytest.raises(OSError, match=r"^nodes.user: nofs://place/u.csv cannot be read: Protocol not known: nofs$"):
        tables.build(schema, tmp_path / "graph")


def test_a_file_system_that_lacks_what_duckdb_asks_for(tmp_path):
    """Web servers say not always when a file was written."""
    (tmp_path / "u.csv").write_text("k\na\n")
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        (thread := Thread(target=server.serve_forever)).start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/u.csv"
            schema = Schema.parse({"nodes": {"user": {"files": url, "key": "k"}}}, tmp_path)
            with pytest.raises(ValueError, match=r"^nodes.user: Not implemented Error: http: modified\(\) is not"):
                tables.build(schema, tmp_path / "graph")
        finally:
            server.shutdown()
            thread.join()


def test_a_url_that_names_a_server(tmp_path, monkeypatch):
    """That server would not be asked for the file, whose URL is without it."""
    import fsspec

    memory = fsspec.get_filesystem_class("memory")

    class OfServers(memory):
        protocol = "servers"

        @classmethod
        def _strip_protocol(cls, path):
            return "/" + path.removeprefix("servers://").partition("/")[2].lstrip("/")

        @staticmethod
        def _get_kwargs_from_urls(path):
            host = path.removeprefix("servers://").partition("/")[0]
            return {"host": host} if host else {}

    fsspec.register_implementation("servers", OfServers, clobber=True)
    monkeypatch.setattr(memory, "store", {})
    memory().pipe_file("/u.csv", b"k\na\n")

    def count(url):
        schema = {"nodes": {"user": {"files": url, "key": "k"}}}
        return tables.build(Schema.parse(schema, tmp_path), tmp_path / "graph")["nodes"]["user"]["rows"]

    with pytest.raises(
        ValueError, match=r"^nodes.user: servers://\*\*\*@one/u.csv: expected a URL of a path alone, and"
    ):
        count("servers://me@one/u.csv")
    assert count("servers:///u.csv") == 1


PASSWORD = "p%40ss:w%2Frd"


def test_passwords_of_urls_are_shown_nowhere(tmp_path, monkeypatch):
    """Neither in errors, with those that led to them, nor in what is written, nor in a schema that is guessed."""
    import fsspec

    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "store", {})
    files, url = fsspec.filesystem("memory"), f"memory://me:{PASSWORD}@place"
    files.pipe_file(f"{url}/u.csv", b"k,n\na,1\nb,x\n")
    files.pipe_file(f"{url}/broken.parquet", b"PAR1, and nothing else")

    def said(file, **more):
        schema = {"nodes": {"user": {"files": f"{url}/{file}", "key": "k", **more}}}
        with pytest.raises((ValueError, OSError)) as raised:
            tables.build(Schema.parse(schema, tmp_path), tmp_path / "none")
        assert "w%2Frd" not in "".join(traceback.format_exception(raised.value))
        return str(raised.value)

    place = "memory:///***@place"
    row = "row 2: column n: expected a finite number, found 'x'"
    assert said("u.csv", columns={"n": "number"}) == f"nodes.user: {place}/u.csv: {row}"
    assert said("u.csv", columns={"m": "number"}).startswith(f"nodes.user: {place}/u.csv: column m: ")
    assert said("broken.parquet").startswith(f"nodes.user: {place}/broken.parquet: expected a parquet")
    assert said("no.csv") == "nodes.user: expected files memory://***@place/no.csv, found none"
    found, lines = guess([f"{url}/u.csv"], tmp_path)
    assert found["nodes"]["u"]["files"] == "memory://place/u.csv"
    assert lines[-1].startswith("u: the URL is written without user, password and query: memory://place/u.csv;")
    schema = {"nodes": {"user": {"files": f"{url}/u.csv", "key": "k"}}}
    tables.build(Schema.parse(schema, tmp_path), tmp_path / "graph")
    assert not [file for file in (tmp_path / "graph").rglob("*") if file.is_file() and b"rd@" in file.read_bytes()]
    with pytest.raises(ValueError, match=r"found 'ftp://there/parts'$"):
        open_part(f"ftp://me:{PASSWORD}@there/parts")


@pytest.mark.parametrize(
    ("url", "shown", "hidden"),
    [
        ("s3://bucket/part-?.csv", "s3://bucket/part-?.csv", "s3://bucket/part-?.csv"),
        ("https://a.b/c.csv?X-Sig=1%2F2", "https://a.b/c.csv", "https://a.b/c.csv?***"),
        ("HTTPS://a.b/c.csv?X-Sig=1%2F2", "HTTPS://a.b/c.csv", "HTTPS://a.b/c.csv?***"),
        ("filecache::https://a.b/c.csv?s=1", "filecache::https://a.b/c.csv", "filecache::https://a.b/c.csv?***"),
        ("abfs://box@account.net/c.csv", "abfs://box@account.net/c.csv", "abfs://box@account.net/c.csv"),
        ("sftp://me@there/c@d.csv", "sftp://there/c@d.csv", "sftp://***@there/c@d.csv"),
        (
            "zip://c.csv::http://me:x@there/a.zip",
            "zip://c.csv::http://there/a.zip",
            "zip://c.csv::http://***@there/a.zip",
        ),
        ("/me:x@there", "/me:x@there", "/me:x@there"),
    ],
)
def test_urls_without_secrets(url, shown, hidden):
    assert without_secrets(url) == shown
    with pytest.raises(OSError, match=r"^expected") as raised, hiding_secrets([url]):
        raise PermissionError(f"expected {url}, password x.")
    assert str(raised.value) == f"expected {hidden}, password {'***' if 'me:x@' in url and '://' in url else 'x'}."


@pytest.mark.parametrize(
    "kind", [FileNotFoundError, PermissionError, IndexError, ValueError, TypeError, NotImplementedError, RuntimeError]
)
def test_errors_without_secrets_are_of_their_kind(kind):
    with pytest.raises(kind) as raised, hiding_secrets(["ftp://me:x@there/c"]):
        raise kind("of me:x")
    assert type(raised.value) is kind
    assert str(raised.value) == "of ***"
