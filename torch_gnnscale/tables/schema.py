"""The schema of a graph of tables: which columns of which files are its nodes, edges, features, labels and times; and
YAML in which no name is given twice."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from torch_geometric.typing import EdgeType

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


Unit: TypeAlias = Literal["s", "ms", "us", "ns"]
Kind: TypeAlias = Literal["number", "boolean", "category", "time", "vector", "text"]
UNITS = ("s", "ms", "us", "ns")
KINDS = ("number", "boolean", "category", "time", "vector", "text")


@dataclass(frozen=True)
class Column:
    """A column whose values are features.

    ``number`` (standardized unless ``scale`` is ``none``), ``boolean`` (0 or 1), ``time`` (in seconds, standardized),
    ``vector`` (a list of ``size`` numbers) and ``text`` (what ``encoder`` makes of it) are columns of ``x`` or
    ``edge_attr``; ``category`` is one of ``category``.
    """

    name: str
    kind: Kind
    missing: Literal["error", "mean"] = "error"
    """What a missing value is: an error, or the mean of the others, with a further column that is 1 where it was
    missing. Categories have code 0 for it."""
    scale: Literal["standard", "none"] = "standard"
    unit: Unit | None = None
    """Of times that are integers."""
    size: int | None = None
    """Of vectors; by default what the files say."""
    encoder: str | None = None
    """Of text: MODULE:FUNCTION, a function of a list of n strings, "" for missing ones, to finite numbers of shape [n,
    d]; each row must follow from its string alone."""


@dataclass(frozen=True)
class Label:
    """The column with the label of each node: its class, or a number that is to be predicted."""

    column: str
    kind: Literal["class", "number"] = "class"


@dataclass(frozen=True)
class Time:
    """A column with the time of each node or edge."""

    column: str
    unit: Unit | None = None


@dataclass(frozen=True)
class Split:
    """Which nodes or edges are for training, validation and testing: as ``column`` says (train, val, test, or nothing),
    or shares of them, drawn by a hash of (seed, keys) or, ``by`` time, the latest ones."""

    column: str | None = None
    val: float = 0.0
    test: float = 0.0
    seed: int = 0
    by: Literal["key", "time"] = "key"


@dataclass(frozen=True)
class Owner:
    """Which part owns each node, where a graph is written by part: nodes with one value of a column are in one part; or
    a table says it."""

    column: str
    """Of the nodes' table, or, of ``files``, the one with the numbers of parts."""
    files: tuple[str, ...] | None = None
    key: str = ""
    """Of ``files``: the column with the keys of the nodes."""


@dataclass(frozen=True)
class NodeTable:
    """A type of nodes: a row for each node."""

    name: str
    files: tuple[str, ...]
    """Files, directories and globs, relative to the folder of the schema."""
    key: str
    key_type: Literal["string", "integer"] | None = None
    """None: that of the column. Columns of text files hold integers if all of their values are written as such."""
    columns: tuple[Column, ...] = ()
    label: Label | None = None
    split: Split | None = None
    time: Time | None = None
    delimiter: str | None = None
    owner: Owner | None = None
    """None: parts are drawn by a hash of the key."""

    @property
    def path(self) -> str:
        """What errors call the table."""
        return f"nodes.{self.name}"


@dataclass(frozen=True)
class EdgeTable:
    """A type of edges: a row for each edge."""

    edge_type: EdgeType
    files: tuple[str, ...]
    """As of :class:`NodeTable`; empty: the rows of the node table ``table``."""
    table: str | None
    source: str
    destination: str
    time: Time | None = None
    weight: str | None = None
    columns: tuple[Column, ...] = ()
    split: Split | None = None
    reverse: bool = False
    """Whether the relation ``rev_REL`` leads the other way."""
    dangling: Literal["error", "drop"] = "error"
    """What happens to a row whose source or destination is missing, or no key of its node table."""
    delimiter: str | None = None

    @property
    def path(self) -> str:
        """What errors call the table."""
        return f"edges.{'.'.join(self.edge_type)}"


