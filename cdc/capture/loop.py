"""The capture loop: read what has arrived, publish it in batches, confirm what Kafka has committed."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from cdc.capture.assembler import Assembler
from cdc.capture.batch import Batch, Watch
from cdc.capture.confirmation import Clock, Confirmation
from cdc.capture.questions import (
    Event,
    Events,
    LeftUnread,
    NeedLargeValues,
    NeedLiveKeys,
    NeedRowBefore,
    Notice,
    Question,
    Steps,
)
from cdc.capture.row_changes import OrdinaryRows
from cdc.capture.source import Source, Stream
from cdc.model.errors import MalformedMessage, Unavailable
from cdc.model.lsn import Lsn
from cdc.protocol.control_records import CaptureState
from cdc.protocol.pgoutput import Message, decode
from cdc.protocol.walsender import KEEPALIVE, WAL_DATA_OFFSET, XLOG_DATA, Frame, parse_keepalive, wal_start

_NAP_S = 0.0002
"""The wait when the socket has just run dry. Waking for every message costs the server three times as much; sleeping
longer lets the server's buffers fill."""

_IDLE_S = 0.1
"""The longest sleep of an idle loop; anything that arrives wakes it."""

_SERVE_EVERY = 512
"""Messages between two looks at the clock under a backlog."""

_RUN_ROWS = 256
_RUN_BYTES = 1024 * 1024
"""The most ordinary rows that are held at once, between their encoder and Kafka's client."""

_PINGS_MAX = 20
"""So many status requests in a row come from a server that shuts down: it has sent everything, and asks until all of it
is confirmed. It never will be, since only what Kafka has is confirmed."""

_BEGIN = ord("B")


@dataclass(frozen=True, slots=True)
class Pause:
    """The loop returned without being asked to stop: something can be copied now, or ``until`` is reached. ``frame``
    was received already; it comes after the pause."""

    state: CaptureState
    frame: Frame | None


