"""The capture loop: read what is there, publish it in batches, confirm what Kafka has committed."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from cdc.capture.assembler import Assembler, Event, OrdinaryRows
from cdc.capture.batch import Batch, Watch
from cdc.capture.confirmation import Clock, Confirmation
from cdc.model.errors import MalformedMessage, Unavailable
from cdc.model.lsn import Lsn
from cdc.protocol.control_records import CaptureState
from cdc.protocol.pgoutput import Message, decode
from cdc.protocol.walsender import KEEPALIVE, WAL_DATA_OFFSET, XLOG_DATA, Frame, parse_keepalive, wal_start

_NAP_S = 0.0002
"""How long to wait when the socket has just run dry. A reader that wakes for every message costs the server three times
as much. One that sleeps longer lets the server's buffers fill."""

_IDLE_S = 0.1
"""How long an idle loop sleeps at most; anything that arrives wakes it."""

_SERVE_EVERY = 512
"""Messages between two looks at the clock under a backlog."""

_RUN_ROWS = 256
_RUN_BYTES = 1024 * 1024
"""The most ordinary rows that are held at once, between their encoder and Kafka's client."""

_PINGS_MAX = 20
"""So many requests for a status, one after the other, come from a server that shuts down: it has sent everything, and
asks until all of it is confirmed. It never will be, since nothing is confirmed but what Kafka has."""

_BEGIN = ord("B")
_TRUNCATE = ord("T")