@dataclass(frozen=True)
class Schema:
    """Tables of nodes and edges."""

    nodes: Mapping[str, NodeTable]
    edges: Mapping[EdgeType, EdgeTable]
    time_unit: Literal["s", "ms", "us"] = "s"
    """The unit of stored times, since 1970; fractions are rounded down."""
    folder: Path = field(default=Path("."))
    """What the names of files are relative to."""

    @property
    def files(self) -> list[str]:
        """Those of all tables, as they are given."""
        tables: list[NodeTable | EdgeTable | Owner] = [*self.nodes.values(), *self.edges.values()]
        tables += [table.owner for table in self.nodes.values() if table.owner is not None]
        return [file for table in tables for file in table.files or ()]

    @classmethod
    def read(cls, file: str | os.PathLike) -> Schema:
        """Reads a YAML file; errors as of :meth:`parse`, and begin with the file's name."""
        yaml = pyyaml()
        try:
            text = Path(file).read_text("utf-8")
            return cls.parse(yaml.load(text, unique_names(yaml)), Path(file).parent)
        except yaml.YAMLError as error:
            raise ValueError(f"{file}: expected YAML, found {' '.join(str(error).split())}") from None
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None

    @classmethod
    def parse(cls, content: Any, folder: str | os.PathLike = ".") -> Schema:
        """A schema of nested dictionaries, as YAML has them (see the page "your own data").

        Raises:
            ValueError: names the path of the entry that is missing, unknown or wrong.
        """
        top = _Entries("", content, {"nodes", "edges", "time_unit"})
        nodes = {name: _node_table(name, entry) for name, entry in _mapping("nodes", top.need("nodes")).items()}
        if not nodes:
            raise ValueError("nodes: expected at least one table, found none")
        tables = [_edge_table(name, of, nodes) for name, of in _mapping("edges", top.value.get("edges", {})).items()]
        edges = {table.edge_type: table for table in tables}
        for table in tables:
            src, rel, dst = table.edge_type
            if table.reverse and (dst, f"rev_{rel}", src) in edges:
                raise ValueError(
                    f"{table.path}.undirected: expected no relation {dst}.rev_{rel}.{src} beside it, found one"
                )
        return cls(nodes, edges, top.choice("time_unit", ("s", "ms", "us"), "s"), Path(folder))


class _Entries:
    """The entries of a mapping at a path of a schema, read by kind; ValueError for unknown ones and for other kinds."""

    def __init__(self, path: str, value: Any, known: Iterable[str]) -> None:
        self.path, self.value = path, _mapping(path, value)
        if unknown := [name for name in self.value if name not in known]:
            raise ValueError(f"{self.at(unknown[0])}: expected one of {', '.join(sorted(known))}, found another entry")

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def need(self, name: str) -> Any:
        if name not in self.value:
            raise ValueError(f"{self.at(name)}: expected it, found nothing")
        return self.value[name]

    def text(self, name: str) -> str:
        return _text(self.at(name), self.need(name))

    def text_or_none(self, name: str) -> str | None:
        return None if self.value.get(name) is None else self.text(name)

    def choice(self, name: str, choices: tuple[str, ...], default: Any) -> Any:
        if name not in self.value:
            return default
        if self.value[name] not in choices:
            raise ValueError(f"{self.at(name)}: expected one of {', '.join(choices)}, found {self.value[name]!r}")
        return self.value[name]

    def number(self, name: str, default: Any, is_right: Callable[[Any], bool], expected: str) -> Any:
        value = self.value.get(name, default)
        if value is not default and (isinstance(value, bool) or not is_right(value)):
            raise ValueError(f"{self.at(name)}: expected {expected}, found {value!r}")
        return value

    def share(self, name: str) -> float:
        return float(
            self.number(name, 0.0, lambda n: isinstance(n, (int, float)) and 0 <= n < 1, "a share from 0 to below 1")
        )

    def whole(self, name: str, least: int, default: int | None) -> Any:
        wanted = f"a whole number of at least {least}"
        return self.number(name, default, lambda n: isinstance(n, int) and n >= least, wanted)


