"""The open batch: events that were sent since the last commit, and the commit that ends them. Only it confirms."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

from cdc.capture.assembler import Assembler
from cdc.capture.batch_size import BatchSize
from cdc.capture.confirmation import Clock, Confirmation
from cdc.capture.questions import Event
from cdc.capture.row_changes import OrdinaryRows
from cdc.capture.settings import SLOWEST_COMMIT_MS, CaptureSettings
from cdc.model.event import Headers
from cdc.model.lsn import Lsn
from cdc.pace import Pace
from cdc.protocol.control_records import CaptureState, SchemaRecord
from cdc.protocol.membership import streamed
from cdc.toast.memory import DurableMemory, Offsets

SLOWEST_S: Final = SLOWEST_COMMIT_MS / 1000
"""The most time between the starts of two commits. Above it, events would wait longer for the pace than for a broker
that hardly moves."""

AGE_MAX_S: Final = 0.5
"""Age at which a batch is committed although more is coming: a reader waits this long for its first event."""

_TIMES_A_COMMIT: Final = 2.0
_QUICK_COMMIT_S: Final = 0.003
"""Commits of 50 ms start every 94 ms, those of 128 ms or more every 250 ms. Half the rate would make half of the events
wait twice as long."""


def commit_pace(settings: CaptureSettings) -> Pace:
    """How often capture commits when nothing else asks for it: a Kafka transaction costs the same whatever it holds."""
    return Pace(
        times_as_long=_TIMES_A_COMMIT,
        fastest_s=settings.commit_interval_ms / 1000,
        slowest_s=SLOWEST_S,
        free_s=_QUICK_COMMIT_S,
    )


Watch = Callable[[str, Sequence[bytes]], None]
"""Gets a topic, and keys of it that change."""


class Publisher(Protocol):
    """Takes events and commits them with the state."""

    def send(self, topic: str, key: bytes, value: bytes | None, extra: bytes | Headers | None = None) -> None:
        """Add an event to the open Kafka transaction; ``extra`` is a tombstone's tag or headers."""
        ...

    def send_rows(self, topic: str, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """``send`` for keys and values of one topic."""
        ...

    def commit(
        self, state: CaptureState, schemas: Sequence[SchemaRecord] = (), *, interval_s: float | None = None
    ) -> Offsets | None:
        """Commit what was sent with the state that describes it, and with the tables' new shapes. ``interval_s`` is the
        present time between two commits, in seconds, for progress records. Returns offsets below which everything
        published so far lies, if they were requested."""
        ...

    def owes_progress(self) -> bool:
        """Whether a commit without events should follow, since the last one's end isn't in a progress record yet."""
        ...

    def serve(self) -> None:
        """Let the client do its housekeeping."""
        ...


@dataclass(frozen=True, slots=True)
class Committed:
    """A batch that Kafka has committed, for displays: number of events, records by topic, and the commit's duration.
    ``interval_s`` is the time between the starts of two commits from now on, in seconds."""

    events: int
    state: CaptureState
    records: Mapping[str, int] = field(default_factory=dict)
    commit_s: float = 0.0
    interval_s: float = 0.0


class Batch:
    """Collects events by ``add``; ``commit`` publishes them with the state, and then confirms them to PostgreSQL.
    ``memory`` is the assembler's memory of large values. Errors of the publisher pass through: the batch is lost then,
    and the caller restarts from the committed state."""

    def __init__(
        self,
        *,
        publisher: Publisher,
        confirmation: Confirmation,
        state: CaptureState,
        size: BatchSize,
        pace: Pace,
        clock: Clock,
        report: Callable[[Committed], None] = lambda _: None,
        memory: DurableMemory | None = None,
    ) -> None:
        self._pace = pace
        self._publisher = publisher
        self._confirmation = confirmation
        self._clock = clock
        self._report = report
        self._memory = memory
        self._size = size
        self._bytes = 0
        self._records: dict[str, int] = {}
        self._opened_s = clock.monotonic_s()
        self._next_commit_s = -math.inf
        self.state = state
        """The state that the next commit starts from."""
        self.events = 0
        """Events that aren't committed yet."""
        self.committed_s = self._opened_s
        """When the last commit ended, on the monotonic clock."""
        self.watch: Watch | None = None
        """Gets all keys that the stream changes."""

    def add(self, events: Iterable[Event]) -> None:
        """Send events to Kafka. Readers see them only after the commit."""
        for topic, key, value, extra in events:
            if not self.events:
                self._opened_s = self._clock.monotonic_s()
            if self.watch is not None:
                self.watch(topic, (key,))
            self._publisher.send(topic, key, value, extra)
            self.events += 1
            self._records[topic] = self._records.get(topic, 0) + 1
            if value is not None:
                self._bytes += len(value)

    def add_rows(self, ordinary: OrdinaryRows) -> None:
        """``add`` for ordinary rows, all at once, after ``opens`` was called when the first of them came."""
        if self.watch is not None:
            self.watch(ordinary.topic, [key for key, _ in ordinary.rows])
        self._publisher.send_rows(ordinary.topic, ordinary.rows)
        self.events += len(ordinary.rows)
        self._records[ordinary.topic] = self._records.get(ordinary.topic, 0) + len(ordinary.rows)
        self._bytes += ordinary.size

    def opens(self) -> None:
        """Rows come now. If they are the batch's first, its age counts from here."""
        if not self.events:
            self._opened_s = self._clock.monotonic_s()

    def room(self) -> tuple[int, int]:
        """The events, and the bytes, that it still takes."""
        return self._size.rows - self.events, self._size.bytes - self._bytes

    def is_full(self) -> bool:
        """Whether it has as many events or bytes as one Kafka transaction takes."""
        return self.events >= self._size.rows or self._bytes >= self._size.bytes

    def is_overdue(self) -> bool:
        """Whether its first event has waited as long as an event may."""
        return self.events > 0 and self._clock.monotonic_s() - self._opened_s > AGE_MAX_S

    def gathers_for_s(self) -> float:
        """How long a commit that isn't urgent should still wait for more, in seconds; 0 when it is due."""
        until_s = self._next_commit_s
        if self.events:
            until_s = min(until_s, self._opened_s + AGE_MAX_S)
        return max(0.0, until_s - self._clock.monotonic_s())

    def owes_progress(self) -> bool:
        """Whether a commit without events should follow, since the last one's end isn't in a progress record yet."""
        return not self.events and self._publisher.owes_progress()

    def serve(self) -> None:
        self._publisher.serve()

    def commit_pending(self, assembler: Assembler) -> None:
        """Commit what was sent, if anything, even in the middle of a transaction."""
        if self.events:
            self.commit(assembler)

    def commit(self, assembler: Assembler) -> None:
        """Commit what was sent with the assembler's position and new shapes, then confirm it."""
        began_s = self._clock.monotonic_s()
        progress, relations, unread = assembler.progress, assembler.relations, assembler.rows.unread
        commit_lsn, seq = position = progress.position
        shapes = tuple(relations.new_shapes)
        state = replace(
            self.state,
            commit_lsn=commit_lsn,
            seq=seq,
            end_lsn=progress.end_lsn,
            commit_time_ms=progress.commit_time_ms,
            last_transaction=progress.last_transaction,
            begun=progress.begun,
        ).with_unread(unread)
        for name, partition in relations.new_partitions:
            state = state.with_partitions(name, partial(streamed, partition=partition))
        rewritten = {record.table.name for record in shapes if record.change.rewritten}
        self.state = state.to_be_copied(rewritten).never_copied(relations.passed_over)
        bounds = self._publisher.commit(self.state, shapes, interval_s=self._pace.interval_s)
        # Never before Kafka: a memory ahead of Kafka would return values of changes that are still to come.
        if self._memory is not None:
            self._memory.commit(position, bounds)
        for committed in (relations.new_shapes, relations.new_partitions, unread):
            committed.clear()
        # The last complete transaction isn't confirmed, so that the next start gets it again and can compare it.
        self._confirmation.committed(Lsn(self.state.resume_lsn))
        self.committed_s = self._clock.monotonic_s()
        took_s = self.committed_s - began_s
        self._pace.took(took_s)
        # From its start: a slow commit has gathered enough already.
        self._next_commit_s = began_s + self._pace.interval_s
        self._report(Committed(self.events, self.state, self._records, took_s, self._pace.interval_s))
        self.events = self._bytes = 0
        self._records = {}