class Stream(Protocol):
    """Frames of the replication protocol."""

    def receive(self) -> Frame | None:
        """The next frame that is here already, or None. Never waits."""
        ...

    def wait(self, seconds: float) -> None:
        """Return when something arrived, or after ``seconds``."""
        ...

    def send(self, frame: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class Pause:
    """Why the loop returned without being told to stop: something can be copied now, or ``until`` is reached.

    ``frame`` was received already; it comes after the pause.
    """

    state: CaptureState
    frame: Frame | None


class CaptureLoop:
    """Publishes the stream; ``run`` until it is told to stop or has to pause.

    A batch ends when the socket is dry and the last commit began long enough ago, or when it is large or old enough. In
    the middle of a transaction, a dry socket doesn't end it. ``heartbeat`` is called when nothing was committed for
    ``heartbeat_interval_s``, so that an idle database's slot and the watermark go on. At least that often, ``inspect``
    gets the state and returns it with the tables that have to be copied again. Whatever stream and batch raise ends the
    loop.

    When nothing waits for a commit, the server is told up to where everything is in Kafka. Before ``is_resumed``, it
    isn't known yet that it is the one that was published from.
    """

    def __init__(
        self,
        *,
        stream: Stream,
        batch: Batch,
        assembler: Assembler,
        confirmation: Confirmation,
        clock: Clock,
        stopping: Callable[[], bool],
        heartbeat: Callable[[], object],
        heartbeat_interval_s: float,
        inspect: Callable[[CaptureState], CaptureState] = lambda state: state,
        is_resumed: Callable[[], bool] = lambda: True,
        keep_alive: Callable[[], None] | None = None,
    ) -> None:
        """``keep_alive`` is called now and then whatever comes, and sends status updates; by default nothing else."""
        self._keep_alive = keep_alive or confirmation.send_status_if_due
        self._stream = stream
        self._batch = batch
        self._assembler = assembler
        self._confirmation = confirmation
        self._clock = clock
        self._stopping = stopping
        self._heartbeat = heartbeat
        self._heartbeat_interval_s = heartbeat_interval_s
        self._inspect = inspect
        self._is_resumed = is_resumed
        self._all_sent_to = Lsn(0)
        self._unserved = 0
        self._pings = 0
        self._pinged_s = clock.monotonic_s()
        self._heartbeat_s = self._inspected_s = clock.monotonic_s()
        self._inspection_is_due = False
        self._is_past_pause = False
        self._pause_due_s = math.inf

    @property
    def state(self) -> CaptureState:
        """What was committed last, and which tables have to be copied."""
        return self._batch.state

    def adopt(self, state: CaptureState) -> None:
        """Go on from this state: a copy has committed it, or wants tables to be copied."""
        self._batch.state = state

    def look_next(self) -> None:
        """Inspect after the transaction that is being read, and before the next one."""
        self._inspected_s = -math.inf
        self._inspection_is_due = True

    def pause_after(self, seconds: float) -> None:
        """Ask ``may_copy`` after so long also under a backlog: then a batch ends between two transactions."""
        self._pause_due_s = self._clock.monotonic_s() + seconds

    def send(self, events: Iterable[Event]) -> None:
        """Add events of a copy to the open batch, between two transactions. ``adopt`` a state that describes them."""
        self._batch.add(events)

    def send_rows(self, rows: OrdinaryRows) -> None:
        """The same for rows of one topic."""
        self._batch.opens()
        self._batch.add_rows(rows)

    @contextlib.contextmanager
    def watching(self, watch: Watch) -> Iterator[None]:
        """Tell of all keys that the stream changes meanwhile."""
        self._batch.watch = watch
        try:
            yield
        finally:
            self._batch.watch = None

    def commit(self) -> None:
        """Commit the position, and shapes that were recorded between two runs."""
        self._batch.commit(self._assembler)

    def run(
        self,
        *,
        first: Frame | None = None,
        until: Lsn | None = None,
        may_copy: Callable[[CaptureState], bool] | None = None,
    ) -> Pause | None:
        """Publish until told to stop (None), the open batch finished first; or until a Pause.

        ``first`` is a frame to begin with. With ``until``, nothing that commits there or later is published. Without,
        ``may_copy`` is asked between transactions whether something is to be copied and that can begin.

        Raises MalformedMessage for bytes that it can't decode, and whatever stream, assembler and batch raise. What the
        open batch holds is lost then.
        """
        stream, batch, assembler = self._stream, self._batch, self._assembler
        may_copy = may_copy or self._lacks_copies
        dry = False
        while True:
            frame = stream.receive() if first is None else first
            first = None
            if frame is None and not dry:
                dry = True
                stream.wait(_NAP_S)
                continue
            full = at_pause = False
            if frame is not None:
                dry = False
                if frame[0] == XLOG_DATA:
                    self._pings = 0
                    ordinary = self._ordinary(frame) if assembler.has_kernels else None
                    if ordinary is not None:
                        batch.add_rows(ordinary)
                        first = ordinary.following
                    elif not self._publish(frame, until):
                        # Also what gave no events: what is copied here would be older than it at the next start.
                        if self._must_commit(full=True, dry=False):
                            batch.commit(assembler)
                        return Pause(self.state, frame)
                    full = (
                        batch.is_full()
                        or (self._serve_if_due() and batch.is_overdue())
                        # Full batches end inside of transactions, so a backlog would never come to a look.
                        or ((self._inspection_is_due or self._pause_is_due(until)) and not assembler.in_transaction)
                    )
                elif frame[0] == KEEPALIVE:
                    at_pause = self._answer(bytes(frame), until)
                else:
                    raise MalformedMessage("unknown frame type", position=0, message=bytes(frame))
                if not full and not at_pause:
                    continue
            # From here on the socket is dry, the batch is full, or a pause is near.
            if self._must_commit(full=full, dry=frame is None):
                gathers_for_s = 0.0 if full or at_pause or self._stopping() else batch.gathers_for_s()
                if gathers_for_s > 0:
                    stream.wait(gathers_for_s)
                    continue
                batch.commit(assembler)
                if self._stopping():
                    return None
                dry = False
            elif self._stopping() and not batch.events:
                self._confirmation.send_status()
                return None
            elif frame is None:
                self._idle()
            if assembler.in_transaction or batch.events:
                continue
            self._inspect_if_due()
            if until is None:
                self._pause_due_s, self._is_past_pause = math.inf, False
            if at_pause or (until is None and may_copy(self.state)):
                return Pause(self.state, None)

    def _pause_is_due(self, until: Lsn | None) -> bool:
        return self._is_past_pause and until is None

    def _ordinary(self, frame: Frame) -> OrdinaryRows | None:
        """The events of the ordinary rows that are here, from this frame on; None when it is none of them."""
        self._batch.opens()
        rows_max, bytes_max = self._batch.room()
        ordinary = self._assembler.ordinary(
            frame,
            self._stream.receive,
            rows_max=min(rows_max, _RUN_ROWS),
            bytes_max=min(bytes_max, _RUN_BYTES),
        )
        if ordinary is not None:
            self._unserved += len(ordinary.rows)
            if self._unserved >= _SERVE_EVERY:
                self._confirmation.received = max(self._confirmation.received, wal_start(frame))
        return ordinary

    def _publish(self, arrived: Frame, until: Lsn | None) -> bool:
        """Send the events of one message; False when it begins a transaction that commits at ``until`` or later."""
        lsn = wal_start(arrived)
        self._unserved += 1
        if self._assembler.uncaptured_relations and self._assembler.is_done_with(arrived):
            return True
        frame = bytes(arrived)
        message = message_of(frame, lsn)
        kind = frame[WAL_DATA_OFFSET]
        if kind == _TRUNCATE:
            # As many deletes as the table has rows, in Kafka transactions of bounded size and age.
            for event in self._assembler.truncate(message, lsn):  # type: ignore[arg-type]  # by its kind
                self._batch.add((event,))
                is_tombstone = event[2] is None  # which belongs to the delete before it
                if is_tombstone and (self._batch.is_full() or self._batch.is_overdue()):
                    self._batch.commit_pending(self._assembler)
        elif until is not None and kind == _BEGIN and message.commit_lsn >= until:  # type: ignore[union-attr]  # by its kind
            return False
        else:
            self._batch.add(self._assembler.feed(message, lsn))
        if self._unserved >= _SERVE_EVERY:
            self._confirmation.received = max(self._confirmation.received, lsn)
        return True

    def _serve_if_due(self) -> bool:
        """Under a backlog, see to the connections once in many messages. Whether it was time for that."""
        if self._unserved < _SERVE_EVERY:
            return False
        self._unserved = 0
        self._keep_alive()
        self._batch.serve()
        self._look_at_clock()
        return True

    def _answer(self, frame: bytes, until: Lsn | None) -> bool:
        """Take in a keepalive; whether the server has sent everything that commits before ``until``.

        Raises Unavailable when the server waits for us to leave.
        """
        keepalive = parse_keepalive(frame)
        self._confirmation.received = max(self._confirmation.received, keepalive.wal_end)
        if keepalive.reply_requested:
            self._count_ping()
            self._confirmation.send_status()
        if self._assembler.in_transaction:
            return False
        self._all_sent_to = max(self._all_sent_to, keepalive.wal_end)
        return until is not None and keepalive.wal_end >= until

    def _count_ping(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._pinged_s > _IDLE_S:
            self._pings = 0  # one that only wants to know whether we are there
        self._pinged_s = now_s
        self._pings += 1
        if self._pings > _PINGS_MAX:
            raise Unavailable("PostgreSQL shuts down, and waits for its readers to leave")

    def _must_commit(self, *, full: bool, dry: bool) -> bool:
        """Whether something waits for a commit, and it isn't a transaction whose rest is coming."""
        batch, assembler = self._batch, self._assembler
        if assembler.in_transaction and not full and not batch.is_overdue():
            return False
        return (
            batch.events > 0
            or assembler.end_lsn > batch.published_end
            or bool(assembler.new_shapes)
            or (dry and batch.owes_progress())
        )

    def _idle(self) -> None:
        """Nothing came and nothing waits: heartbeat and status update when they are due, then sleep a little."""
        if self._clock.monotonic_s() - max(self._batch.committed_s, self._heartbeat_s) > self._heartbeat_interval_s:
            self._heartbeat()
            self._heartbeat_s = self._clock.monotonic_s()
        if not self._assembler.in_transaction and not self._batch.events and self._is_resumed():
            self._confirmation.nothing_waits(self._all_sent_to)
        self._keep_alive()
        self._stream.wait(_IDLE_S)

    def _look_at_clock(self) -> None:
        now_s = self._clock.monotonic_s()
        self._inspection_is_due = now_s - self._inspected_s > self._heartbeat_interval_s
        self._is_past_pause = now_s >= self._pause_due_s

    def _inspect_if_due(self) -> None:
        self._look_at_clock()
        if self._inspection_is_due:
            self._inspection_is_due = False
            self._inspected_s = self._clock.monotonic_s()
            self.adopt(self._inspect(self.state))

    def _lacks_copies(self, state: CaptureState) -> bool:
        return any(name not in state.copied for name in self._assembler.tables)


def message_of(frame: bytes, lsn: Lsn) -> Message:
    """The message of an XLogData frame. Raises MalformedMessage with its place in the WAL."""
    try:
        return decode(frame, WAL_DATA_OFFSET)
    except MalformedMessage as error:
        raise MalformedMessage(
            error.reason, position=error.position - WAL_DATA_OFFSET, message=frame[WAL_DATA_OFFSET:], lsn=lsn
        ) from None
