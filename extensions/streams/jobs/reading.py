"""What Spark reads for a stream query: the query over its topics, and records without a part in a batch."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from cdc.model.errors import ConfigurationError
from cdc.model.table import Table
from extensions.streams.jobs.checkpoint import Checkpoint, checkpoint_location
from extensions.streams.jobs.frames import LATE, MALFORMED, side_frame, union
from extensions.streams.jobs.kafka_source import kafka_options, starting_offsets
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.jobs.planning import planned
from extensions.streams.jobs.sql_plans import UNCHECKED, QueryRefused
from extensions.streams.settings import StreamSettings
from jobs.batch_limits import RECORDS_MAX
from jobs.offsets import Offsets

_CONF: Final[Mapping[str, str]] = {
    # The state may be larger than memory, and the JVM's default store would write all of it in each batch.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Each batch compares what Spark dropped with what went to the side topic.
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    **UNCHECKED,
}

_BUFFER_BYTES: Final = 32 * 1024 * 1024


class StreamReading:
    def __init__(self, plan: StreamQueryPlan, spark: SparkSession) -> None:
        self._plan = plan
        self._session = spark.newSession()
        for name, value in _CONF.items():
            self._session.conf.set(name, value)

    def streams(self) -> dict[str, StreamSettings]:
        """The streams that the query reads. Raises ConfigurationError for a query that can't be maintained."""
        _, _, names = self._asked(self._plan.streams, {})
        return {name: self._plan.streams[name] for name in names}

    def planned(self, streams: Mapping[str, StreamSettings], start: Offsets) -> tuple[DataFrame, Table]:
        """The query over these streams from ``start`` on, and its result as a table. Raises as ``streams``."""
        frame, table, _ = self._asked(streams, start)
        return frame, table

    def checkpoint(self, generation: int) -> Checkpoint:
        plan = self._plan
        location = checkpoint_location(
            plan.spark.checkpoint_directory, pipeline=plan.pipeline, query=plan.name, generation=generation
        )
        return Checkpoint(self._session, location)

    def _asked(self, streams: Mapping[str, StreamSettings], start: Offsets) -> tuple[DataFrame, Table, list[str]]:
        sources = {name: (self._records(stream, start), stream) for name, stream in streams.items()}
        try:
            return planned(self._session, self._plan.name, self._plan.query, sources)
        except QueryRefused as refused:
            raise ConfigurationError(
                f"stream query {self._plan.name!r} can't be kept",
                problems=refused.problems,
                hint=f"mend [stream_queries.{self._plan.name}]; docs/stream-queries.md says what a query may be",
            ) from None

    def _records(self, stream: StreamSettings, start: Offsets) -> DataFrame:
        of_topic = {at: offset for at, offset in start.items() if at[0] == stream.topic}
        options = {
            **kafka_options(self._plan.kafka),
            "subscribe": stream.topic,
            "startingOffsets": starting_offsets(of_topic) if of_topic else "earliest",
            "maxOffsetsPerTrigger": str(RECORDS_MAX),
            # A gap in the topic means lost events, which must stop the job.
            "failOnDataLoss": "true",
        }
        return self._session.readStream.format("kafka").options(**options).load()


class SideTopic:
    """The topic of records without a part in the batches of a build. ``bytes_max`` is the largest record."""

    def __init__(
        self, plan: StreamQueryPlan, streams: Mapping[str, StreamSettings], generation: int, *, bytes_max: int
    ) -> None:
        self._plan = plan
        self._streams = streams
        self._generation = generation
        self._bytes_max = bytes_max

    def write(self, session: SparkSession, starts: Offsets, ends: Offsets, watermark_ms: int | None) -> dict[str, int]:
        """Write such records of a batch with these offsets. Returns their numbers by kind."""
        frames = []
        for name, stream in self._streams.items():
            own = {at: end for at, end in ends.items() if at[0] == stream.topic}
            first = {at: starts.get(at, 0) for at in own}
            if first == own:
                continue
            options = {
                **kafka_options(self._plan.kafka),
                # Only these: a partition that was added later has no part in this batch, and would need an offset.
                "assign": json.dumps({stream.topic: sorted(partition for _, partition in own)}),
                "startingOffsets": starting_offsets(first),
                "endingOffsets": starting_offsets(own),
                "failOnDataLoss": "true",
            }
            records = session.read.format("kafka").options(**options).load()
            of_batch = partial(side_frame, watermark_ms=watermark_ms, bytes_max=self._bytes_max)
            frames.append(of_batch(records, name, stream, generation=self._generation))
        counted: dict[str, int] = {}
        if frames:
            aside = union(frames)
            counted = {row["kind"]: row["count"] for row in aside.groupBy("kind").count().collect()}
            if counted:
                self._send(aside)
        return {kind: counted.get(kind, 0) for kind in (LATE, MALFORMED)}

    def _send(self, frame: DataFrame) -> None:
        options = {
            **kafka_options(self._plan.kafka),
            "topic": self._plan.side_topic.name,
            "kafka.acks": "all",
            "kafka.max.request.size": str(self._bytes_max),
            # The default of Kafka's client is smaller than the largest record here.
            "kafka.buffer.memory": str(max(_BUFFER_BYTES, 2 * self._bytes_max)),
        }
        frame.select("key", "value").write.format("kafka").options(**options).save()
