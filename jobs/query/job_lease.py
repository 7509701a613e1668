"""The lease of one sink's job, by a connection of its own, which several threads use."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cdc.model.errors import DataLost, Fenced, LockstepError
from jobs.generations.lease import GenerationLease
from jobs.generations.record import require_in_use
from jobs.query.sink_plan import SinkPlan
from jobs.query.threads import TICK_S, beat
from sinks.contract import OpenedSink


class JobLease:
    """Shows that the job runs, also without a query: it may wait for Kafka, or prepare tables for a long time."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan
        self._opened: OpenedSink | None = None
        self._lease: GenerationLease | None = None
        self._is_with_query = False

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the lease until the block ends, then end it."""
        over = threading.Event()
        beats = threading.Thread(target=self._keep, args=(over,), name=f"lease-{self._plan.name}", daemon=True)
        beats.start()
        try:
            yield
        finally:
            over.set()
            beats.join()
            if self._lease is not None:
                with suppress(LockstepError):
                    self._lease.end()
            if self._opened is not None:
                self._opened.sink.close()

    @contextmanager
    def with_query(self) -> Iterator[None]:
        """A query keeps the lease during this block."""
        self._is_with_query = True
        try:
            yield
        finally:
            self._is_with_query = False

    def reopened(self) -> GenerationLease:
        """The same lease by a new connection, for a changed password. Raises as ``SinkPlan.opened``,
        ``require_in_use``."""
        opened, before = self._plan.opened(), self._opened
        try:
            require_in_use(opened.records, self._plan.name, self._plan.generation)
        except BaseException:
            opened.sink.close()
            raise
        self._opened = opened
        if self._lease is None:
            self._lease = GenerationLease(opened, self._plan.generation, once=self._plan.once)
        else:
            self._lease.reopen(opened)
        if before is not None:
            before.sink.close()
        return self._lease

    def look(self) -> None:
        """Raise Fenced if another job is known to have claimed the generation since this one did."""
        if self._lease is None:
            return
        try:
            self._lease.look()
        except Fenced:
            raise
        except LockstepError:
            pass  # the error that ended the query counts

    def check_fence(self) -> None:
        """Raise DataLost if the destination was put back: then, too, its tasks find another fence than the job's."""
        if self._lease is not None:
            self._lease.check_fence()

    def beat(self) -> None:
        """Send one heartbeat while the job waits."""
        if self._lease is not None:
            with suppress(DataLost):  # the next query finds out what that means
                beat(self._lease)

    def _keep(self, over: threading.Event) -> None:
        while not over.wait(TICK_S):
            if self._lease is not None and not self._is_with_query:
                with suppress(LockstepError):  # the job asks the lease before it claims the destination
                    self._lease.heartbeat()
