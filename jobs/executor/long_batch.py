"""Long batches: a task applies its range of the log, then goes on with what comes, as long as the driver lets it.

A batch of a few rows costs Spark much more than the rows themselves, so here one batch has many of them. What it has
applied, it tells the driver through a local socket, which the driver ends it by. The driver plans the next batch from
there.

Whatever needs more of the driver than to be told ends the batch, so that its result says so: rejections, events that
make earlier ones void, errors, and a backlog, which several tasks read faster.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Self

import orjson
import pyarrow as pa

from cdc.pace import Pace
from cdc.readiness import wait_ready
from jobs.executor.deliver import apply_all
from jobs.executor.log_reader import Range, forget_reader, load_ranges, reader_for
from jobs.executor.open_sinks import close_sink, freeze_opened
from jobs.executor.result import Failure, RejectedEvent, Result, to_arrow
from jobs.executor.task_input import Task
from jobs.offsets import Offsets
from sinks.contract import TopicPartition
from views.figures import ViewFigures

FETCH_WAIT_MS: Final = 200
"""For how long the broker keeps a request without records. A commit is answered at once: commit to read was 1 ms at the
p50 with 20, 100 and 500 ms. With 20 ms an idle task takes four times the processor time. The next batch's first request
waits behind one that is kept."""

_QUIET_FETCH_WAIT_MS: Final = 2_000
"""The same once nothing has come for a while: another client asks a tenth as often. Commit to read was 1 ms at the p50
and 9 ms at most, out of 60, with 200 as with 2,000 ms. How soon a batch ends doesn't depend on it."""

_QUIET_S: Final = 5.0
"""The while."""

TELL_S: Final = 0.2
"""How often the driver is told of progress: it stores that in the destination."""

_TIMES_A_DELIVERY: Final = 10.0
_FASTEST_S: Final = 0.01
_SLOWEST_S: Final = 0.25
"""Deliveries take a tenth of the time, unless there is so much that they take more of it. A request costs a store about
the same whatever it holds: OpenSearch took 34 % of a core for 50 requests a second of 4 rows, and 8 % for 10 of 20."""

_ROWS: Final = 100
"""What is above so many rows of a delivery is work that waiting doesn't save."""

ALIVE_S: Final = 5.0
"""How often the driver is told that there is nothing to tell, so that it can tell a destination that hangs."""

WORK_S: Final = 0.5
"""How long a task may be at work on what it has read before it tells the driver that it has read that."""

END: Final = b"\n"
GO_ON: Final = b"+"
GO_ON_S: Final = 1.0
"""What the driver says: that the batch is over, and every so often that it isn't."""

STORED: Final = b"="
"""What it says of each time that it was told something, once all of that is stored in the destination."""

SILENT_S: Final = 3.0
"""A driver that says nothing for so long hangs: its task ends, before others hold the job for dead and apply in its
place (``jobs.generations.lease.SILENCE_S``)."""


_HEARD_AT_ONCE: Final = 1 << 10


@dataclass(frozen=True, slots=True)
class LongBatch:
    """How a long batch ends. ``socket`` is the driver's. ``rows_max``: more at once are a backlog."""

    socket: str
    seconds: float
    rows_max: int


_COUNTS: Final = ("rows", "applied", "stale")


@dataclass(slots=True)
class Told:
    """What was applied since the driver was told last; ``next_offsets`` has only what has moved.

    ``view`` are the figures of a view, None of any other sink, and ``shard`` is the one of a view that is divided.
    ``has_got_on``: something was read or written since the last message. A long step shows progress this way before
    its end. ``read`` is where reading goes on where that is further, as far as it is told. ``failure`` is what
    keeps a shard from going on. Its task ends with it, or, where a server doesn't answer, tries again after
    ``retry_after_s``. ``rejected`` and ``resolved`` are those of a shard, as in Result: it goes on once they are
    kept.
    """

    rows: int = 0
    applied: int = 0
    stale: int = 0
    commit_time_ms: int = 0
    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    view: ViewFigures | None = None
    has_got_on: bool = False
    shard: int | None = None
    read: dict[TopicPartition, int] = field(default_factory=dict)
    failure: Failure | None = None
    rejected: list[RejectedEvent] = field(default_factory=list)
    resolved: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def is_at_work(self) -> bool:
        """Whether the task gets on, or says what keeps it. One whose client gets nothing from Kafka doesn't."""
        return bool(self.next_offsets) or self.is_building or self.has_got_on or self.failure is not None

    @property
    def is_building(self) -> bool:
        """Whether a view's state is being built: nothing can be applied before it is."""
        return self.view is not None and self.view.building is not None

    def to_json(self) -> bytes:
        """One line."""
        facts: dict[str, Any] = {
            **{name: getattr(self, name) for name in (*_COUNTS, "commit_time_ms", "has_got_on", "shard")},
            "next_offsets": _entries(self.next_offsets),
            "view": None if self.view is None else self.view.to_json(),
            "read": _entries(self.read),
            "failure": None if self.failure is None else self.failure.to_json(),
            "rejected": [event.to_json() for event in self.rejected],
            "resolved": [[topic, key.decode()] for topic, key in self.resolved],
        }
        return orjson.dumps(facts) + b"\n"

    def add_json(self, line: bytes) -> bool:
        """Add what came later. Whether it is of those that the driver answers."""
        facts = orjson.loads(line)
        self.read |= _offsets(facts["read"])
        if len(facts) == 1:
            return False
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + facts[name])
        self.commit_time_ms = max(self.commit_time_ms, facts["commit_time_ms"])
        self.next_offsets |= _offsets(facts["next_offsets"])
        if facts["view"] is not None:
            self.view = ViewFigures.from_json(facts["view"])
        self.has_got_on = self.has_got_on or facts["has_got_on"]
        self.shard = facts["shard"]
        if facts["failure"] is not None:
            self.failure = Failure.from_json(facts["failure"])
        self.rejected += map(RejectedEvent.from_json, facts["rejected"])
        self.resolved += [(topic, key.encode()) for topic, key in facts["resolved"]]
        return True


