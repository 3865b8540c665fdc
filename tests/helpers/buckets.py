"""Empty places by URL: in fsspec's memory, and of S3 as moto serves it at 127.0.0.1."""

from contextlib import contextmanager
from uuid import uuid4

import fsspec
import pytest

PLACES = ["memory", pytest.param("s3", marks=pytest.mark.slow)]


@contextmanager
def place(kind, monkeypatch):
    """(URL, file system): of a place that is empty, and gone afterwards."""
    if kind == "memory":
        files = fsspec.filesystem("memory")
        files.mkdir("/place")
        try:
            yield "memory:///place", files  # as fsspec writes it
        finally:
            files.rm("/place", recursive=True)
        return
    server = pytest.importorskip("moto.server", reason="S3 needs moto[s3,server], which is not installed")
    s3fs = pytest.importorskip("s3fs", reason="S3 needs s3fs, which is not installed")
    serving = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    serving.start()
    try:
        address, port = serving.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{address}:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "none")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()  # which have the address of an earlier server
        files = fsspec.filesystem("s3")
        files.mkdir(bucket := f"place-{uuid4().hex}")  # moto keeps what earlier servers were given
        yield f"s3://{bucket}", files
    finally:
        serving.stop()
        s3fs.S3FileSystem.clear_instance_cache()
