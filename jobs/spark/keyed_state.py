"""``GroupedData.transformWithState`` without pandas. PySpark's own method makes the same calls, but first checks for
pandas, which it then doesn't use. These calls are private to PySpark, whose version is pinned;
``tests/live/test_patterns.py`` runs them. See ``jobs.spark.arrow_map``."""

from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.streaming.stateful_processor_util import TransformWithStateInPandasUdfUtils
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

_EVENT_TIME: Final = "EventTime"


def with_keyed_state(frame: DataFrame, by: str, processor: StatefulProcessor, schema: str) -> DataFrame:
    """The output of a processor for the rows of a streaming frame, grouped by one of its columns. Timers are in event
    time, and rows come out once: Spark's append mode. ``schema`` is that of the rows it yields."""
    calls = TransformWithStateInPandasUdfUtils(processor, _EVENT_TIME)
    udf: Any = UserDefinedFunction(
        calls.transformWithStateUDF, returnType=schema, evalType=PythonEvalType.SQL_TRANSFORM_WITH_STATE_PYTHON_ROW_UDF
    )
    session, grouped = frame.sparkSession, frame.groupBy(by)
    classic: Any = session
    made = grouped._jgd.transformWithStateInPySpark(
        udf(*[frame[name] for name in frame.columns])._jc,
        classic._jsparkSession.parseDataType(udf.returnType.json()),
        "Append",
        _EVENT_TIME,
        None,  # nothing is known before the first batch
        "",
    )
    return DataFrame(made, session)
