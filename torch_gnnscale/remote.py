"""Files of file systems that fsspec knows, by URL."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from ._library import needed


def is_url(path: str | os.PathLike) -> bool:
    """Whether a path is one of a file system that fsspec knows, such as ``s3://bucket/parts``."""
    return isinstance(path, str) and "://" in path


def file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and its path there.

    Raises:
        ImportError: fsspec, or what it needs for such a URL, is missing.
        ValueError: no file system is known by the URL's protocol.
    """
    fsspec = needed("fsspec.core", f"{url}: a URL needs fsspec: pip install 'torch_gnnscale[remote]'")
    return fsspec.url_to_fs(url)


_KINDS = (
    FileExistsError, FileNotFoundError, PermissionError, OSError, IndexError, ValueError, TypeError, MemoryError,
    ImportError, NotImplementedError,
)  # fmt: skip


_AZURE = {"abfs", "abfss", "wasb", "wasbs"}
"""Protocols whose URLs have the name of a container where others have a user."""


def _secrets_of(url: str) -> list[str]:
    """Its users with their passwords, and the query of a web page, which may have a token."""
    query = found[1] if (found := re.search(r"https?://[^?]*\?(.*)$", url, re.IGNORECASE)) else ""
    users = re.findall(r"(\w+)://([^/]*)(?=@)", url.removesuffix(query))
    return [secret for secret in (*(user for kind, user in users if kind.lower() not in _AZURE), query) if secret]


def without_secrets(url: str) -> str:
    """A URL without user, password and query."""
    for secret in _secrets_of(url):
        url = url.replace(f"://{secret}@", "://").removesuffix(f"?{secret}")
    return url


@contextmanager
def hiding_secrets(paths: Iterable[str | os.PathLike]) -> Iterator[None]:
    """A block whose errors have ``***`` in place of users, passwords and queries of those paths that are URLs; they are
    raised anew, and alone, because those that led to them may have them, too."""
    found = {secret for path in paths if is_url(path) for secret in _secrets_of(str(path))}
    found |= {password for secret in found for _, _, password in [secret.partition(":")] if password}
    forms = sorted(found | {unquote(secret) for secret in found}, key=len, reverse=True)
    if not forms:
        yield
        return
    secrets = re.compile("|".join(rf"(?<!\w){re.escape(form)}(?!\w)" for form in forms))
    try:
        yield
    except Exception as error:
        kind: type[Exception] = next((kind for kind in _KINDS if isinstance(error, kind)), RuntimeError)
        raise kind(secrets.sub("***", str(error))) from None
