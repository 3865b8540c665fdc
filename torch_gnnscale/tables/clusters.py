"""Apache Spark and Ray Data as engines of tables, and what engines of several processes have in common: pieces are rows
of Arrow, which functions take into a database of their own process."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from typing_extensions import override

from .._library import needed
from .engine import Database, Engine, Join
from .sources import Source, name, quoted, source

Batches: TypeAlias = Iterator[Any]
"""Arrow's RecordBatches."""
_BATCH = 1 << 16
"""Rows of a batch between processes."""


class Frame(NamedTuple):
    """Rows that an engine has."""

    rows: Any
    """None if there are none: engines lose the columns of nothing."""
    schema: Any
    """Of Arrow."""


def alike(function: Callable[[Batches], Batches], schema: Any) -> Callable[[Batches], Batches]:
    """The function, whose batches get the columns of ``schema`` in its order; in any process."""

    def called(batches: Batches) -> Batches:
        import pyarrow

        for batch in function(batches):
            table = pyarrow.Table.from_batches([batch]).select(schema.names).cast(schema)
            yield from table.combine_chunks().to_batches()

    return called


@dataclass(frozen=True)
class Worker:
    """Runs SQL in a database of its own, in any process."""

    memory: int

    @contextmanager
    def database(self) -> Iterator[Database]:
        """A database on the process's disk."""
        with tempfile.TemporaryDirectory(prefix="gnnscale-") as folder:
            database = Database(Path(folder), self.memory, 1)
            try:
                yield database
            finally:
                database.close()

    def read(self, protocols: Sequence[str], pieces: Batches) -> Batches:
        """The rows of queries of files, whose URLs have these protocols."""
        for query in _items(pieces):
            with self.database() as database, database.of_files(protocols):
                yield from database.batches(query, _BATCH)

    def select(self, schema: Any, select: str, batches: Batches) -> Batches:
        """What a query, of ``piece``, makes of rows."""
        with self.database() as database:
            database.fill("piece", schema, batches)
            yield from database.batches(select, _BATCH)

    def call(self, schema: Any, function: Callable[[Database, str], Any], batches: Batches) -> Batches:
        """What a function returns of rows, as a row of bytes."""
        with self.database() as database:
            database.fill("piece", schema, batches)
            yield _packed(function(database, "piece"))

    def scan(self, protocols: Sequence[str], pieces: Batches) -> Batches:
        """As :meth:`read`, the rows as rows of bytes."""
        for query in _items(pieces):
            with self.database() as database, database.of_files(protocols):
                yield _packed(database.rows(query))


def _items(batches: Batches) -> Iterator[str]:
    return (item for batch in batches for item in batch.column(0).to_pylist())


def _of_items(function: Callable[[str], Any], batches: Batches) -> Batches:
    """What a function returns of each item, as rows of bytes."""
    return (_packed(function(item)) for item in _items(batches))


def _packed(value: Any) -> Any:
    import pyarrow

    return pyarrow.record_batch([pyarrow.array([pickle.dumps(value)], pyarrow.binary())], names=["value"])


