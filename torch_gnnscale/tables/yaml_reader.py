"""YAML in which no name is given twice."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from .._library import needed


def pyyaml() -> Any:
    """The module yaml; ImportError, which says what to install, if it is missing."""
    return needed("yaml", "a schema needs PyYAML: pip install 'torch_gnnscale[tables]'")


def unique_names(yaml: Any) -> Any:
    """A loader that refuses a name that is given twice, of which YAML's takes the last one."""
    unique: Any = type("Loader", (yaml.SafeLoader,), {})

    def construct(loader: Any, node: Any) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.MarkedYAMLError(None, None, f"{key!r} as a name", key_node.start_mark)
            if key in found:
                raise yaml.MarkedYAMLError(None, None, f"{key!r} twice", key_node.start_mark)
            found[key] = loader.construct_object(value_node, deep=True)
        return found

    unique.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, construct)
    return unique
