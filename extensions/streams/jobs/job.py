"""The job of one stream query: run after run, each into the newest build of its result."""

import threading
import time
from contextlib import closing, suppress
from functools import partial
from typing import Final

from pyspark.sql import SparkSession

from cdc.model.errors import DataLost, Fenced, LockstepError, Overtaken, Unavailable
from extensions.streams.jobs.builds import newest_generation
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.jobs.records import POSTING_PAUSE
from extensions.streams.jobs.run import QueryRun
from extensions.streams.jobs.running import stream_error
from jobs.clock import now_ms
from jobs.generations.lease import GenerationLease
from jobs.generations.record import Record, begin_generation
from jobs.query.failures import BACKOFF_MAX_S, Backoff
from jobs.query.threads import beat
from jobs.report import Reporter, SinkWaiting
from jobs.spark.jvm import jvm_calls
from sinks.contract import OpenedSink

_TICK_S: Final = 0.2


class StreamJob:
    """Runs one stream query until it is stopped, done (``once``) or failed. ``run`` is its thread."""

    def __init__(self, plan: StreamQueryPlan, spark: SparkSession, *, stop: threading.Event, report: Reporter) -> None:
        self._plan = plan
        self._spark = spark
        self._stop = stop
        self._report = report
        self.generation = 0
        """The build that it works on; 0 before the first."""
        self._lease: GenerationLease | None = None
        """Stays open from one run of a build to the next: its claim counts also while the job waits to retry."""
        self._lease_sink: OpenedSink | None = None

    def run(self) -> None:
        """Return when stopped or done. Raises LockstepError when somebody has to act; waits for servers without end."""
        backoff = Backoff()
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                try:
                    if not self._run_once():
                        return
                except (Unavailable, Overtaken) as error:
                    if time.monotonic() - began > BACKOFF_MAX_S:
                        backoff = Backoff()  # it had worked for a while
                    self._wait(Unavailable(error.message), backoff)
        finally:
            self._end_lease()

    def _wait(self, error: Unavailable, backoff: Backoff) -> None:
        retry_in_s = backoff.next_s(error)
        self._report(SinkWaiting(self._plan.name, error.message, retry_in_s))
        go_on_at = time.monotonic() + retry_in_s
        while (left_s := go_on_at - time.monotonic()) > 0 and not self._stop.wait(min(left_s, _TICK_S)):
            if self._lease is not None:
                with suppress(DataLost):  # the next run finds out what that means
                    beat(self._lease)

    def _run_once(self) -> bool:
        """Run the query into the newest generation until it ends. Returns whether another run is due."""
        with closing((opened := self._plan.opened(1)).sink):
            number = newest_generation(self._plan, opened)
            if number is None:
                record = Record(self._plan.pipeline, {}, created_at_ms=now_ms())
                number = begin_generation(opened, record)
        with closing((opened := self._plan.opened(number)).sink):
            lease = self._opened_lease(number)
            lease.begin()
            try:
                with jvm_calls(partial(stream_error, self._plan.name)):
                    run = QueryRun(self._plan, self._spark, opened, lease, number, stop=self._stop, report=self._report)
                    return run.run()
            except Fenced:
                lease.check_fence()  # a store that was put back fences too: its tasks find another fence
                raise
            except Unavailable:
                raise
            except LockstepError:
                # A newer job uses the same checkpoint, and may end this query before the claims are read.
                self._look_at_claims(lease)
                with suppress(LockstepError):
                    if newest_generation(self._plan, opened) != number:
                        return True  # the job of a newer build has dropped it meanwhile
                raise

    def _look_at_claims(self, lease: GenerationLease) -> None:
        """Raise Fenced if another job has claimed the build since this one did, as far as the store answers."""
        try:
            lease.look()
        except Fenced:
            raise
        except LockstepError:
            pass  # the error that ended the query counts

    def _opened_lease(self, number: int) -> GenerationLease:
        """The job's lease of this build, with a new connection, since the password may have changed."""
        if self._lease is not None and self.generation != number:
            self._end_lease()
        opened, before = self._plan.opened(number), self._lease_sink
        self.generation, self._lease_sink = number, opened
        if self._lease is None:
            self._lease = GenerationLease(opened, number, once=self._plan.once, pause_request=POSTING_PAUSE)
        else:
            self._lease.reopen(opened)
        if before is not None:
            before.sink.close()
        return self._lease

    def _end_lease(self) -> None:
        lease, opened = self._lease, self._lease_sink
        self._lease = self._lease_sink = None
        if lease is not None:
            with suppress(LockstepError):
                lease.end()
        if opened is not None:
            opened.sink.close()