def _mapping(path: str, value: Any) -> dict[str, Any]:
    where = path or "schema"
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: expected names with values, found {value!r}")
    for name in value:
        _text(f"{where}: a name", name)
    return dict(value)


def _text(path: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        hint = "" if isinstance(value, (str, list, Mapping)) or value is None else " (write it in quotes)"
        raise ValueError(f"{path}: expected a string, found {value!r}{hint}")
    return value


def _name(path: str, value: str) -> str:
    """A type's name, of which PyTorch makes names of modules."""
    if "." in value or "__" in value or value == "training":
        raise ValueError(
            f"{path}: expected a name without '.' and '__', other than 'training', of which modules are made, found "
            f"{value!r}"
        )
    return value


def _files(entries: _Entries) -> tuple[str, ...]:
    given = entries.need("files")
    found = given if isinstance(given, list) else [given]
    if not found:
        raise ValueError(f"{entries.at('files')}: expected at least one file, found none")
    return tuple(_text(entries.at("files"), file) for file in found)


def _delimiter(entries: _Entries) -> str | None:
    found = entries.text_or_none("delimiter")
    if found is not None and (len(found) != 1 or found in '"\r\n'):
        raise ValueError(f"{entries.at('delimiter')}: expected one character, no quotation mark, found {found!r}")
    return found


def _node_table(name: str, entry: Any) -> NodeTable:
    path = f"nodes.{name}"
    _name(path, name)
    entries = _Entries(path, entry, {"files", "key", "columns", "label", "split", "time", "delimiter", "owner"})
    key, key_type = entries.need("key"), None
    if isinstance(key, Mapping):
        of_key = _Entries(entries.at("key"), key, {"column", "type"})
        key, key_type = of_key.text("column"), of_key.choice("type", ("string", "integer"), None)
    time, columns, label = _time(entries), _columns(entries), _label(entries)
    if label is not None and any(column.name == label.column for column in columns):
        raise ValueError(f"{path}.columns.{label.column}: expected no column that is the label, found it")
    return NodeTable(
        name, _files(entries), _text(entries.at("key"), key), key_type, columns,
        label, _split(entries, time), time, _delimiter(entries), _owner(entries),
    )  # fmt: skip


def _edge_table(name: str, entry: Any, nodes: Mapping[str, NodeTable]) -> EdgeTable:
    path = f"edges.{name}"
    parts = name.split(".")
    if len(parts) != 3 or not all(parts):
        raise ValueError(f"{path}: expected a name of the form SOURCE.RELATION.DESTINATION, found {name!r}")
    src, rel, dst = (_name(path, part) for part in parts)
    for node_type in (src, dst):
        if node_type not in nodes:
            raise ValueError(f"{path}: expected types of nodes among {', '.join(nodes)}, found {node_type!r}")
    known = {"files", "table", "source", "destination", "time", "weight", "columns", "split", "undirected", "dangling"}
    entries = _Entries(path, entry, known | {"delimiter"})
    table = entries.text_or_none("table")
    if (table is None) == ("files" not in entries.value):
        found = "neither" if table is None else "both"
        raise ValueError(f"{path}: expected files, or table with the name of a node table, found {found}")
    if table is not None and table != src:
        raise ValueError(f"{path}.table: expected {src!r}, whose keys are the sources, found {table!r}")
    if table is not None and "delimiter" in entries.value:
        raise ValueError(f"{path}.delimiter: expected none beside table, found {entries.value['delimiter']!r}")
    if table is not None and "source" in entries.value:
        raise ValueError(f"{path}.source: expected none beside table, whose key it is, found one")
    of, time = None if table is None else nodes[table], _time(entries)
    source, delimiter = (entries.text("source"), _delimiter(entries)) if of is None else (of.key, of.delimiter)
    return EdgeTable(
        (src, rel, dst), _files(entries) if of is None else of.files, table, source,
        entries.text("destination"), time, entries.text_or_none("weight"), _columns(entries), _split(entries, time),
        entries.choice("undirected", ("reverse",), None) is not None,
        entries.choice("dangling", ("error", "drop"), "error"), delimiter,
    )  # fmt: skip


def _label(entries: _Entries) -> Label | None:
    value = entries.value.get("label")
    if value is None or isinstance(value, str):
        return None if value is None else Label(entries.text("label"))
    of_label = _Entries(entries.at("label"), value, {"column", "kind"})
    return Label(of_label.text("column"), of_label.choice("kind", ("class", "number"), "class"))


def _owner(entries: _Entries) -> Owner | None:
    value = entries.value.get("owner")
    if value is None or isinstance(value, str):
        return None if value is None else Owner(entries.text("owner"))
    of_owner = _Entries(entries.at("owner"), value, {"files", "key", "part"})
    return Owner(of_owner.text("part"), _files(of_owner), of_owner.text("key"))


def _time(entries: _Entries) -> Time | None:
    value = entries.value.get("time")
    if value is None or isinstance(value, str):
        return None if value is None else Time(entries.text("time"))
    of_time = _Entries(entries.at("time"), value, {"column", "unit"})
    return Time(of_time.text("column"), of_time.choice("unit", UNITS, None))


def _split(entries: _Entries, time: Time | None) -> Split | None:
    value = entries.value.get("split")
    if value is None:
        return None
    if isinstance(value, Mapping) and "column" in value:
        return Split(_Entries(entries.at("split"), value, {"column"}).text("column"))
    found = _Entries(entries.at("split"), value, {"column", "val", "test", "seed", "by"})
    by = found.choice("by", ("key", "time"), "key")
    split = Split(None, found.share("val"), found.share("test"), found.whole("seed", 0, 0), by)
    if split.val + split.test >= 1:
        raise ValueError(f"{found.path}: expected val + test below 1, found {split.val + split.test:g}")
    if split.by == "time" and time is None:
        raise ValueError(f"{found.path}.by: expected time only beside an entry {entries.at('time')}, found none")
    if split.by == "time" and "seed" in found.value:
        raise ValueError(f"{found.path}.seed: expected none with by: time, which draws nothing, found one")
    return split


def _columns(entries: _Entries) -> tuple[Column, ...]:
    found = _mapping(entries.at("columns"), entries.value.get("columns", {}))
    return tuple(_column(f"{entries.at('columns')}.{name}", name, entry) for name, entry in found.items())


_OPTIONS: dict[str, set[str]] = {
    "number": {"missing", "scale"}, "boolean": {"missing"}, "category": set(), "time": {"missing", "unit"},
    "vector": {"size"}, "text": {"encoder"},
}  # fmt: skip
"""What the kinds of columns take beside ``kind``."""


def _column(path: str, name: str, entry: Any) -> Column:
    entry = {"kind": entry} if isinstance(entry, str) else entry
    kind = _Entries(path, entry, {"kind", *set().union(*_OPTIONS.values())}).text("kind")
    if kind not in KINDS:
        raise ValueError(f"{path}.kind: expected one of {', '.join(KINDS)}, found {kind!r}")
    entries = _Entries(path, entry, {"kind", *_OPTIONS[kind]})
    encoder = entries.text_or_none("encoder")
    if kind == "text" and (encoder is None or not all(encoder.partition(":"))):
        raise ValueError(
            f"{path}.encoder: expected MODULE:FUNCTION, which makes numbers of a list of strings, found "
            f"{'nothing' if encoder is None else repr(encoder)}"
        )
    return Column(
        name, kind, entries.choice("missing", ("error", "mean"), "error"),  # type: ignore[arg-type]
        entries.choice("scale", ("standard", "none"), "standard"), entries.choice("unit", UNITS, None),
        entries.whole("size", 1, None), encoder,
    )  # fmt: skip