class Frames(Engine):
    """An engine of a library that shares out rows of Arrow.

    A library calls a function on pieces of rows, joins, calls one on rows that have a value in common, keeps rows and
    collects small results. What is done to rows is SQL, in each process.
    """

    _work: Path
    _worker: Worker

    def __init__(self) -> None:
        self._frames: dict[str, Frame] = {}

    # What a library does ##############################################################################################

    @abstractmethod
    def _spread(self, items: Sequence[str]) -> Any:
        """Rows of the one column ``item``, each in a piece of its own."""

    @abstractmethod
    def _map(self, rows: Any, function: Callable[[Batches], Batches], schema: Any) -> Any:
        """Rows that a function makes of those of a piece."""

    @abstractmethod
    def _join(self, rows: Any, others: Any, columns: Sequence[str], join: Join) -> Any:
        """Rows with those of ``others``, of which ``columns`` are read, that have their key, or nulls: left outer."""

    @abstractmethod
    def _group(self, rows: Any, by: str, function: Callable[[Batches], Batches], schema: Any) -> Any:
        """Rows that a function makes of all that have one value of the column ``by``."""

    @abstractmethod
    def _keep(self, rows: Any) -> tuple[Any, int]:
        """The same rows, made once, and their number."""

    @abstractmethod
    def _release(self, rows: Any) -> None:
        """Forgets rows that were kept."""

    @abstractmethod
    def _collect(self, rows: Any) -> Iterable[Any]:
        """The rows as Arrow's tables or RecordBatches."""

    # The contract #####################################################################################################

    @override
    def open(self, database: Database, work: Path) -> None:
        self.database, self._work, self._worker = database, work.absolute(), Worker(database.memory)

    @override
    def of_files(self, files: Sequence[str], function: Callable[[str], Any]) -> list[Any]:
        if not files:
            return []
        return self._values(self._map(self._spread(files), partial(_of_items, function), _packed(None).schema))

    @override
    def scan(self, source: Source, select: str) -> list[tuple[Any, ...]]:
        queries = [f"SELECT {select} FROM ({piece})" for piece in self._pieces(source)]
        with self._errors_of(source, "*"):
            found = self._values(
                self._map(self._spread(queries), partial(self._worker.scan, source.protocols), _packed(None).schema)
            )
        return [row for rows in found for row in rows]

    @override
    def stage(
        self, staged: str, source: Source | str, given: str = "*", joins: Sequence[Join] = (), select: str = "*"
    ) -> None:
        if not isinstance(source, Source):
            self._frames[staged] = self._joined(self._frames[source], joins, select)
            return
        queries = [f"SELECT {given} FROM ({piece})" for piece in self._pieces(source)]
        with self._errors_of(source, given):
            schema = self.database.schema(f"SELECT {given} FROM ({source.sql()})")
            read = self._map(self._spread(queries), partial(self._worker.read, source.protocols), schema)
            made = self._joined(Frame(read, schema), joins, select)
            rows, count = self._keep(made.rows)
        self._frames[staged] = Frame(rows if count else None, made.schema)

    @override
    def each(self, staged: str, function: Callable[[Database, str], Any]) -> list[Any]:
        frame = self._frames[staged]
        call = partial(self._worker.call, frame.schema, function)
        if frame.rows is None:
            return [pickle.loads(batch.column(0)[0].as_py()) for batch in call(iter(()))]
        return self._values(self._map(frame.rows, call, _packed(None).schema))

    @override
    def gather(self, staged: str, columns: str, table: str) -> None:
        (folder := self._work / table).mkdir()
        files = self.each(staged, partial(_write, folder, columns))  # beside which tasks that failed may have left some
        self.database.run(f"CREATE VIEW {table} AS SELECT * FROM read_parquet([{', '.join(map(quoted, files))}])")

    @override
    def share(self, table: str) -> None:
        (folder := self._work / f"shared_{table}").mkdir()
        self.database.run(f"COPY {table} TO {quoted(str(folder / '0.parquet'))} (FORMAT parquet)")
        columns = self.database.schema(f"SELECT * FROM {table}").names
        self.stage(table, source(table, self._work, [str(folder)], None, columns), ", ".join(map(name, columns)))

    @override
    def group(self, staged: str, kept: str, by: str, function: Callable[[Database, str], Any]) -> list[Any]:
        frame = self._frames[staged]
        if frame.rows is None:
            return []
        select = partial(self._worker.select, frame.schema, f"SELECT * FROM piece WHERE {kept}")
        rows = frame.rows if kept == "true" else self._map(frame.rows, select, frame.schema)
        call = partial(self._worker.call, frame.schema, function)
        return self._values(self._group(rows, by, call, _packed(None).schema))

    @override
    def drop(self, staged: str) -> None:
        rows = self._frames.pop(staged).rows
        if rows is not None:
            self._release(rows)

    @override
    def close(self) -> None:
        for staged in list(self._frames):
            self.drop(staged)

    def _pieces(self, source: Source) -> list[str]:
        """A query of each file's rows: the columns that are needed, of the types that they have together."""
        with self.database.of_files(source.protocols):
            kinds = {row[0]: row[1] for row in self.database.rows(f"DESCRIBE SELECT * FROM ({source.sql()})")}
        columns = ", ".join(f"CAST({name(column)} AS {kinds[column]}) AS {name(column)}" for column in source.families)
        return [f"SELECT {columns} FROM ({piece})" for piece in source.pieces()]

    def _joined(self, frame: Frame, joins: Sequence[Join], select: str) -> Frame:
        import pyarrow

        rows, schema = frame
        for join in joins:
            others = self._frames[join.table]
            fields = [
                pyarrow.field(f, others.schema.field(column).type)
                for f, column in zip(join.names, join.taken, strict=True)
            ]
            before, schema = schema, pyarrow.schema([*schema, *fields])
            if rows is not None and others.rows is not None:
                rows = self._join(rows, others.rows, [join.key, *join.taken], join)
            elif rows is not None:
                nulls = "".join(f", NULL AS {given}" for given in join.names)
                rows = self._map(rows, partial(self._worker.select, before, f"SELECT *{nulls} FROM piece"), schema)
        if select == "*":
            return Frame(rows, schema)
        self.database.fill("piece", schema, ())
        sql = f"SELECT {select} FROM piece"
        made = self.database.schema(sql)
        self.database.run("DROP TABLE piece")
        select_rows = partial(self._worker.select, schema, sql)
        return Frame(None if rows is None else self._map(rows, select_rows, made), made)

    def _values(self, rows: Any) -> list[Any]:
        return [pickle.loads(value.as_py()) for some in self._collect(rows) for value in some.column("value")]

    @contextmanager
    def _errors_of(self, source: Source, given: str) -> Iterator[None]:
        """A block in which others read files: this process says what is wrong with them, if something is."""
        try:
            yield
        except Exception:
            with self.database.of_files(source.protocols):
                self.database.run(f"CREATE TEMP TABLE wrong AS SELECT {given} FROM ({source.sql()})")
                self.database.run("DROP TABLE wrong")
            raise


