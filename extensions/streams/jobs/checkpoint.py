"""Spark's checkpoint of a stream query: where batches end, and what is committed. Read with Hadoop's file systems."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson
from pyspark.sql import SparkSession

from cdc.model.errors import LockstepError
from jobs.offsets import Offsets
from jobs.spark.jvm import JVM_ERRORS

_VERSION = "v1"
_NOTHING = "-"
"""The line of a source for which nothing is planned yet."""


def checkpoint_location(directory: str, *, pipeline: str, query: str, generation: int) -> str:
    """The checkpoint of one pipeline, query and generation. Pipelines may share the directory."""
    return f"{directory.rstrip('/')}/{pipeline}/{query}/g{generation}"


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """Where a batch ends, and its watermark of event time in milliseconds since 1970."""

    ends: Offsets
    watermark_ms: int


def parse_planned(text: str, *, sources: int) -> PlannedBatch:
    """Parse ``offsets/<batch>``: version, metadata, a line per source, no topic twice. Raises LockstepError."""
    lines = text.splitlines()
    if len(lines) != 2 + sources or lines[0] != _VERSION:
        raise LockstepError(
            "the checkpoint's offsets have a form that this version doesn't know",
            hint="`lockstep streams rebuild QUERY` builds its result again from what the topics hold",
        )
    ends = {
        (topic, int(partition)): offset
        for line in lines[2:]
        for topic, partitions in (orjson.loads(line) if line != _NOTHING else {}).items()
        for partition, offset in partitions.items()
    }
    return PlannedBatch(ends, orjson.loads(lines[1])["batchWatermarkMs"])


class Checkpoint:
    """The checkpoint directory of one query, which Spark writes."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = location
        context: Any = spark.sparkContext
        jvm = context._jvm  # PySpark has no public way to Hadoop's file systems
        # Each lookup of a class by name searches all jars, which takes 10 ms in all: too slow for every batch.
        self._path_of = jvm.org.apache.hadoop.fs.Path
        self._io = jvm.org.apache.commons.io.IOUtils
        self._files = self._path_of(location).getFileSystem(context._jsc.hadoopConfiguration())

    def planned(self, batch_id: int, *, sources: int) -> PlannedBatch | None:
        """Spark's plan of a batch of a query with this many sources; None if unknown."""
        text = self._read(f"offsets/{batch_id}")
        return None if text is None else parse_planned(text, sources=sources)

    def newest_planned(self) -> int | None:
        """The newest batch that was planned, complete or not; None if there is none."""
        return self._newest("offsets")

    def newest_committed(self) -> int | None:
        """The newest batch that is complete; None if there is none."""
        return self._newest("commits")

    def remove(self) -> None:
        """Delete the directory if possible. No query may use it: one would read the log from its start."""
        with suppress(*JVM_ERRORS):
            self._files.delete(self._path_of(self.location), True)

    def _newest(self, kind: str) -> int | None:
        directory = self._path(kind)
        if not self._files.exists(directory):
            return None
        names = (status.getPath().getName() for status in self._files.listStatus(directory))
        return max((int(name) for name in names if name.isdecimal()), default=None)

    def _read(self, name: str) -> str | None:
        path = self._path(name)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return str(self._io.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _path(self, name: str) -> Any:
        return self._path_of(f"{self.location}/{name}")
