"""Apache Spark as an engine of tables."""

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