def _write(folder: Path, columns: str, database: Database, piece: str) -> str:
    """Writes columns of a piece into a file of its own, whose name it returns."""
    with tempfile.NamedTemporaryFile(prefix="", suffix=".parquet", dir=folder, delete=False) as file:
        database.run(f"COPY (SELECT {columns} FROM {piece}) TO {quoted(file.name)} (FORMAT parquet)")
        return file.name


class Spark(Frames):
    """Joins tables and splits them by part in a Spark session: each file is read by a function, rows of one part are
    written by a process that has no others.

    The session's processes need this package, and see the tables' files and the directory that is written. Its
    ``spark.sql.shuffle.partitions`` says into how many pieces joins split rows; a part's rows are on the disk of the
    process that writes it.

    Args:
        session: a ``SparkSession``, which stays open; by default the active one, else a new one, as
            ``SparkSession.builder.getOrCreate()`` makes it, whose processes run this Python unless ``PYSPARK_PYTHON``
            names another.

    Raises:
        ImportError: pyspark is missing.
        OSError: a session cannot be made, such as without Java.
    """

    def __init__(self, session: Any = None) -> None:
        super().__init__()
        pyspark = needed("pyspark.sql", "Spark needs pyspark: pip install 'torch_gnnscale[spark]'")
        self._session: Any = _session(pyspark.SparkSession) if session is None else session

    @override
    def _spread(self, items: Sequence[str]) -> Any:
        import pyarrow

        return self._session.createDataFrame(pyarrow.table({"item": items})).repartition(len(items))

    @override
    def _map(self, rows: Any, function: Callable[[Batches], Batches], schema: Any) -> Any:
        return rows.mapInArrow(alike(function, schema), _spark_schema(schema))

    @override
    def _join(self, rows: Any, others: Any, columns: Sequence[str], join: Join) -> Any:
        key = f"{join.prefix}_joined"
        named = others.select(*columns).toDF(key, *join.names)
        return rows.join(named, rows[join.column] == named[key], "left").drop(key)

    @override
    def _group(self, rows: Any, by: str, function: Callable[[Batches], Batches], schema: Any) -> Any:
        import pyarrow

        called = alike(function, schema)
        called.__annotations__ = {"batches": Iterator[pyarrow.RecordBatch], "return": Iterator[pyarrow.RecordBatch]}
        return rows.groupBy(by).applyInArrow(called, _spark_schema(schema))

    @override
    def _keep(self, rows: Any) -> tuple[Any, int]:
        from pyspark import StorageLevel

        kept = rows.persist(StorageLevel.DISK_ONLY)
        return kept, kept.count()

    @override
    def _release(self, rows: Any) -> None:
        rows.unpersist()

    @override
    def _collect(self, rows: Any) -> Iterable[Any]:
        return [rows.toArrow()]


