"""The capture loop: read what is there, publish it in batches, confirm what Kafka has committed. Nothing else confirms."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cdc.capture.assembler import Assembler
from cdc.capture.messages_and_outbox import Headers
from cdc.capture.settings import CaptureSettings
from cdc.model.errors import MalformedMessage
from cdc.model.lsn import Lsn
from cdc.protocol.control_records import CaptureState, SchemaRecord
from cdc.protocol.pgoutput import Truncate, decode
from cdc.protocol.walsender import (
    KEEPALIVE,
    WAL_DATA_OFFSET,
    XLOG_DATA,
    parse_keepalive,
    status_update,
    wal_start,
)
from cdc.toast.memory import DurableMemory, Offsets

_NAP_S = 0.0002
"""How long to wait when the socket has just run dry: a reader that wakes for every message costs the server three times
as much, and one that sleeps longer lets its buffers fill."""

_IDLE_S = 0.1
"""How long an idle loop sleeps at most; anything that arrives wakes it."""

_SERVE_EVERY = 512
"""Messages between two looks at the clock under a backlog."""


_BEGIN = ord("B")
_TRUNCATE = ord("T")


class Stream(Protocol):
    """Frames of the replication protocol."""

    def receive(self) -> bytes | None:
        """The next frame that is here already, or None. Never waits."""
        ...

    def wait(self, seconds: float) -> None:
        """Return when something arrived, or after ``seconds``."""
        ...

    def send(self, frame: bytes) -> None: ...


class Publisher(Protocol):
    """Takes events, commits them with the state."""

    def send(self, topic: str, key: bytes, value: bytes | None, extra: bytes | Headers | None = None) -> None: ...

    def commit(self, state: CaptureState, schemas: Sequence[SchemaRecord] = ()) -> Offsets | None:
        """Commit what was sent with the state that describes it, and with the tables' new shapes.

        Returns offsets below which everything lies that was published so far, where they were asked for.
        """
        ...

    def owes_progress(self) -> bool:
        """Whether a commit without events should follow, since nobody knows yet how far the last one got."""
        ...

    def serve(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Clock:
    """Time as arguments: ``monotonic_s`` for intervals, ``unix_us`` for what goes over the wire."""

    monotonic_s: Callable[[], float]
    unix_us: Callable[[], int]


class Confirmation:
    """What the server is told, and when. ``confirmed`` grows only by ``committed``; keepalives never raise it."""

    def __init__(self, stream: Stream, clock: Clock, *, interval_s: float, confirmed: Lsn) -> None:
        self._stream = stream
        self._clock = clock
        self._interval_s = interval_s
        self._due = 0.0
        self.received = confirmed
        self.confirmed = confirmed

    def committed(self, end_lsn: Lsn) -> None:
        """Kafka has committed everything up to the end of this transaction."""
        self.confirmed = max(self.confirmed, end_lsn)
        self.say()

    def say(self) -> None:
        """Send a status update now."""
        self._due = self._clock.monotonic_s() + self._interval_s
        self.received = max(self.received, self.confirmed)
        self._stream.send(
            status_update(received=self.received, confirmed=self.confirmed, unix_time_us=self._clock.unix_us())
        )

    def send_status_if_due(self) -> None:
        """Send one when the server would otherwise lose patience. Safe to call all the time."""
        if self._clock.monotonic_s() >= self._due:
            self.say()


@dataclass(frozen=True, slots=True)
class Committed:
    """A batch that Kafka has committed, for whoever watches."""

    events: int
    state: CaptureState


@dataclass(frozen=True, slots=True)
class Pause:
    """Why the loop returned without being told to stop: something can be copied now, or ``until`` is reached.

    ``frame`` was received already and belongs behind the pause.
    """

    state: CaptureState
    frame: bytes | None


class CaptureLoop:
    """Publishes the stream; ``run`` until it is told to stop or has to pause.

    A batch ends when the socket is dry, or when it is large or old enough; in the middle of a transaction only for the latter.
    ``heartbeat`` is called when nothing was committed for ``heartbeat_interval_s``, so that an idle database's slot and the
    watermark go on, and at least that often ``look`` at what the stream doesn't show. ``memory`` is what the assembler remembers
    with. ``may_copy`` is asked between transactions whether something is to be copied and that can begin. Everything that ``stream``
    and ``publisher`` raise ends the loop; nothing is confirmed that Kafka hasn't committed.
    """

    def __init__(
        self,
        *,
        stream: Stream,
        publisher: Publisher,
        assembler: Assembler,
        confirmation: Confirmation,
        state: CaptureState,
        settings: CaptureSettings,
        clock: Clock,
        stopping: Callable[[], bool],
        heartbeat: Callable[[], None],
        heartbeat_interval_s: float,
        report: Callable[[Committed], None],
        look: Callable[[CaptureState], CaptureState] = lambda state: state,
        memory: DurableMemory | None = None,
        may_copy: Callable[[CaptureState], bool] | None = None,
    ) -> None:
        self.state = state
        self._stream = stream
        self._publisher = publisher
        self._assembler = assembler
        self._confirmation = confirmation
        self._settings = settings
        self._clock = clock
        self._stopping = stopping
        self._heartbeat = heartbeat
        self._heartbeat_interval_s = heartbeat_interval_s
        self._report = report
        self._look = look
        self._memory = memory
        self._may_copy = may_copy or self._lacks_copies
        self._events = 0
        self._bytes = 0
        self._opened = clock.monotonic_s()
        self._published_end = Lsn(state.end_lsn)
        self._last_commit = self._last_look = self._opened
        assembler.settle = self._settle

    def run(self, *, first: bytes | None = None, until: Lsn | None = None) -> Pause | None:
        """Publish until told to stop (None), the open batch finished first; or until a Pause.

        ``first`` is a frame to begin with. With ``until``, nothing that commits there or later is published.
        """
        stream, publisher, assembler, clock = self._stream, self._publisher, self._assembler, self._clock
        confirmation, feed, settings = self._confirmation, self._assembler.feed, self._settings
        age_max_s = settings.batch_age_ms / 1000
        unserved = 0
        dry = reached = False
        while True:
            frame = stream.receive() if first is None else first
            first = None
            if frame is None and not dry:
                dry = True
                stream.wait(_NAP_S)
                continue
            full = False
            if frame is not None:
                dry = False
                if frame[0] == XLOG_DATA:
                    lsn = wal_start(frame)
                    try:
                        message = decode(frame, WAL_DATA_OFFSET)
                    except MalformedMessage as error:
                        payload = frame[WAL_DATA_OFFSET:]
                        at = error.position - WAL_DATA_OFFSET
                        raise MalformedMessage(error.reason, position=at, message=payload, lsn=lsn) from None
                    kind = frame[WAL_DATA_OFFSET]
                    if kind == _TRUNCATE:
                        self._truncate(message, lsn)  # type: ignore[arg-type]  # by its kind
                    elif until is not None and kind == _BEGIN and message.commit_lsn >= until:  # type: ignore[union-attr]
                        self._settle()
                        return Pause(self.state, frame)
                    else:
                        for topic, key, value, extra in feed(message, lsn):
                            if not self._events:
                                self._opened = clock.monotonic_s()
                            publisher.send(topic, key, value, extra)
                            self._events += 1
                            self._bytes += len(value) if value is not None else 0
                    full = self._events >= settings.batch_rows or self._bytes >= settings.batch_bytes
                    unserved += 1
                    if unserved >= _SERVE_EVERY:
                        unserved = 0
                        confirmation.received = max(confirmation.received, lsn)
                        confirmation.send_status_if_due()
                        publisher.serve()
                        full = full or (self._events > 0 and clock.monotonic_s() - self._opened > age_max_s)
                elif frame[0] == KEEPALIVE:
                    keepalive = parse_keepalive(frame)
                    confirmation.received = max(confirmation.received, keepalive.wal_end)
                    if keepalive.reply_requested:
                        confirmation.say()
                    reached = until is not None and not assembler.in_transaction and keepalive.wal_end >= until
                else:
                    raise MalformedMessage("unknown frame type", position=0, message=frame)
                if not full and not reached:
                    continue
            # From here on the socket is dry, the batch is full, or a pause is near.
            overdue = self._events > 0 and clock.monotonic_s() - self._opened > age_max_s
            rest_is_coming = assembler.in_transaction and not full and not overdue
            unknown = not self._events and frame is None and publisher.owes_progress()
            waits = self._events or assembler.end_lsn > self._published_end or assembler.new_shapes or unknown
            if waits and not rest_is_coming:
                self._commit(assembler.position)
                if self._stopping():
                    return None
                dry = False
            elif self._stopping() and not self._events:
                confirmation.say()
                return None
            elif frame is None:
                if clock.monotonic_s() - self._last_commit > self._heartbeat_interval_s:
                    self._heartbeat()
                    self._last_commit = clock.monotonic_s()
                confirmation.send_status_if_due()
                stream.wait(_IDLE_S)
            if assembler.in_transaction or self._events:
                continue
            if clock.monotonic_s() - self._last_look > self._heartbeat_interval_s:
                self._last_look = clock.monotonic_s()
                self.state = self._look(self.state)
            if reached or (until is None and self._may_copy(self.state)):
                return Pause(self.state, None)

    def commit(self) -> None:
        """Commit the position, and shapes that were recorded between two runs."""
        self._commit(self._assembler.position)

    def _lacks_copies(self, state: CaptureState) -> bool:
        return any(name not in state.copied for name in self._assembler.tables)

    def _truncate(self, message: Truncate, lsn: int) -> None:
        """As many deletes as the table has rows, in Kafka transactions of bounded size."""
        for topic, key, value, extra in self._assembler.truncate(message, lsn):
            if not self._events:
                self._opened = self._clock.monotonic_s()
            self._publisher.send(topic, key, value, extra)
            self._events += 1
            self._bytes += len(value) if value is not None else 0
            if self._events >= self._settings.batch_rows or self._bytes >= self._settings.batch_bytes:
                self._settle()

    def _settle(self) -> None:
        """Commit what was sent, if anything, in the middle of whatever is going on."""
        if self._events:
            self._commit(self._assembler.position)

    def _commit(self, position: tuple[int, int]) -> None:
        assembler = self._assembler
        commit_lsn, seq = position
        shapes = tuple(assembler.new_shapes)
        self.state = self.state.published(
            commit_lsn=commit_lsn, seq=seq, end_lsn=assembler.end_lsn, commit_time_ms=assembler.commit_time_ms
        ).to_be_copied({record.table.name for record in shapes if record.change.rewritten})
        bounds = self._publisher.commit(self.state, shapes)
        # Never before Kafka: a memory that is ahead of it would answer with values yet to come.
        if self._memory is not None:
            self._memory.commit(position, bounds)
        assembler.new_shapes.clear()
        self._confirmation.committed(assembler.end_lsn)
        self._report(Committed(self._events, self.state))
        self._published_end = assembler.end_lsn
        self._events = self._bytes = 0
        self._last_commit = self._clock.monotonic_s()
