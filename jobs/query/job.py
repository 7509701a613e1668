"""One sink's job: runs queries into a generation, one after the other, until it is stopped or done."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from pyspark.sql import SparkSession

from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import (
    ConfigurationError,
    Fenced,
    LockstepError,
    Overtaken,
    PositionMismatch,
    Unavailable,
)
from cdc.protocol.control_records import SchemaRecord
from jobs.executor.shape_history import ShapesOutdated
from jobs.generations.held_tables import HeldTables
from jobs.query.failures import BACKOFF_MAX_S, Backoff, spark_error
from jobs.query.held_tables import NewlyHeld
from jobs.query.job_lease import JobLease
from jobs.query.log_facts import have_shapes_changed, unreadable
from jobs.query.log_start import Unreadable
from jobs.query.queries import Queries
from jobs.query.sink_plan import SinkPlan
from jobs.query.sink_tables import SinkTables
from jobs.query.threads import TICK_S
from jobs.report import Reporter, SinkWaiting
from jobs.spark.jvm import jvm_calls
from sinks.contract import TablesRefused

_OVERTAKEN_MAX: Final = 5
"""The job ends after so many queries in a row that another job overtook and that applied nothing. Two jobs that don't
share a lease would do that for ever."""


class OneAfterTheOther(Protocol):
    """The queries of a job; see ``jobs.query.queries.Queries``."""

    refused: TablesRefused | None
    known_shapes: Sequence[SchemaRecord]
    has_got_on: bool

    def run(self) -> bool:
        """Run a query to its end. Returns whether another one is due."""


class SinkJob:
    """Runs one sink until it is stopped, done (``once``) or failed. ``run`` is its thread."""

    def __init__(self, plan: SinkPlan, spark: SparkSession, *, stop: threading.Event, report: Reporter) -> None:
        lease, tables = JobLease(plan), SinkTables(plan, report=report)
        queries = Queries(tables, lease, spark, stop=stop, report=report)
        self._recovery = Recovery(tables, lease, queries, stop=stop, report=report)
        self._lease = lease

    def run(self) -> None:
        """Return when stopped or done. Raises LockstepError if somebody must act; waits for servers without end."""
        with self._lease.kept():
            self._recovery.run()


class Recovery:
    """Runs queries, and decides after each failure whether another one follows."""

    def __init__(
        self,
        tables: SinkTables,
        lease: JobLease,
        queries: OneAfterTheOther,
        *,
        stop: threading.Event,
        report: Reporter,
    ) -> None:
        self._tables = tables
        self._lease = lease
        self._queries = queries
        self._stop = stop
        self._report = report
        self._backoff = Backoff()
        # How many queries in a row another job has overtaken.
        self._overtaken = 0
        # The tables held when the last PositionMismatch came: one of them may have been the reason.
        self._checked_again: HeldTables | None = None

    def run(self) -> None:
        """Return when stopped or done. Raises LockstepError if somebody must act."""
        name, once = self._tables.plan.name, self._tables.plan.once
        while not self._stop.is_set():
            began_s = time.monotonic()
            try:
                with jvm_calls(partial(spark_error, name)):
                    is_due = self._queries.run()
            except NewlyHeld:
                is_due = True
            except LockstepError as error:
                self._go_on_after(error, began_s)
                is_due = True
            if not is_due:
                if once and not self._stop.is_set():
                    # ``once`` applies all there is, but may have left out tables that can't be applied.
                    self._tables.held.check_none_failed()
                return

    def _go_on_after(self, error: LockstepError, began_s: float) -> None:
        """Return once another query may begin. Otherwise raises the error, or a more telling one."""
        match error:
            case Unavailable():
                if time.monotonic() - began_s > BACKOFF_MAX_S:
                    self._backoff = Backoff()  # it had worked for a while
                self._wait(error, self._backoff)
            case Overtaken():
                # The older of two jobs learns that from its lease, and the newer one begins again behind its last
                # batch. If they don't share a lease, neither may get on.
                self._overtaken = 0 if self._queries.has_got_on else self._overtaken + 1
                if self._overtaken == _OVERTAKEN_MAX:
                    raise error
                self._wait(Unavailable(error.message), self._backoff)
            case Fenced():
                # A destination that was put back looks the same: its tasks find another fence than the job's.
                try:
                    self._lease.check_fence()
                except Unavailable as put_back:
                    self._wait(put_back, self._backoff)
                else:
                    raise error
            case ConfigurationError() | Unreadable():
                raise error
            case PositionMismatch():
                # A resumed table may be too late by now. The next start sets it held, and only that one.
                resuming = {table: held for table, held in self._tables.held.now.items() if held.is_read}
                if not resuming or resuming == self._checked_again:
                    raise error
                self._checked_again = resuming
            case _:
                self._lease.look()
                self._go_on_with_other_tables(error)

    def _go_on_with_other_tables(self, error: LockstepError) -> None:
        """Return if the next query begins with other shapes, or without some tables. Otherwise raises the error."""
        if isinstance(error, ShapesOutdated):
            # The next start reads the shapes after this event, so the event can't raise it again.
            return
        # A row had a shape that was unknown when the tables were prepared. The next start knows it.
        if self._have_shapes_changed() or self._has_lost_rights():
            return
        if not isinstance(error, TablesRefused):
            raise error
        self._queries.refused = error  # for the next query, which has the lease

    def _have_shapes_changed(self) -> bool:
        """Whether the log has a shape of a table that the sink wasn't prepared for. Waits until it can tell."""
        # The next failure without a new preparation is final.
        known, self._queries.known_shapes = self._queries.known_shapes, ()
        return bool(known) and self._answered(partial(have_shapes_changed, self._tables.plan, known))

    def _has_lost_rights(self) -> bool:
        """Whether the job lost the right to read the topics of some tables, and can go on without them."""
        plan, tables = self._tables.plan, self._tables
        if len(plan.tables) < 2 and not any(table in tables.held.now for table in plan.tables):
            return False  # then single tables can't be the reason
        return self._answered(lambda: tables.go_on_without(unreadable(plan, TopicAdmin(plan.kafka.client()))))

    def _answered(self, question: Callable[[], bool]) -> bool:
        """The answer, once a server gives it; False if stopped before."""
        backoff = Backoff()
        while not self._stop.is_set():
            try:
                return question()
            except Unavailable as error:
                self._wait(error, backoff)
        return False

    def _wait(self, error: Unavailable, backoff: Backoff) -> None:
        retry_in_s = backoff.next_s(error)
        self._report(SinkWaiting(self._tables.plan.name, error.message, retry_in_s))
        go_on_at = time.monotonic() + retry_in_s
        while (left_s := go_on_at - time.monotonic()) > 0 and not self._stop.wait(min(left_s, TICK_S)):
            self._lease.beat()
