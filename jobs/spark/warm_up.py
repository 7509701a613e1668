"""Starts what a first batch would wait for, while the job still asks Kafka and its destination what there is to do.

Python's daemon takes a second to load what workers need, with the JVM idle. The JVM takes as long to load the code that
sends rows to it. With the sinks' libraries loaded before the workers are forked, a first batch of 200,000 rows takes
4.4 s instead of 6.8.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress

import pyarrow as pa
from pyspark.sql import SparkSession

from jobs.executor.log_reader import Range
from jobs.spark.arrow_map import ArrowMap
from jobs.spark.source import range_frame


def warm_up(spark: SparkSession) -> None:
    """Run a task on each core, in a thread of its own: returns at once."""
    threading.Thread(target=_run, args=(spark,), name="warm-up", daemon=True).start()


def _run(spark: SparkSession) -> None:
    with suppress(Exception):  # the first batch reports what is wrong; and the session may be stopped meanwhile
        tasks = spark.sparkContext.defaultParallelism
        ArrowMap(_read, "rows long")(range_frame(spark, [[Range("", n, None, 0)] for n in range(tasks)])).toArrow()


def _read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"rows": [sum(batch.num_rows for batch in batches)]})