def _session(of: Any) -> Any:
    from pyspark.errors import PySparkException

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        return of.getActiveSession() or of.builder.getOrCreate()
    except PySparkException as error:
        raise OSError(f"Spark does not start: {error}; does `java -version` work?") from error


def _spark_schema(schema: Any) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


class Ray(Frames):
    """Joins tables and splits them by part in a Ray cluster: each file is read by a task, rows of one part are written
    by a task that has no others.

    The cluster's processes need this package, and see the tables' files and the directory that is written. The rows
    of tables are in Ray's object store, which spills to disk; a task has the rows of one piece, or of one part, in
    memory. ``default_hash_shuffle_parallelism`` of Ray's ``DataContext`` says into how many pieces joins split rows.

    Where ``ray.init`` was not called, it is: the variable ``RAY_ADDRESS`` names the cluster, "local" a new one on this
    machine that ends with this process.

    Raises:
        ImportError: Ray, or polars, by which it joins, is missing.
        ConnectionError: there is no cluster at ``RAY_ADDRESS``.
    """

    def __init__(self) -> None:
        super().__init__()
        why = "Ray Data needs Ray and polars: pip install 'torch_gnnscale[ray]'"
        ray, self._data, _ = needed("ray", why), needed("ray.data", why), needed("polars", why)
        if not ray.is_initialized():
            ray.init()

    @override
    def _spread(self, items: Sequence[str]) -> Any:
        return self._data.from_items([{"item": item} for item in items], override_num_blocks=len(items))

    @override
    def _map(self, rows: Any, function: Callable[[Batches], Batches], schema: Any) -> Any:
        return rows.map_batches(_of_tables(function, schema), batch_size=None, batch_format="pyarrow")

    @override
    def _join(self, rows: Any, others: Any, columns: Sequence[str], join: Join) -> Any:
        names = [join.column, *join.names]
        named = others.map_batches(
            lambda table: table.select(list(columns)).rename_columns(names), batch_size=None, batch_format="pyarrow"
        )
        pieces = self._data.DataContext.get_current().default_hash_shuffle_parallelism
        return rows.join(named, "left_outer", pieces, on=(join.column,))

    @override
    def _group(self, rows: Any, by: str, function: Callable[[Batches], Batches], schema: Any) -> Any:
        return rows.groupby(by).map_groups(_of_tables(function, schema), batch_format="pyarrow")

    @override
    def _keep(self, rows: Any) -> tuple[Any, int]:
        kept = rows.materialize()
        return kept, kept.count()

    @override
    def _release(self, rows: Any) -> None:
        """Nothing: Ray forgets what nobody has."""

    @override
    def _collect(self, rows: Any) -> Iterable[Any]:
        return rows.iter_batches(batch_size=None, batch_format="pyarrow")


def _of_tables(function: Callable[[Batches], Batches], schema: Any) -> Callable[[Any], Iterable[Any]]:
    """The function, of a table to tables."""

    def called(table: Any) -> Iterable[Any]:
        import pyarrow

        yield schema.empty_table()  # Ray loses the columns of nothing
        yield from map(pyarrow.table, alike(function, schema)(iter(table.to_batches())))

    return called
