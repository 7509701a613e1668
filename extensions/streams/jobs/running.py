"""A query that Spark runs. Its batches go through a gate, so that none begins after its end was requested."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from cdc.model.errors import LockstepError, Overtaken, PositionMismatch, Unavailable
from cdc.model.timeouts import BATCH_ENDS_S
from extensions.streams.executor.pattern_state import too_many_events
from extensions.streams.jobs.plan import StreamQueryPlan
from jobs.query.failures import spark_error
from jobs.spark.batch_call import BatchCall
from jobs.spark.jvm import stop_query, text_of

_JOINED: Final = ("START_OFFSET_DOES_NOT_MATCH_ASSIGNED", "MISMATCHED_TOPIC_PARTITIONS")
"""Spark's messages for a partition that was added as it began. It works when it begins again."""


_TAKEN: Final = ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming queries are concurrently using")
"""Spark's messages for another query that has written to the checkpoint, before this batch or at the same time."""

_DATA_LOSS: Final = ("KAFKA_DATA_LOSS", "failOnDataLoss", "OffsetOutOfRange", "Some data may have been lost")
"""Messages of Spark's Kafka source for records that were lost before it read them."""


class _Stopping(Exception): ...


class RunningQuery:
    """Runs until ``end``. ``batch`` does one batch, in a thread of Spark's; ``failure`` is what it raised."""

    def __init__(self, name: str, batch: Callable[[DataFrame, int], None]) -> None:
        self.failure: Exception | None = None
        self._name = name
        self._batch = batch
        self._call = BatchCall(self._guarded)
        self._gate = threading.Lock()
        self._is_closed = False
        self._query: StreamingQuery | None = None

    def start(self, rows: DataFrame, plan: StreamQueryPlan, generation: int, *, location: str) -> None:
        """Start the query in Spark, with its checkpoint at this location."""
        trigger: dict[str, Any] = (
            {"availableNow": True} if plan.once else {"processingTime": f"{plan.spark.trigger_ms} milliseconds"}
        )
        writer = rows.writeStream.foreachBatch(self._call).outputMode("append").option("checkpointLocation", location)
        name = f"{plan.name}-g{generation}-{time.monotonic_ns()}"
        self._query = writer.queryName(name).trigger(**trigger).start()

    @property
    def is_active(self) -> bool:
        return self.failure is None and self._query is not None and self._query.isActive

    @property
    def recent_progress(self) -> Sequence[Any]:
        return () if self._query is None else self._query.recentProgress

    def end(self, stop: threading.Event, *, while_waiting: Callable[[], None]) -> bool:
        """Let the running batch finish, and stop the query. Returns whether it has ended. A job that stops waits for a
        limited time: the batch ends with the process, and is repeated at the next start. Otherwise it waits until the
        query has ended, since two runs at once would overtake each other.
        """
        if not self._is_closed:
            is_free = self._gate.acquire(timeout=BATCH_ENDS_S)
            self._is_closed = True
            if is_free:
                self._gate.release()
        while self._query is not None and not stop_query(self._query):
            if stop.is_set():
                return False
            while_waiting()
        return True

    def close(self) -> None:
        """Release Spark's objects, once the query has ended."""
        self._call.close()

    def raise_failure(self, *, may_be_interrupted: bool) -> None:
        """Raise why it ended by itself."""
        if isinstance(self.failure, LockstepError):
            raise self.failure
        if may_be_interrupted:
            return  # an interrupted batch is run again
        if self.failure is not None:
            raise self.failure
        error = None if self._query is None else self._query.exception()
        if error is not None:
            raise stream_error(self._name, text_of(error))

    def _guarded(self, frame: DataFrame, batch_id: int) -> None:
        """foreachBatch. Spark commits the batch when this returns, so everything must be durable by then."""
        with self._gate:
            if self._is_closed:
                raise _Stopping
            try:
                self._batch(frame, batch_id)
            except Exception as error:
                self.failure = self.failure or error
                raise _Stopping from None


def stream_error(query: str, text: str) -> LockstepError:
    """A failed query's message -> the error that it means, as ``spark_error``. Pure."""
    if any(word in text for word in _JOINED):
        return Unavailable(f"a topic of stream query {query!r} got another partition just now")
    if (events_max := too_many_events(text)) is not None:
        return LockstepError(
            f"the pattern of stream query {query!r} would keep more than {events_max:,} events of one key",
            hint="nothing was skipped: the batch is read again at the next start. Let steps take fewer events by"
            " `where`, make `within` shorter, or add a column to `per`; then run `lockstep streams rebuild"
            f" {query}`, which begins with what the topics still hold",
        )
    taken = Overtaken(
        f"another job runs stream query {query!r} with the same checkpoint", hint="stop one of the two jobs"
    )
    lost = PositionMismatch(
        f"a topic no longer holds what stream query {query!r} has to read next",
        hint="records were deleted before they were read, or the topic was recreated; where a new start says the"
        f" same, `lockstep streams rebuild {query}` builds the result from what the topics still hold",
    )
    return spark_error(query, text, {_TAKEN: taken, _DATA_LOSS: lost})
