"""Apache Spark as an engine of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from typing_extensions import override

from .._library import needed
from .engine import Join
from .frames import Batches, Frames


class Spark(Frames):
    """Joins tables and splits them by part in a Spark session: each file is read by a function, rows of one part are
    written by a process that has no others.

    The session's processes need this package, and see the tables' files and the directory that is written. Its
    ``spark.sql.shuffle.partitions`` says into how many pieces joins split rows; a part's rows are on the disk of the
    process that writes it.

    Args:
        session: a ``SparkSession``, which stays open; by default the active one.

    Raises:
        ImportError: pyspark is missing.
        ValueError: no session is active.
    """

    def __init__(self, session: Any = None) -> None:
        super().__init__()
        pyspark = needed("pyspark.sql", "Spark needs pyspark: pip install 'torch_gnnscale[spark]'")
        self._session: Any = pyspark.SparkSession.getActiveSession() if session is None else session
        if self._session is None:
            raise ValueError("session: expected one, or an active one, found none")

    @override
    def _read(self, function: Callable[[Iterable[str]], Batches], items: Sequence[str], schema: Any) -> Any:
        import pyarrow

        def read(batches: Batches) -> Batches:
            yield from function(item for batch in batches for item in batch.column(0).to_pylist())

        rows = self._session.createDataFrame(pyarrow.table({"item": items})).repartition(len(items))
        return self._map(rows, read, schema)

    @override
    def _map(self, rows: Any, function: Callable[[Batches], Batches], schema: Any) -> Any:
        return rows.mapInArrow(_alike(function, schema), _spark_schema(schema))

    @override
    def _join(self, rows: Any, others: Any, columns: Sequence[str], join: Join) -> Any:
        key = f"{join.prefix}_joined"
        named = others.select(*columns).toDF(key, *join.names)
        return rows.join(named, rows[join.column] == named[key], "left").drop(key)

    @override
    def _group(self, rows: Any, by: str, function: Callable[[Batches], Batches], schema: Any) -> Any:
        import pyarrow

        called = _alike(function, schema)
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


def _alike(function: Callable[[Batches], Batches], schema: Any) -> Any:
    """The function, with the columns of ``schema``."""

    def called(batches: Batches) -> Batches:
        import pyarrow

        for batch in function(batches):
            table = pyarrow.Table.from_batches([batch]).select(schema.names).cast(schema)
            yield from table.combine_chunks().to_batches()

    return called


def _spark_schema(schema: Any) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