def _entries(offsets: Offsets) -> list[list[Any]]:
    return [[*at, offset] for at, offset in offsets.items()]


def _offsets(entries: Iterable[Any]) -> Offsets:
    return {(topic, partition): offset for topic, partition, offset in entries}


class DriverLine:
    """A task's line to its driver. Without a driver at its other end, the batch is over.

    A thread of its own tells the driver what was read, where the work on that takes long: the task may hang in it.
    """

    def __init__(self, path: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._heard_at = monotonic()
        self._is_ended = False
        self._newly_stored = 0
        self._lock = threading.Lock()
        self._work: tuple[Offsets] | None = None
        self._ended = threading.Event()
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(path)
        except OSError:
            self.close()

    def __enter__(self) -> Self:
        threading.Thread(target=self._tell_read, name="read", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def at_work_on(self, read: Offsets) -> Iterator[None]:
        """While it is at work on what was read below these offsets. They aren't changed meanwhile."""
        self._work = (read,)
        try:
            yield
        finally:
            self._work = None

    def _tell_read(self) -> None:
        seen = told = None
        while not self._ended.wait(WORK_S):
            work = self._work
            if work is not None and work is seen and work is not told:
                self._send(orjson.dumps({"read": _entries(work[0])}) + b"\n")
                told = work
            seen = work

    def is_over(self) -> bool:
        """Whether the driver has ended the batch, or itself, or hangs."""
        if self._socket is not None and wait_ready(self._socket, 0):
            self._listen(self._socket)
        return self._socket is None or self._is_ended or self._monotonic() - self._heard_at > SILENT_S

    def is_over_within(self, seconds: float) -> bool:
        """Wait for so long. Whether the batch is over before."""
        end = self._monotonic() + seconds
        while not self.is_over():
            left = end - self._monotonic()
            if left <= 0 or self._socket is None:
                return False
            wait_ready(self._socket, left)
        return True

    def _listen(self, line: socket.socket) -> None:
        try:
            said = line.recv(_HEARD_AT_ONCE)
        except OSError:
            said = b""
        if not said:
            self.close()
        self._heard_at = self._monotonic()
        self._is_ended = self._is_ended or END in said
        self._newly_stored += said.count(STORED)

    def take_stored(self) -> int:
        """How many more of the times that the driver was told something are stored, as heard by ``is_over``."""
        taken, self._newly_stored = self._newly_stored, 0
        return taken

    def wait_stored(self, times: int, seconds: float) -> None:
        """Wait until so many of the times that the driver was told something are stored, for so long at most.

        A batch that is to end is no reason to wait no longer, and a driver that is gone or hangs is.
        """
        end = self._monotonic() + seconds
        while self._newly_stored < times and self._socket is not None:
            if not wait_ready(self._socket, max(0.0, min(end - self._monotonic(), SILENT_S))):
                return
            self._listen(self._socket)

    def tell(self, told: Told) -> None:
        self._send(told.to_json())

    def _send(self, line: bytes) -> None:
        with self._lock:
            if self._socket is not None:
                try:
                    self._socket.sendall(line)
                except OSError:
                    self.close()

    def close(self) -> None:
        self._ended.set()
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def deliver_long(task: Task, batch: LongBatch, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Apply one task's range of the log and what comes after it, and yield its result, for ``mapInArrow``.

    ``batches`` are one row with all ranges, as ``jobs.spark.source.range_frame`` writes it. The counts of the result
    are those that the driver wasn't told of. Nothing is raised, as in ``deliver``.
    """
    result = Result()
    remaining = iter(batches)
    try:
        wanted_ranges = [
            wanted_range
            for rows in remaining
            for text in rows.column("ranges").to_pylist()
            for wanted_range in load_ranges(text)
        ]
        with DriverLine(batch.socket) as line:
            _follow(task, batch, wanted_ranges, line, result)
    except Exception as error:
        close_sink(task)  # the next attempt starts with a new connection
        result.failures += Failure.all_of(error)
        for _ in remaining:  # a worker whose input isn't read to its end is thrown away
            pass
    yield to_arrow(result)


def _follow(task: Task, batch: LongBatch, wanted_ranges: Sequence[Range], line: DriverLine, result: Result) -> None:
    """Apply until the batch has to end. Raises as ``LogReader.follow`` and ``Sink.apply``."""
    assert task.client is not None
    planned = {wanted_range.at: wanted_range.end for wanted_range in wanted_ranges}
    pace = DeliveryPace()
    began = told_at = time.monotonic()
    told: Offsets = {}
    result.next_offsets = {part.at: part.start for part in wanted_ranges if part.start is not None}
    followed, is_over = wanted_ranges, False
    for fetch_wait_ms in (FETCH_WAIT_MS, _QUIET_FETCH_WAIT_MS):
        with (
            reader_for(task.client, followed, fetch_wait_ms=fetch_wait_ms) as reader,
            closing(reader.follow(followed)) as all_polled,
        ):
            heard_at = time.monotonic()
            for polled in all_polled:
                # The driver takes the whole range as applied, so nothing less is a result.
                is_over = is_applied(planned, result.next_offsets) and line.is_over()
                if is_over:
                    break
                rows_before = result.rows
                if polled.records:
                    with line.at_work_on(polled.ends), pace.delivering(sum(batch.num_rows for batch in polled.records)):
                        apply_all(task, iter(polled.records), result)
                    freeze_opened()
                _reach(result, polled.ends)
                if not is_applied(planned, result.next_offsets):
                    continue
                if result.rejected or result.resolved or result.rows - rows_before > batch.rows_max:
                    return
                now = time.monotonic()
                # Where nothing is new, the next batch would do no more than this one.
                has_more = any(result.next_offsets.get(at, 0) > end for at, end in planned.items())
                if has_more and now - began >= batch.seconds:
                    return
                if (result.next_offsets != told and now - told_at >= TELL_S) or now - told_at >= ALIVE_S:
                    line.tell(take_told(result, told))
                    told, told_at = dict(result.next_offsets), now
                if polled.ends:
                    heard_at = now
                elif is_quiet(now - heard_at, wanted_ranges, result.next_offsets, fetch_wait_ms=fetch_wait_ms):
                    break
                if polled.records:
                    line.is_over_within(pace.left_s)
        if is_over:
            if fetch_wait_ms == _QUIET_FETCH_WAIT_MS:
                # It may be over because this client gets nothing any more, and the next range is read by the other one.
                forget_reader(task.client, fetch_wait_ms=fetch_wait_ms)
            return
        followed = [Range(*at, offset, offset) for at, offset in result.next_offsets.items()]


class DeliveryPace:
    """When a task delivers: at once after a pause, and what comes soon after a delivery gathers for the next one."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._pace = Pace(times_as_long=_TIMES_A_DELIVERY, fastest_s=_FASTEST_S, slowest_s=_SLOWEST_S)
        self._next_s = 0.0

    @contextmanager
    def delivering(self, rows: int) -> Iterator[None]:
        """While so many rows are delivered."""
        began_s = self._monotonic()
        yield
        self._pace.took((self._monotonic() - began_s) / max(1.0, rows / _ROWS))
        self._next_s = began_s + self._pace.interval_s

    @property
    def left_s(self) -> float:
        """For how long the next delivery has to wait; 0 for one that need not."""
        return max(0.0, self._next_s - self._monotonic())


def is_quiet(
    silent_s: float, wanted_ranges: Sequence[Range], reached: Mapping[TopicPartition, int], *, fetch_wait_ms: int
) -> bool:
    """Whether the client may ask less often, by another one that goes on where this one is. Pure."""
    if fetch_wait_ms >= _QUIET_FETCH_WAIT_MS or silent_s < _QUIET_S:
        return False
    return all(part.at in reached for part in wanted_ranges)


def is_applied(planned: Mapping[TopicPartition, int], reached: Mapping[TopicPartition, int]) -> bool:
    """Whether all of the planned ranges is below what was reached."""
    return all(reached.get(at, 0) >= end for at, end in planned.items())


def _reach(result: Result, ends: Mapping[TopicPartition, int]) -> None:
    for at, end in ends.items():
        result.next_offsets[at] = max(end, result.next_offsets.get(at, 0))


def take_told(result: Result, told: Offsets, *, has_got_on: bool = False) -> Told:
    """Move the counts out of the result into a message for the driver. The offsets stay in both.

    Counts wait until something that is counted is applied.
    """
    moved = {at: offset for at, offset in result.next_offsets.items() if told.get(at) != offset}
    if not moved:
        return Told(has_got_on=has_got_on)
    taken = Told(result.rows, result.applied, result.stale, result.commit_time_ms, moved, has_got_on=has_got_on)
    result.rows = result.applied = result.stale = 0
    return taken
