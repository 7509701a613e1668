"""The frame that tells tasks which part of the log to read, and the clock that triggers a query's batches."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import ConfigurationError
from jobs.executor.log_reader import Client, Range, dump_ranges


def clock_frame(spark: SparkSession) -> DataFrame:
    """A stream that makes a batch at each trigger, for a query that finds out itself what there is to read."""
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1).load()


def range_frame(spark: SparkSession, tasks: Sequence[Sequence[Range]]) -> DataFrame:
    """A frame with the ranges of the log that each task reads. See ``jobs.executor.log_reader``."""
    texts = f.array(*(f.lit(dump_ranges(task)) for task in tasks or [()]))
    ranges = f.element_at(texts, f.col("id").cast("int") + 1).alias("ranges")
    return spark.range(0, max(1, len(tasks)), 1, max(1, len(tasks))).select(ranges)


_PEM: Final = {
    "ssl.ca.location": "ssl.ca.pem",
    "ssl.certificate.location": "ssl.certificate.pem",
    "ssl.key.location": "ssl.key.pem",
}


def portable_client(kafka: KafkaSettings) -> Client:
    """librdkafka's configuration for a task: certificates as text, so that executors on other machines need no file.
    Raises ConfigurationError for a file that can't be read."""
    portable: dict[str, str | int] = {}
    for name, value in kafka.client().items():
        portable[_PEM.get(name, name)] = read_pem(Path(str(value))) if name in _PEM else value
    return portable


def read_pem(file: Path) -> str:
    """Raises ConfigurationError for a file that can't be read."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"the file {file} can't be read as PEM text", hint="check its path and permissions"
        ) from error
