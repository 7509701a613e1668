"""``DataFrame.mapInArrow`` without pandas, and pickled once per query instead of once per batch. PySpark's own method
makes the same three calls, but first imports pandas, which it then doesn't use and which would double what every Python
worker loads. These calls are private to PySpark, whose version is pinned; ``tests/live/test_jobs.py`` runs them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

MapBatches = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class ArrowMap:
    """A function over the Arrow batches of a task, to apply to one frame after the other."""

    def __init__(self, function: MapBatches, schema: str) -> None:
        """``schema`` is that of the batches the function yields, as in ``mapInArrow``."""
        udf: Any = UserDefinedFunction(function, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
        self._udf = udf
        self._call: Any = None

    def __call__(self, frame: DataFrame) -> DataFrame:
        """The frames of all calls must have the same columns."""
        classic: Any = frame
        if self._call is None:
            # By name, not of this frame: so it fits the next one too, without two dozen calls into the JVM.
            self._call = self._udf(*map(f.col, frame.columns))._jc
        return DataFrame(classic._jdf.mapInArrow(self._call, False, None), frame.sparkSession)