class CaptureLoop:
    """Publishes the stream; ``run`` until it is asked to stop or must pause.

    A batch ends when the socket is dry and the last commit began long enough ago, or when it is large or old enough. In
    the middle of a transaction, a dry socket doesn't end it. Errors of stream, source and batch end the loop.

    When nothing waits for a commit and the stream is resumed, the server is sent the position up to which Kafka has
    everything.
    """

    def __init__(
        self,
        stream: Stream,
        batch: Batch,
        assembler: Assembler,
        source: Source,
        confirmation: Confirmation,
        clock: Clock,
    ) -> None:
        self._stream = stream
        self._batch = batch
        self._assembler = assembler
        self._source = source
        self._confirmation = confirmation
        self._clock = clock
        self._following: Frame | None = None
        """A frame that was received already."""
        self._all_sent_to = Lsn(0)
        """Everything that commits before it has arrived."""
        self._unserved = 0
        """Messages since the connections were last served."""
        self._pings = 0
        """Status requests in a row."""
        self._now_s = self._pinged_s = self._heartbeat_s = clock.monotonic_s()
        """When the clock was last read, the last request came, and the last heartbeat was written."""
        self._inspect_at_s = self._now_s + source.interval_s
        self._pause_at_s = math.inf

    @property
    def state(self) -> CaptureState:
        """What was committed last, and which tables must be copied."""
        return self._batch.state

    def adopt(self, state: CaptureState) -> None:
        """Continue from this state: a copy has committed it, or wants tables to be copied."""
        self._batch.state = state

    def pause_after(self, seconds: float) -> None:
        """After this time, ask ``may_copy`` even under a backlog: a batch then ends between two transactions."""
        self._pause_at_s = self._clock.monotonic_s() + seconds

    def follow(self, steps: Steps) -> None:
        """Publish the events among these steps of the assembler, and answer its questions."""
        answer = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration:
                return
            answer = self._done(step)

    def _done(self, step: Events | LeftUnread | Question) -> Any:
        batch = self._batch
        if isinstance(step, tuple):
            batch.add(step)
            return None
        if isinstance(step, LeftUnread):
            if batch.watch is not None:
                batch.watch(step.topic, step.keys)
            return None
        if isinstance(step, NeedLiveKeys | NeedRowBefore | NeedLargeValues):
            batch.commit_pending(self._assembler)
        answer = self._source.answer(step)
        if isinstance(step, NeedLiveKeys):
            # As many deletes as the table has rows, in Kafka transactions of limited size and age.
            for key in answer:
                batch.add(step.gone(key))
                if batch.is_full() or batch.is_overdue():
                    batch.commit_pending(self._assembler)
        elif isinstance(step, Notice) and answer:
            self._inspect_at_s = -math.inf
        return answer

    def send(self, events: Iterable[Event]) -> None:
        """Add events of a copy to the open batch, between two transactions. ``adopt`` a state that describes them."""
        self._batch.add(events)

    def send_rows(self, rows: OrdinaryRows) -> None:
        """``send`` for rows of one topic."""
        self._batch.opens()
        self._batch.add_rows(rows)

    @contextlib.contextmanager
    def watching(self, watch: Watch) -> Iterator[None]:
        """Report all keys that the stream changes meanwhile."""
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
        may_copy: Callable[[CaptureState], bool] = lambda _: False,
    ) -> Pause | None:
        """Publish until asked to stop (None), after finishing the open batch; or until a Pause.

        ``first`` is a frame to begin with. With ``until``, nothing that commits there or later is published. Without,
        ``may_copy`` is asked between transactions whether a copy is wanted and can begin.

        Raises MalformedMessage for bytes that it can't decode, and whatever stream, assembler and batch raise; the open
        batch is lost then.
        """
        stream, batch, progress = self._stream, self._batch, self._assembler.progress
        self._following = first
        dry = False
        while True:
            frame, self._following = self._following or stream.receive(), None
            if frame is None and not dry:
                dry = True
                stream.wait(_NAP_S)
                continue
            full = at_pause = False
            if frame is not None:
                dry = False
                if frame[0] == XLOG_DATA:
                    self._pings = 0
                    if not self._publish(frame, until):
                        return self._paused_before(frame)
                    full = batch.is_full()
                    if self._unserved >= _SERVE_EVERY:
                        self._serve(wal_start(frame))
                        full |= batch.is_overdue()
                    # Full batches end inside of transactions, so a backlog would never reach an inspection.
                    full |= not progress.in_transaction and self._is_to_pause(until)
                elif frame[0] == KEEPALIVE:
                    at_pause = self._answer(bytes(frame), until)
                else:
                    raise MalformedMessage("unknown frame type", position=0, message=bytes(frame))
                if not full and not at_pause:
                    continue
            # From here on the socket is dry, the batch is full, or a pause is near.
            if self._must_commit(full=full, dry=frame is None):
                gathers_for_s = 0.0 if full or at_pause or self._source.stopping() else batch.gathers_for_s()
                if gathers_for_s > 0:
                    stream.wait(gathers_for_s)
                    continue
                batch.commit(self._assembler)
                if self._source.stopping():
                    return None
                dry = False
            elif self._source.stopping() and not batch.events:
                self._confirmation.send_status()
                return None
            elif frame is None:
                self._idle()
            if not progress.in_transaction and not batch.events and self._may_pause(until, at_pause, may_copy):
                return Pause(self.state, None)

    def _is_to_pause(self, until: Lsn | None) -> bool:
        """Whether an inspection or a copy was due when the clock was last read."""
        return self._now_s > self._inspect_at_s or (until is None and self._now_s >= self._pause_at_s)

    def _paused_before(self, frame: Frame) -> Pause:
        # Positions without events are committed too: after a restart, the copy would be older than what comes again.
        if self._must_commit(full=True, dry=False):
            self._batch.commit(self._assembler)
        return Pause(self.state, frame)

    def _may_pause(self, until: Lsn | None, at_pause: bool, may_copy: Callable[[CaptureState], bool]) -> bool:
        """Between two transactions, with nothing open: inspect the source if due; returns whether a copy may begin."""
        self._now_s = self._clock.monotonic_s()
        if self._now_s > self._inspect_at_s:
            self._inspect_at_s = self._now_s + self._source.interval_s
            self.adopt(self._source.inspect(self.state))
        if until is not None:
            return at_pause
        self._pause_at_s = math.inf
        return may_copy(self.state)

    def _publish(self, arrived: Frame, until: Lsn | None) -> bool:
        """Send the events of a message, and of ordinary rows that have arrived. False if it begins a transaction that
        commits at ``until`` or later."""
        batch, assembler = self._batch, self._assembler
        if assembler.relations.has_kernels:
            batch.opens()
            rows_max, bytes_max = batch.room()
            ordinary = assembler.ordinary(
                arrived,
                self._stream.receive,
                rows_max=min(rows_max, _RUN_ROWS),
                bytes_max=min(bytes_max, _RUN_BYTES),
            )
            if ordinary is not None:
                self._unserved += len(ordinary.rows)
                batch.add_rows(ordinary)
                self._following = ordinary.following
                return True
        lsn = wal_start(arrived)
        if assembler.relations.uncaptured_ids and assembler.is_done_with(arrived):
            self._unserved += 1
            return True
        frame = bytes(arrived)
        message = message_of(frame, lsn)
        if until is not None and frame[WAL_DATA_OFFSET] == _BEGIN and message.commit_lsn >= until:  # type: ignore[union-attr]  # by its kind
            return False
        outcome = assembler.feed(message, lsn)
        if isinstance(outcome, tuple):
            batch.add(outcome)
        else:
            self.follow(outcome)
        self._unserved += 1
        return True

    def _serve(self, lsn: Lsn) -> None:
        """Under a backlog, serve the connections once per many messages, the last of which starts at this LSN."""
        self._unserved = 0
        self._confirmation.received = max(self._confirmation.received, lsn)
        self._source.keep_alive()
        self._batch.serve()
        self._now_s = self._clock.monotonic_s()

    def _answer(self, frame: bytes, until: Lsn | None) -> bool:
        """Process a keepalive. Returns whether the server has sent everything that commits before ``until``. Raises
        Unavailable if the server waits for us to leave."""
        keepalive = parse_keepalive(frame)
        self._confirmation.received = max(self._confirmation.received, keepalive.wal_end)
        if keepalive.reply_requested:
            now_s = self._clock.monotonic_s()
            # A single request only checks whether we are alive.
            self._pings = 1 if now_s - self._pinged_s > _IDLE_S else self._pings + 1
            self._pinged_s = now_s
            if self._pings > _PINGS_MAX:
                raise Unavailable("PostgreSQL shuts down, and waits for its readers to leave")
            self._confirmation.send_status()
        if self._assembler.progress.in_transaction:
            return False
        self._all_sent_to = max(self._all_sent_to, keepalive.wal_end)
        return until is not None and keepalive.wal_end >= until

    def _must_commit(self, *, full: bool, dry: bool) -> bool:
        """Whether something waits for a commit, other than a transaction whose remainder is coming."""
        batch, progress = self._batch, self._assembler.progress
        if progress.in_transaction and not full and not batch.is_overdue():
            return False
        return (
            batch.events > 0
            or progress.end_lsn > batch.state.end_lsn
            or bool(self._assembler.relations.new_shapes)
            or (dry and batch.owes_progress())
        )

    def _idle(self) -> None:
        """Nothing came and nothing waits: send a due heartbeat or status update, then sleep a little."""
        if self._clock.monotonic_s() - max(self._batch.committed_s, self._heartbeat_s) > self._source.interval_s:
            self._source.heartbeat()
            self._heartbeat_s = self._clock.monotonic_s()
        if not self._assembler.progress.in_transaction and not self._batch.events and self._source.is_resumed():
            self._confirmation.nothing_waits(self._all_sent_to)
        self._source.keep_alive()
        self._stream.wait(_IDLE_S)


def message_of(frame: bytes, lsn: Lsn) -> Message:
    """The message of an XLogData frame. Raises MalformedMessage with its place in the WAL."""
    try:
        return decode(frame, WAL_DATA_OFFSET)
    except MalformedMessage as error:
        raise MalformedMessage(
            error.reason, position=error.position - WAL_DATA_OFFSET, message=frame[WAL_DATA_OFFSET:], lsn=lsn
        ) from None
