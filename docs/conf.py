"""How Sphinx builds these pages (``make docs``): MyST reads Markdown, autodoc the docstrings; a warning is an error."""

import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from sphinx.util import logging

import torch_gnnscale

sys.path.append(str(Path(__file__).parent))
from notebook_pages import write_pages

project = "torch_gnnscale"
release = torch_gnnscale.__version__
html_theme = "furo"
html_title = f"{project} {release}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_heading_anchors = 3
autodoc_default_options = {"members": True, "undoc-members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = False
napoleon_include_init_with_doc = False
napoleon_use_rtype = False
python_maximum_signature_line_length = 100


def public_names() -> Iterator[tuple[str, object]]:
    """Every name of an ``__all__`` of the package, and what it names."""
    inside = pkgutil.walk_packages(torch_gnnscale.__path__, "torch_gnnscale.")
    modules = ["torch_gnnscale", *(found.name for found in inside if not found.name.startswith("torch_gnnscale._"))]
    for module in map(importlib.import_module, modules):
        for name in getattr(module, "__all__", ()):
            yield f"{module.__name__}.{name}", getattr(module, name)


def resolve(name: str) -> object:
    """What a dotted name stands for."""
    parts = name.split(".")
    for i in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:i]))
        except ModuleNotFoundError:
            continue
        for part in parts[i:]:
            value = getattr(value, part, None)
        return value
    return None


def check_that_all_is_documented(app, env) -> None:
    """Warns of public names that no page documents, under this name or another."""
    documented = env.get_domain("py").objects
    objects = {(name.rpartition(".")[2], id(resolve(name))) for name in documented}
    for name, value in public_names():
        if name not in documented and (name.rpartition(".")[2], id(value)) not in objects:
            logging.getLogger(__name__).warning("%s: expected in docs/api, found on no page", name)


def link_to_pages(app, name, source) -> None:
    """Links to notebooks, which lead to their files in the repository, lead to their pages here."""
    up = "../" * name.count("/")
    source[0] = re.sub(r"\]\((?:\.\./)+notebooks/(\w+)\.ipynb\)", rf"]({up}notebooks/\1.md)", source[0])


MADE_BY_FUNCTIONS = {
    f"torch_gnnscale.{name}"
    for name in (
        "distributed.Part", "distributed.PartRows", "distributed.PartitionedFeatureStore",
        "distributed.PartitionedGraphStore", "partition.StoredParts",
    )
}  # fmt: skip
"""Classes that ``open_part`` and the like make: the arguments of their constructors are no concern of users."""


def hide_constructor(app, what, name, value, options, signature, returns) -> tuple[str, str] | None:
    """The signature of a class."""
    return ("", "") if name in MADE_BY_FUNCTIONS else None


def hide_arguments(app, what, name, value, options, lines) -> None:
    """Leaves fields for parameters, and the lines that continue them, out of the docstring of a class."""
    if name in MADE_BY_FUNCTIONS:
        kept, hidden = [], False
        for line in lines:
            hidden = line.startswith((":param", ":type")) or (hidden and line.startswith(" "))
            kept += [] if hidden else [line]
        lines[:] = kept


def setup(app) -> None:
    """Called by Sphinx."""
    write_pages()
    app.connect("autodoc-process-signature", hide_constructor)
    app.connect("autodoc-process-docstring", hide_arguments, priority=900)
    app.connect("source-read", link_to_pages)
    app.connect("env-check-consistency", check_that_all_is_documented)
