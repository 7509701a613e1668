"""Runs one batch of a query as Spark tasks and returns its result; tries again while a server doesn't answer."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame

from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import DataLost, PositionMismatch, Unavailable
from jobs.executor.result import Result, from_arrow
from jobs.generations.batch_gate import BatchGate
from jobs.query.failures import Backoff
from jobs.query.task_maps import TaskMaps
from jobs.query.threads import QueryState
from jobs.query.topic_watch import TopicWatch
from jobs.report import Reporter, SinkWaiting
from sinks.contract import TablesRefused


class Stopping(Exception):
    """Ends a query from inside its batch because the job is asked to stop."""


@contextmanager
def only_stopping(state: QueryState) -> Iterator[None]:
    """Raise only Stopping to Spark; ``state`` stores any other failure. Spark searches the text of what is raised here
    for words of its own, and its stack overflows on a JVM's trace."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, Stopping):
            state.keep_failure(error)
        raise Stopping from None


class Delivery:
    """Runs the batches of one query."""

    def __init__(
        self,
        sink: str,
        maps: TaskMaps,
        topics: TopicWatch,
        cluster: TopicAdmin,
        gate: BatchGate,
        *,
        on_attempt: Callable[[], None],
        begin: Callable[[], bool],
        report: Reporter,
    ) -> None:
        """``on_attempt`` is called before each attempt, and ``begin`` before the first task. If ``begin`` returns
        False, it had nothing to store yet and is called again before the next batch."""
        self._sink = sink
        self._maps = maps
        self._topics = topics
        self._cluster = cluster
        self._gate = gate
        self._on_attempt = on_attempt
        self._begin = begin
        self._has_begun = False
        self._report = report

    def check(self, topics: Collection[str]) -> None:
        """Raises PositionMismatch if one of these topics isn't the one that was read, and Unavailable."""
        self._topics.check(self._cluster, topics)

    def run(self, records: Callable[[], DataFrame], topics: Collection[str], *, goes_on: bool) -> Result:
        """Apply a batch's records, which belong to these topics, in one pass. Waits while the destination doesn't
        answer. Raises LockstepError, and Stopping if the query ends meanwhile."""
        if not self._has_begun:
            self._has_begun = self._begin()
        backoff = Backoff()
        while True:
            self._on_attempt()
            work = self._maps.map_for(topics, goes_on=goes_on)(records())
            result = from_arrow(work.toArrow())
            errors = [failure.error() for failure in result.failures if failure.table is None]
            of_tables = {each.table: each.error() for each in result.failures if each.table is not None}
            if of_tables:
                errors.append(TablesRefused(of_tables))
            # Errors that somebody must fix come before those that end by themselves.
            errors.sort(key=lambda error: isinstance(error, Unavailable))
            if not errors:
                return result
            first = errors[0]
            if isinstance(first, PositionMismatch):
                self.check(topics)  # names the way out if a topic was recreated
            if isinstance(first, DataLost) or not isinstance(first, Unavailable):
                raise first  # the next query begins at what the destination has
            self.wait_out(first, backoff)

    def wait_out(self, error: Unavailable, backoff: Backoff) -> None:
        """Wait for a server. Raises Stopping if the query ends meanwhile."""
        retry_in_s = backoff.next_s(error)
        self._report(SinkWaiting(self._sink, error.message, retry_in_s))
        if self._gate.wait_closed(retry_in_s):
            raise Stopping
