"""Apache Spark and Ray Data as engines of tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from typing_extensions import override

from .._library import needed
from .engine import Join
from .frames import Batches, Frames, alike


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
