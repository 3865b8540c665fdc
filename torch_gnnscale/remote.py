"""Files of file systems that fsspec knows, by URL."""

from __future__ import annotations

import os
from typing import Any

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
